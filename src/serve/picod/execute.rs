//! `POST /api/execute`: runs one command and answers what it printed.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::outcome::{Cancel, End, Exit, Outcome};
use crate::quote::quoted;
use crate::run::{self, Control, Sinks};
use crate::spec::{DEFAULT_GRACE, Env, Keep, Leftovers, Limit, Overflow, Spec};
use crate::wire::picod::execute::{
    Execute, ExecuteAnswer, Timeout, decode_execute, timeout_note, truncation_note, write_execute,
};

use crate::serve::State;
use crate::serve::body::{NO_MEMORY, read_whole};
use crate::serve::budget::BudgetedCapture;
use crate::serve::command::{Directory, start_error};
use crate::serve::reply::{self, Dialect};
use crate::serve::root::RootError;
use crate::serve::transport::{Head, Live, Reply};

/// Kept bytes of an answer that is put together before it is sent; a longer one is sent in chunks
/// as it is encoded.
const WHOLE_MAX_BYTES: usize = 16 << 10;

/// Runs one command to its end.
pub(in crate::serve) fn execute<'a>(
    state: &'a State,
    head: &'a Head<'a>,
    body: &mut dyn Read,
) -> Reply<'a> {
    let error = |status, message: &str| reply::error(Dialect::Picod, status, message).into();
    let Some(bytes) = read_whole(state, head, body) else {
        let answer = reply::error(Dialect::Picod, 503, NO_MEMORY);
        return answer.with_header(reply::header("Retry-After", "1")).into();
    };
    let request = match decode_execute(&bytes.bytes) {
        Ok(request) => request,
        Err(message) => return error(400, &message),
    };
    drop(bytes);
    let Some(_place) = state.commands.take() else {
        return state.commands.busy(Dialect::Picod).into();
    };
    let directory = match working_directory(state, &request.working_dir) {
        Ok(directory) => directory,
        Err((status, message)) => return error(status, &message),
    };
    let timeout = match request.timeout {
        Timeout::Unset => state.settings.default_timeout,
        Timeout::After(timeout) => timeout.min(state.settings.timeout_max),
        Timeout::AtOnce => Duration::ZERO,
    };
    let cap = state.settings.cap;
    let captures = BudgetedCapture::new(cap, &state.output_budget).and_then(|stdout| {
        BudgetedCapture::new(cap, &state.output_budget).map(|stderr| (stdout, stderr))
    });
    let Ok((mut stdout, mut stderr)) = captures else {
        return error(503, "no memory to keep the output of another command");
    };
    let (program, cwd) = (request.argv[0].clone(), request.working_dir.clone());
    let spec = spec(request, directory.path(), timeout, cap);
    let start_time = SystemTime::now();
    let result = match timeout.is_zero() {
        true => None,
        false => {
            let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
            let control = Control { client: head.client, ..state.commands.control() };
            let result = run::run(&spec, sinks, control);
            Some(result.map_err(|error| start_error(&error, &cwd)))
        }
    };
    drop(directory);
    let ran = Ran::new(result, timeout, start_time, &stdout, &stderr);
    head.note(ran.log_note(&stdout, &stderr, &program.to_string_lossy()));
    ran.answer(stdout, stderr)
}

fn spec(request: Execute, cwd: PathBuf, timeout: Duration, cap: usize) -> Spec {
    let limit = Limit { cap, keep: Keep::Head, overflow: Overflow::Discard };
    Spec {
        cwd: Some(cwd),
        env: Env { clear: false, set: request.env },
        grace: DEFAULT_GRACE,
        leftovers: Leftovers::Leave,
        ..Spec::new(request.argv, Some(timeout), limit)
    }
}

fn working_directory(state: &State, asked: &str) -> Result<Directory, (u16, String)> {
    let root = &state.root;
    let opened = root.inside(asked.as_bytes()).and_then(|inside| root.create_directories(&inside));
    opened.map(Directory).map_err(|error| match error {
        RootError::Escapes | RootError::Invalid(_) => {
            (400, format!("Invalid working directory: {error}"))
        }
        RootError::Permission => {
            (403, format!("Failed to create working directory: permission denied: {error}"))
        }
        error => (500, format!("Failed to create working directory: {error}")),
    })
}

/// How a command went, in the terms of the answer.
struct Ran {
    exit_code: i32,
    notes: Vec<String>,
    outcome: Option<Outcome>,
    start_time: SystemTime,
    duration: Duration,
}

impl Ran {
    fn new(
        result: Option<Result<Outcome, String>>,
        timeout: Duration,
        start_time: SystemTime,
        stdout: &BudgetedCapture,
        stderr: &BudgetedCapture,
    ) -> Ran {
        let mut notes = Vec::new();
        for (name, stream) in [("stdout", stdout), ("stderr", stderr)] {
            let capture = stream.capture();
            if capture.dropped() > 0 {
                let (kept, received) = (capture.kept() as u64, capture.received());
                notes.push(truncation_note(name, kept, received, stream.is_refused()));
            }
        }
        let (exit_code, outcome) = match result {
            None => {
                notes.push(timeout_note(timeout));
                (EXIT_CODE_TIMED_OUT, None)
            }
            Some(Err(error)) => {
                notes.push(error);
                (EXIT_CODE_NOT_STARTED, None)
            }
            Some(Ok(outcome)) => {
                let exit_code = match (outcome.end, outcome.leader) {
                    (End::TimedOut, _) => {
                        notes.push(timeout_note(timeout));
                        EXIT_CODE_TIMED_OUT
                    }
                    (End::Canceled(Cancel::Requested), _) => {
                        notes.push("Command canceled: the server ends".to_owned());
                        EXIT_CODE_SIGNALED
                    }
                    (_, Some(Exit::Code(code))) => code,
                    (_, Some(Exit::Signal(_)) | None) => EXIT_CODE_SIGNALED,
                };
                (exit_code, Some(outcome))
            }
        };
        let start_time = outcome.as_ref().map_or(start_time, |outcome| outcome.start_time);
        let duration = outcome.as_ref().map_or(Duration::ZERO, |outcome| outcome.duration);
        Ran { exit_code, notes, outcome, start_time, duration }
    }

    /// What the log says of it: how it ended, bytes kept of those received, and the program.
    fn log_note(
        &self,
        stdout: &BudgetedCapture,
        stderr: &BudgetedCapture,
        program: &str,
    ) -> String {
        let end = match &self.outcome {
            None if self.exit_code == EXIT_CODE_TIMED_OUT => "timed_out",
            None => "failed_to_start",
            Some(outcome) => outcome.status_name(),
        };
        let streams = [stdout, stderr].map(BudgetedCapture::capture);
        let [out, err] = streams.map(|stream| format!("{}/{}", stream.kept(), stream.received()));
        let killed = self.outcome.as_ref().map_or(0, |outcome| outcome.killed_processes);
        let (code, program) = (self.exit_code, quoted(program));
        format!("{end} {code}, stdout {out}, stderr {err}, killed {killed}, {program}")
    }

    fn answer(self, stdout: BudgetedCapture, stderr: BudgetedCapture) -> Reply<'static> {
        let kept = stdout.capture().kept() + stderr.capture().kept();
        let write = move |out: &mut dyn Write| {
            let answer = ExecuteAnswer {
                exit_code: self.exit_code,
                stdout: stdout.capture(),
                stderr: stderr.capture(),
                notes: &self.notes,
                stdout_truncated: stdout.capture().dropped() > 0,
                stderr_truncated: stderr.capture().dropped() > 0,
                duration: self.duration,
                start_time: self.start_time,
                end_time: self.start_time + self.duration,
            };
            write_execute(out, &answer)
        };
        if kept <= WHOLE_MAX_BYTES {
            let mut text = Vec::new();
            write(&mut text).expect("a vector takes everything");
            return reply::json_bytes(200, text).into();
        }
        let headers = vec![reply::header("Content-Type", "application/json")];
        Reply::Live(Live { status: 200, headers, write: Box::new(move |out| Ok(write(out)?)) })
    }
}

/// PicoD's exit codes of commands that have none of their own.
const EXIT_CODE_TIMED_OUT: i32 = 124;
const EXIT_CODE_SIGNALED: i32 = -1;
const EXIT_CODE_NOT_STARTED: i32 = 1;
