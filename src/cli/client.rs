//! What was typed after `runcap client`, carried out.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, Subcommand};

use crate::client::get::{get, get_to};
use crate::client::ls::ls;
use crate::client::put::{put, put_from};
use crate::client::run::{Ran, STDIN_MAX_BYTES, run};
use crate::client::transfer::JOBS_DEFAULT;
use crate::client::{self, Address, Error, Server};
use crate::outcome::{
    EXIT_FAILURE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OUTPUT_LIMIT, EXIT_TIMED_OUT, Stream,
    exit_code_of_signal,
};
use crate::run::{told_to_end, watch_ending_signals};
use crate::say;
use crate::sys::poll::{Interest, PollFd, poll};
use crate::sys::signal::{PIPE, survive_file_size_limit};
use crate::token::Token;
use crate::wire::json_string::write_string;
use crate::wire::picod::files::GoFileMode;
use crate::wire::sandbox::client::answers::shown;
use crate::wire::sandbox::client::entries::{RemoteEntry, RemoteKind};
use crate::wire::sandbox::client::request::{Cmd, ExecRequest};
use crate::wire::time::Rfc3339;

use super::values;

/// The largest number of a signal that an exit code can tell: the sum with 128 is a byte.
const SIGNAL_MAX: i32 = 127;

/// Stack of the thread that waits for signals.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// What was typed after `runcap client`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Where the server is: http://HOST:PORT or unix:PATH.
    #[arg(long, value_name = "URL")]
    url: Address,
    /// The server's token is in this file [default: $RUNCAP_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// No progress, no warnings.
    #[arg(short, long)]
    quiet: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Runs a command there, and ends with its exit code.
    #[command(
        override_usage = "runcap client --url URL run [OPTIONS] [--] COMMAND [ARG]...",
        after_long_help = "Example: runcap client --url http://127.0.0.1:8080 run -- make test"
    )]
    Run(Run),
    /// Fetches a file.
    #[command(after_long_help = "Example: runcap client --url unix:box.sock get /var/log/app .log")]
    Get(Get),
    /// Stores a file.
    #[command(after_long_help = "Example: tar -c src | runcap client --url unix:s put - /src.tar")]
    Put(Put),
    /// Lists a directory.
    #[command(after_long_help = "Example: runcap client --url http://127.0.0.1:8080 ls -l /tmp")]
    Ls(Ls),
}

#[derive(Debug, Args)]
struct Run {
    /// The server's shell reads COMMAND, which is one argument.
    #[arg(long)]
    shell: bool,
    /// Directory of the command [default: the server's workspace].
    #[arg(short = 'C', long, value_name = "DIR")]
    cwd: Option<String>,
    /// Variable set over the server's; may be given again.
    #[arg(short, long, value_name = "K=V", value_parser = values::variable())]
    env: Vec<(OsString, OsString)>,
    /// Give the command this file as its stdin, - is runcap's own [default: nothing].
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// When the command is ended [default: the server's longest].
    #[arg(short, long, value_name = "DUR", value_parser = values::timeout)]
    timeout: Option<Duration>,
    /// Hold the output, at most 64 MiB, and print it at the end.
    #[arg(long)]
    capture: bool,
    /// With --capture: print one JSON object instead.
    #[arg(long, requires = "capture")]
    json: bool,
    /// What runs.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Get {
    /// The file there.
    #[arg(value_name = "REMOTE")]
    remote: OsString,
    /// The file here, - is stdout.
    #[arg(value_name = "LOCAL")]
    local: PathBuf,
    /// Its mode here, octal [default: that of the file that stood there].
    #[arg(long, value_name = "MODE", value_parser = values::mode)]
    mode: Option<u32>,
    /// Ranges at once, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = JOBS_DEFAULT, value_parser = values::jobs)]
    jobs: usize,
}

#[derive(Debug, Args)]
struct Put {
    /// The file here, - is stdin.
    #[arg(value_name = "LOCAL")]
    local: PathBuf,
    /// The file there.
    #[arg(value_name = "REMOTE")]
    remote: OsString,
    /// Its mode there, octal [default: that of the file that stood there, else 644].
    #[arg(long, value_name = "MODE", value_parser = values::mode)]
    mode: Option<u32>,
    /// Ranges at once, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = JOBS_DEFAULT, value_parser = values::jobs)]
    jobs: usize,
}

#[derive(Debug, Args)]
struct Ls {
    /// Mode, size and time of each entry too.
    #[arg(short)]
    long: bool,
    /// The directory there.
    #[arg(value_name = "REMOTE", default_value = "/")]
    remote: OsString,
}

pub(super) fn main(options: &Options) -> u8 {
    match try_main(options) {
        Ok(code) => code,
        // Who reads stdout has gone, which is its choice.
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            exit_code_of_signal(PIPE)
        }
        Err(error) => {
            say(format_args!("{error}"));
            exit_code_of_error(&error)
        }
    }
}

/// The exit code of a runcap that could not do what it was asked for. A command that could not be
/// started has those of `runcap run`, as far as the server's words tell.
fn exit_code_of_error(error: &Error) -> u8 {
    match error {
        Error::Refused(400, text) if text.starts_with("failed to spawn ") => {
            // Behind the program's name, which may say anything.
            let why = text.split_once("': ").map_or("", |(_, why)| why);
            let says = |what: &[&str]| what.iter().any(|what| why.contains(what));
            match () {
                () if why.starts_with("cannot enter") => EXIT_FAILURE,
                () if says(&["cannot execute", "Permission denied"]) => EXIT_NOT_EXECUTABLE,
                () if says(&["not found", "No such file"]) => EXIT_NOT_FOUND,
                () => EXIT_FAILURE,
            }
        }
        _ => EXIT_FAILURE,
    }
}

fn try_main(options: &Options) -> Result<u8, Error> {
    // Taken out of the environment in any case.
    let variable = Token::from_environment();
    let token = match &options.token_file {
        Some(file) => Token::from_file(file).map(Some),
        None => variable,
    };
    let token = token.map_err(Error::Unspeakable)?;
    let server = Server::new(options.url.clone(), token);
    end_on_signals().map_err(Error::Output)?;
    survive_file_size_limit();
    server.check()?;
    let is_shown = !options.quiet;
    match &options.action {
        Action::Run(action) => run_there(&server, action, options.quiet),
        Action::Get(Get { remote, local, mode, jobs }) => {
            match local.as_os_str() == "-" {
                true if mode.is_some() => {
                    let what = "--mode is that of a file, and stdout is none: leave it out";
                    return Err(Error::Unspeakable(what.to_owned()));
                }
                true => get_to(&server, remote.as_bytes(), &mut io::stdout(), is_shown)?,
                false => get(&server, remote.as_bytes(), local, *mode, *jobs, is_shown)?,
            }
            Ok(0)
        }
        Action::Put(Put { local, remote, mode, jobs }) => {
            match local.as_os_str() == "-" {
                true => put_from(&server, &mut io::stdin(), remote.as_bytes(), *mode, is_shown)?,
                false => put(&server, local, remote.as_bytes(), *mode, *jobs, is_shown)?,
            }
            Ok(0)
        }
        Action::Ls(action) => {
            let mut out = BufWriter::new(io::stdout());
            ls(&server, action.remote.as_bytes(), &mut |entry| {
                print_entry(&mut out, &entry, action.long).map_err(Error::Output)
            })?;
            out.flush().map_err(Error::Output)?;
            Ok(0)
        }
    }
}

/// Ends this process at the first signal that asks for it, and leaves no half of a file.
fn end_on_signals() -> io::Result<()> {
    let end = watch_ending_signals()?;
    let wait = move || {
        loop {
            let mut fds = [PollFd::new(Some(end.stop()), Interest::Read)];
            // A poll that fails (out of kernel memory) sees nothing and is tried again.
            let _ = poll(&mut fds, None);
            if let Some(signal) = told_to_end() {
                client::abandon();
                // A server ends the command of a client that is gone.
                std::process::exit(exit_code_of_signal(signal).into());
            }
        }
    };
    std::thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(wait).map(drop)
}

fn run_there(server: &Server, action: &Run, quiet: bool) -> Result<u8, Error> {
    let script;
    let cmd = if action.shell {
        let [one] = &action.command[..] else {
            let what = "--shell takes one argument: quote the whole script";
            return Err(Error::Unspeakable(what.to_owned()));
        };
        script = one.to_str().ok_or_else(|| {
            Error::Unspeakable("the script is no UTF-8 text: store it as a file there".to_owned())
        })?;
        Cmd::Shell(script)
    } else {
        Cmd::Argv(&action.command)
    };
    let stdin = action.stdin.as_ref().map(read_stdin).transpose()?;
    // The last value of a variable wins, as for `runcap run`.
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    for (name, value) in &action.env {
        env.retain(|(other, _)| other != name);
        env.push((name.clone(), value.clone()));
    }
    let request = ExecRequest {
        cmd,
        cwd: action.cwd.as_deref(),
        env: &env,
        stdin: stdin.as_deref(),
        timeout: action.timeout,
        tag: None,
    };
    let outs =
        [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    let [stdout, stderr] = outs.map(|fd| fd.map(File::from).map_err(Error::Output));
    let mut outs = [stdout?, stderr?];
    let mut pass_on = |stream: Stream, text: &str| match action.capture {
        true => Ok(()),
        false => outs[stream as usize].write_all(text.as_bytes()),
    };
    let ran = run(server, &request, action.capture, &mut pass_on)?;
    let [stdout, stderr] = &mut outs;
    if action.json {
        let mut out = BufWriter::new(stdout);
        write_ran(&mut out, &ran).and_then(|()| out.flush()).map_err(Error::Output)?;
    } else if action.capture {
        stdout.write_all(ran.stdout.as_bytes()).map_err(Error::Output)?;
        stderr.write_all(ran.stderr.as_bytes()).map_err(Error::Output)?;
    }
    for stream in ran.truncated.iter().filter(|_| !quiet) {
        say(format_args!("{}: the server cut the rest of it", stream.name()));
    }
    if let Some(reason) = ran.ended.reason.as_deref().filter(|_| !quiet) {
        say(format_args!("{}", shown(reason)));
    }
    Ok(exit_code_of(&ran))
}

/// The text that a command is given, from a file or from stdin.
fn read_stdin(path: &PathBuf) -> Result<String, Error> {
    let failed = |error| Error::Local(path.clone(), error);
    let mut source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    source.by_ref().take(STDIN_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > STDIN_MAX_BYTES {
        return Err(Error::TooLarge(STDIN_MAX_BYTES, "put it there as a file, and redirect that"));
    }
    String::from_utf8(bytes).map_err(|_| {
        let what = "stdin is no UTF-8 text: put it there as a file, and redirect that";
        Error::Unspeakable(what.to_owned())
    })
}

/// The exit code of `runcap run` for a command that ended like this.
fn exit_code_of(ran: &Ran) -> u8 {
    let ended = &ran.ended;
    match (ended.status.as_deref(), ended.exit_code, ended.signal) {
        _ if ended.timed_out => EXIT_TIMED_OUT,
        (Some("output_limit"), ..) => EXIT_OUTPUT_LIMIT,
        (Some("canceled"), ..) => EXIT_FAILURE,
        // No exit code is another one, and never success.
        (_, Some(code), _) => u8::try_from(code).unwrap_or(EXIT_FAILURE),
        (_, None, Some(signal)) => match i32::try_from(signal) {
            Ok(signal @ 1..=SIGNAL_MAX) => exit_code_of_signal(signal),
            _ => EXIT_FAILURE,
        },
        (_, None, None) => EXIT_FAILURE,
    }
}

/// Writes how a command went as one JSON object on a line.
fn write_ran(out: &mut dyn Write, ran: &Ran) -> io::Result<()> {
    let ended = &ran.ended;
    let number =
        |number: Option<i64>| number.map_or("null".to_owned(), |number| number.to_string());
    write!(
        out,
        r#"{{"exit_code":{},"signal":{},"timed_out":{},"duration_ms":{}"#,
        number(ended.exit_code),
        number(ended.signal),
        ended.timed_out,
        ended.duration_ms,
    )?;
    let texts = [("status", &ended.status), ("reason", &ended.reason)];
    for (key, text) in texts {
        if let Some(text) = text {
            write!(out, ",\"{key}\":")?;
            write_string(out, text)?;
        }
    }
    for (stream, text) in [(Stream::Stdout, &ran.stdout), (Stream::Stderr, &ran.stderr)] {
        write!(out, ",\"{}\":", stream.name())?;
        write_string(out, text)?;
        if ran.truncated.contains(&stream) {
            write!(out, ",\"{}_truncated\":true", stream.name())?;
        }
    }
    out.write_all(b"}\n")
}

/// Prints an entry on a line of its own, whatever its name is.
fn print_entry(out: &mut dyn Write, entry: &RemoteEntry, is_long: bool) -> io::Result<()> {
    let name = shown(&entry.name);
    if !is_long {
        return writeln!(out, "{name}");
    }
    let kind = match entry.kind {
        RemoteKind::Directory => 0o040_000,
        RemoteKind::Symlink => 0o120_000,
        RemoteKind::File | RemoteKind::Other => 0o100_000,
    };
    let mode = GoFileMode(kind | entry.mode.unwrap_or(0));
    let since = |ms: i64| Duration::from_millis(ms.unsigned_abs());
    let time = entry.mtime_ms.map(|ms| match ms {
        0.. => UNIX_EPOCH + since(ms),
        _ => UNIX_EPOCH.checked_sub(since(ms)).unwrap_or(UNIX_EPOCH),
    });
    let time = time.map_or("-".to_owned(), |time| Rfc3339(time).to_string());
    writeln!(out, "{mode} {:>12} {time} {name}", entry.size)
}
