//! `runcap run`: one command at a prompt.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::capture::Capture;
use crate::mirror::Mirror;
use crate::outcome::{Cancel, EXIT_FAILURE, End, Outcome, StartError, exit_code_of_signal};
use crate::run::{self, Concurrency, Control, GiveUp, Inheritance, Sinks, Terminal, told_to_end};
use crate::say;
use crate::spec::{
    DEFAULT_CAP_BYTES, DEFAULT_GRACE, Env, Keep, Leftovers, Limit, Overflow, Part, Rlimits, Spec,
    Stdin,
};
use crate::wire::native::request::Encoding;
use crate::wire::native::response::{Answer, Output, write_answer, write_start_error};
use crate::wire::time::HumanDuration;

use super::values;

/// Time between a signal that is passed on and KILL, unless `--grace` says otherwise.
const FORWARD_GRACE: Duration = Duration::from_secs(10);

/// Bytes of an answer that are put together before they are written.
const ANSWER_BUFFER_BYTES: usize = 16 << 10;

/// What was typed after `runcap run`.
#[derive(Debug, Args)]
#[command(next_line_help = false)]
pub(super) struct Run {
    /// End the command after this time; without it there is no limit.
    #[arg(short, long, value_name = "DUR", value_parser = values::timeout)]
    timeout: Option<Duration>,
    /// From TERM to KILL: 500ms at the deadline, 10s after a signal; 0 is KILL at once.
    #[arg(short = 'k', long, value_name = "DUR", value_parser = values::duration)]
    grace: Option<Duration>,
    /// What becomes of processes that outlive the command [default: leave; kill with output limits].
    #[arg(long, value_name = "WHAT")]
    leftovers: Option<LeftoversArg>,
    /// Kill the command when runcap dies, however that happens.
    #[arg(long)]
    die_with_parent: bool,

    /// Pass on so many bytes of each stream and drop the rest.
    #[arg(long, value_name = "SIZE", value_parser = values::cap, help_heading = "Output")]
    max_output_size: Option<usize>,
    /// Which part: head, tail, head+tail [default: head; head+tail for stderr].
    #[arg(long, value_name = "PART", value_parser = values::keep, help_heading = "Output")]
    keep: Option<Keep>,
    /// At the first byte past the limit: discard, or stop (KILL) [default: discard].
    #[arg(long, value_name = "WHAT", value_parser = values::overflow, help_heading = "Output")]
    overflow: Option<Overflow>,
    /// Limit of stdout alone, such as 4M,stop or 80K,head+tail.
    #[arg(long, value_name = "SPEC", value_parser = values::part, help_heading = "Output")]
    stdout_limit: Option<Part>,
    /// Limit of stderr alone.
    #[arg(long, value_name = "SPEC", value_parser = values::part, help_heading = "Output")]
    stderr_limit: Option<Part>,
    /// Send stderr where stdout goes, in true order.
    #[arg(long, help_heading = "Output")]
    merge_stderr: bool,
    /// Print the answer of `runcap json` instead of the output.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// No lines of runcap's own on stderr.
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,

    /// Run in this directory.
    #[arg(short = 'C', long, value_name = "DIR", help_heading = "Command")]
    cwd: Option<PathBuf>,
    /// Set a variable; may be given again.
    #[arg(short, long, value_name = "K=V", value_parser = values::variable(), help_heading = "Command")]
    env: Vec<(OsString, OsString)>,
    /// Start from an empty environment.
    #[arg(short = 'i', long, help_heading = "Command")]
    clear_env: bool,
    /// Read stdin from this file [default: runcap's own stdin].
    #[arg(long, value_name = "FILE", conflicts_with = "no_stdin", help_heading = "Command")]
    stdin: Option<PathBuf>,
    /// Nothing on stdin.
    #[arg(long, help_heading = "Command")]
    no_stdin: bool,

    /// Address space of each process.
    #[arg(long, value_name = "SIZE", value_parser = values::limit_size, help_heading = "Limits")]
    limit_memory: Option<u64>,
    /// Processes of the user; does not hold root.
    #[arg(long, value_name = "N", value_parser = values::limit_count, help_heading = "Limits")]
    limit_processes: Option<u64>,
    /// Open descriptors of each process.
    #[arg(long, value_name = "N", value_parser = values::limit_count, help_heading = "Limits")]
    limit_open_files: Option<u64>,
    /// Size of a file that is written.
    #[arg(long, value_name = "SIZE", value_parser = values::limit_size, help_heading = "Limits")]
    limit_file_size: Option<u64>,
    /// CPU seconds of each process.
    #[arg(long, value_name = "N", value_parser = values::limit_count, help_heading = "Limits")]
    limit_cpu: Option<u64>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LeftoversArg {
    /// They are killed.
    Kill,
    /// They live on.
    Leave,
}

/// Why there is no outcome to tell.
enum Failure {
    /// Nothing was started.
    Start(StartError),
    /// runcap itself failed.
    Own(String),
}

/// Runs the command and returns runcap's exit code.
pub(super) fn main(options: Run) -> u8 {
    let quiet = options.quiet;
    match try_main(options) {
        Ok(code) => code,
        Err(Failure::Start(error)) => {
            say(format_args!("{error}"));
            error.exit_code()
        }
        Err(Failure::Own(message)) => {
            let _ = quiet;
            say(format_args!("{message}"));
            EXIT_FAILURE
        }
    }
}

fn try_main(options: Run) -> Result<u8, Failure> {
    let reads = options.reads_output();
    run::prepare_process(Concurrency::OneAtATime, Inheritance::PassedOn)
        .map_err(|error| Failure::Own(format!("cannot get ready: {error}")))?;
    let end = run::watch_ending_signals().map_err(own("cannot watch signals"))?;
    let spec = options.spec(reads)?;
    let terminal = match reads {
        true => None,
        false => Terminal::of_this_process().map_err(own("cannot watch the terminal"))?,
    };
    let control = Control {
        end: Some(end),
        forward_grace: Some(options.grace.unwrap_or(FORWARD_GRACE)),
        terminal: terminal.as_ref(),
        ..Control::none()
    };
    if options.json {
        options.answer(&spec, control)
    } else if reads {
        options.mirror(&spec, control)
    } else {
        let (mut stdout, mut stderr) = (nothing()?, nothing()?);
        let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
        let outcome = run::run(&spec, sinks, control).map_err(Failure::Start)?;
        options.tell(&spec, &outcome);
        Ok(outcome.exit_code(told_to_end()))
    }
}

fn own(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Own(format!("{what}: {error}"))
}

fn nothing() -> Result<Capture, Failure> {
    Capture::new(0, Keep::Head).map_err(|_| Failure::Own("out of memory".to_owned()))
}

impl Run {
    /// Whether runcap stands between the command and its output.
    fn reads_output(&self) -> bool {
        self.max_output_size.is_some()
            || self.stdout_limit.is_some()
            || self.stderr_limit.is_some()
            || self.merge_stderr
            || self.json
    }

    fn spec(&self, reads: bool) -> Result<Spec, Failure> {
        if !reads && (self.keep.is_some() || self.overflow.is_some()) {
            let message =
                "--keep and --overflow say what happens at a limit: add --max-output-size";
            return Err(Failure::Own(message.to_owned()));
        }
        if self.merge_stderr && self.stderr_limit.is_some() {
            let message = "--merge-stderr sends everything to stdout: leave --stderr-limit out";
            return Err(Failure::Own(message.to_owned()));
        }
        let both = Part { cap: self.max_output_size, keep: self.keep, overflow: self.overflow };
        // What is passed on costs no memory, so without a word about it there is no limit.
        let cap = if self.json { DEFAULT_CAP_BYTES } else { usize::MAX };
        let limit = |part: Option<Part>, keep| {
            let part = part.unwrap_or_default().or(both);
            if part.keeps_what_stop_cannot() {
                let message = "a stream that is stopped keeps its head: leave keep or stop out";
                return Err(Failure::Own(message.to_owned()));
            }
            Ok(part.limit(cap, keep))
        };
        let leftovers = match self.leftovers {
            Some(LeftoversArg::Kill) => Leftovers::Kill,
            Some(LeftoversArg::Leave) => Leftovers::Leave,
            None if reads => Leftovers::Kill,
            None => Leftovers::Leave,
        };
        Ok(Spec {
            argv: self.command.clone(),
            cwd: self.cwd.clone(),
            env: Env { clear: self.clear_env, set: self.env.clone() },
            stdin: self.stdin()?,
            timeout: self.timeout,
            grace: self.grace.unwrap_or(DEFAULT_GRACE),
            inherit_output: !reads,
            stdout: limit(self.stdout_limit, Keep::Head)?,
            stderr: limit(self.stderr_limit, Keep::HeadTail)?,
            merge_stderr: self.merge_stderr,
            leftovers,
            rlimits: Rlimits {
                memory: self.limit_memory,
                processes: self.limit_processes,
                open_files: self.limit_open_files,
                file_size: self.limit_file_size,
                cpu_seconds: self.limit_cpu,
                core: None,
            },
            // Its output is runcap's to pass on, so it has no business with the terminal, where it
            // would be in the background and stop.
            new_session: reads && has_terminal(),
            die_with_parent: self.die_with_parent,
        })
    }

    fn stdin(&self) -> Result<Stdin, Failure> {
        match &self.stdin {
            _ if self.no_stdin => Ok(Stdin::Null),
            None => Ok(Stdin::Inherit),
            Some(path) => File::open(path).map(Stdin::File).map_err(|error| {
                Failure::Own(format!("cannot read --stdin {}: {error}", path.display()))
            }),
        }
    }

    /// Runs the command and prints the answer of `runcap json`.
    fn answer(&self, spec: &Spec, control: Control<'_>) -> Result<u8, Failure> {
        let stdout = own_stdout()?;
        let capture = |limit: Limit| {
            Capture::new(limit.cap, limit.keep)
                .map_err(|_| Failure::Own(format!("no memory for {} bytes of output", limit.cap)))
        };
        let (mut out, mut err) = (capture(spec.stdout)?, capture(spec.stderr)?);
        let sinks = Sinks { stdout: &mut out, stderr: &mut err };
        let control = Control { reader: Some(stdout.as_fd()), ..control };
        let outcome = run::run(spec, sinks, control);
        let mut writer = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, &stdout);
        let (code, written) = match &outcome {
            Ok(outcome) => {
                let answer = Answer {
                    spec,
                    outcome,
                    stdout: Output::Kept(&out),
                    stderr: Output::Kept(&err),
                    encoding: Encoding::Utf8,
                    cap_lowered_to: None,
                    tag: None,
                    event: false,
                };
                (outcome.exit_code(told_to_end()), write_answer(&mut writer, &answer))
            }
            Err(error) => {
                let utf8 = Encoding::Utf8;
                (error.exit_code(), write_start_error(&mut writer, error, utf8, None, false))
            }
        };
        match written.and_then(|()| writer.flush()) {
            Ok(()) => Ok(code),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(broken_pipe()),
            Err(error) => Err(own("cannot write to stdout")(error)),
        }
    }

    /// Runs the command and passes its output on, up to the limits.
    fn mirror(&self, spec: &Spec, control: Control<'_>) -> Result<u8, Failure> {
        let stdout = own_stdout()?;
        let stderr = File::from(
            io::stderr().as_fd().try_clone_to_owned().map_err(own("cannot use stderr"))?,
        );
        let give_up = GiveUp::new().map_err(own("out of descriptors"))?;
        let mirror = |out, limit| {
            Mirror::new(out, limit, &give_up)
                .map_err(|_| Failure::Own("no memory for the tail: lower the limit".to_owned()))
        };
        let mut mirrors = [mirror(&stdout, spec.stdout)?, mirror(&stderr, spec.stderr)?];
        let [out, err] = &mut mirrors;
        let sinks = Sinks { stdout: out, stderr: err };
        let control = Control { give_up: Some(&give_up), ..control };
        let outcome = run::run(spec, sinks, control).map_err(Failure::Start)?;
        let mut broken = None;
        for ((mirror, name), limit) in
            mirrors.iter_mut().zip(["stdout", "stderr"]).zip([spec.stdout, spec.stderr])
        {
            let finished = mirror.finish();
            let error = finished.err().map(|error| (error.kind(), error.to_string()));
            let error = mirror.error().map(|error| (error.kind(), error.to_string())).or(error);
            if let Some((kind, text)) = error {
                broken.get_or_insert((kind, format!("cannot write to {name}: {text}")));
            }
            if let Some(summary) = mirror.summary(limit).filter(|_| !self.quiet) {
                say(format_args!("{name}: {summary}"));
            }
        }
        self.tell(spec, &outcome);
        match broken {
            Some((ErrorKind::BrokenPipe, _)) => Ok(broken_pipe()),
            // The command was made to end, and that is what its exit code says.
            Some((ErrorKind::TimedOut, text)) => {
                say(format_args!("{text}"));
                Ok(outcome.exit_code(told_to_end()))
            }
            Some((_, text)) => Err(Failure::Own(text)),
            None => Ok(outcome.exit_code(told_to_end())),
        }
    }

    /// Says on stderr what the exit code alone does not.
    fn tell(&self, spec: &Spec, outcome: &Outcome) {
        if self.quiet {
            return;
        }
        match outcome.end {
            End::TimedOut => {
                let timeout = HumanDuration(spec.timeout.unwrap_or_default());
                say(format_args!("timed out after {timeout}"));
            }
            End::OutputLimit(stream) => {
                say(format_args!("{}: stopped at its limit", stream.name()));
            }
            End::Finished | End::Canceled(Cancel::Requested | Cancel::ReaderGone) => {}
        }
        if !outcome.left_running {
            return;
        }
        match outcome.end {
            End::Finished if run::kept_streams() > 0 => {
                say(format_args!("processes were left running, and their output is closed"));
            }
            // Without limits that is what was asked for.
            End::Finished if spec.inherit_output => {}
            End::Finished => say(format_args!("processes were left running")),
            _ => say(format_args!("a process could not be killed")),
        }
    }
}

fn own_stdout() -> Result<File, Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(own("cannot use stdout"))?;
    Ok(File::from(stdout))
}

/// The exit code of a program that died of SIGPIPE.
fn broken_pipe() -> u8 {
    exit_code_of_signal(13)
}

fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok() || io::stdin().is_terminal()
}
