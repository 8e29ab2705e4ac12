//! The command line: what was typed, turned into what a mode needs.

mod client;
mod help;
mod options;
mod run;
mod serve;
#[doc(hidden)]
pub mod values;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser, Subcommand};

use crate::doctor;
use crate::json;
use crate::outcome::EXIT_FAILURE;
use crate::say;

/// Runs commands within bounds that hold: output, time, memory and leftovers.
#[derive(Debug, Parser)]
#[command(
    name = "runcap",
    version,
    disable_help_subcommand = true,
    override_usage = "runcap <MODE> [OPTIONS]",
    subcommand_value_name = "MODE",
    subcommand_help_heading = "Modes",
    after_help = "Example: runcap run -t 5m --max-output-size 4M -- make test",
    after_long_help = "\
Each mode has options of its own: runcap run --help.

Example: runcap run -t 5m --max-output-size 4M -- make test"
)]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs one command, and ends with its exit code.
    #[command(
        override_usage = "runcap run [OPTIONS] [--] COMMAND [ARG]...",
        after_long_help = "\
Without limits on its output the command has runcap's own stdin, stdout and stderr. With one, or
with --merge-stderr or --json, runcap reads the output and passes it on. A SIZE is 4096, 64K, 4M
or 1G, a DUR is 30 (seconds), 500ms or 1m30s. `runcap help exit-codes` explains exit codes.

Example: runcap run -t 5m --max-output-size 4M -- make test"
    )]
    Run(Box<options::Options>),
    /// Ends with 0 when every request on stdin was carried out, whatever the commands did.
    #[command(after_long_help = "\
Reads JSON requests from stdin, runs one after the other and writes one JSON answer a line to
stdout. Ends with 1 when a request was refused or there was none, and with 125 when stdin or
stdout failed. `runcap help json` lists the fields of both.

Example: echo '{\"command\":[\"echo\",\"hi\"]}' | runcap json")]
    Json(Json),
    /// Serves HTTP to clients that speak PicoD's API.
    #[command(after_long_help = "\
Ends with 0 after TERM, once every request that had come was answered.

Example: runcap serve --listen 127.0.0.1:8080 --token-file /run/secrets/runcap")]
    Serve(Box<serve::Options>),
    /// Runs commands and moves files on a server that speaks the sandbox dialect.
    #[command(after_long_help = "\
A command's output is passed on as it comes and never held, unless --capture says so; a file is
moved in ranges. The token is in a file or in RUNCAP_TOKEN, never on the command line.

Example: runcap client --url http://127.0.0.1:8080 run -- make test")]
    Client(Box<client::Options>),
    /// Shows which kernel interfaces are in use here, and which promise is weaker without each.
    #[command(after_long_help = "Example: runcap doctor")]
    Doctor,
    /// Prints the exit codes (exit-codes), or the fields of requests and answers (json).
    #[command(
        override_usage = "runcap help [TOPIC]",
        after_long_help = "Example: runcap help exit-codes"
    )]
    Help(help::Help),
}

#[derive(Debug, Args)]
struct Json {
    /// Bytes kept of each stream unless a request says.
    #[arg(long, value_name = "SIZE", default_value = "10M", value_parser = values::cap)]
    max_output_size: usize,
    /// Timeout unless a request says.
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = values::timeout)]
    default_timeout: Duration,
    /// Longest timeout and grace, above it is refused.
    #[arg(long, value_name = "DUR", default_value = "24h", value_parser = values::timeout)]
    max_timeout: Duration,
    /// Bytes of one request, a larger one ends the run.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = values::size)]
    max_request_size: usize,
    /// Kill the running command when runcap dies, however that happens.
    #[arg(long)]
    die_with_parent: bool,
}

/// Does what the arguments say and returns runcap's exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let arguments: Vec<_> = arguments.collect();
    // Scripts ask for it at every start, and it needs no command line to be built.
    if let [_, only] = &arguments[..]
        && (only == "--version" || only == "-V")
    {
        return exit_code_of_text(writeln!(io::stdout(), "runcap {}", env!("CARGO_PKG_VERSION")));
    }
    // Behind `--` stands the command, and what it is told is its own.
    let whole = arguments.iter().take_while(|one| *one != "--").any(|one| one == "--help");
    let mut command = help::command(whole);
    let parsed = command.try_get_matches_from_mut(arguments);
    match parsed.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
        Ok(cli) => start(cli.mode),
        Err(error) if error.use_stderr() => {
            // Nobody may be there to read it; the exit code says as much.
            let _ = error.print();
            EXIT_FAILURE
        }
        Err(help_or_version) => exit_code_of_text(help_or_version.print()),
    }
}

fn start(mode: Mode) -> u8 {
    match mode {
        Mode::Run(options) => run::main(&options),
        Mode::Json(options) if options.default_timeout > options.max_timeout => {
            say(format_args!(
                "--default-timeout is longer than --max-timeout: raise the one or lower the other"
            ));
            EXIT_FAILURE
        }
        Mode::Json(options) => json::serve_stdin(&json::Options {
            cap: options.max_output_size,
            default_timeout: options.default_timeout,
            timeout_max: options.max_timeout,
            request_max_bytes: options.max_request_size,
            die_with_parent: options.die_with_parent,
        }),
        Mode::Serve(options) => serve::main(*options),
        Mode::Client(options) => client::main(&options),
        Mode::Doctor => exit_code_of_text(doctor::write_report(&mut io::stdout())),
        Mode::Help(help) => exit_code_of_text(help::print(&help, &mut io::stdout())),
    }
}

/// The exit code of a runcap that only had a text to print.
fn exit_code_of_text(written: io::Result<()>) -> u8 {
    match written {
        Ok(()) => 0,
        // Nobody reads on: that is the reader's choice.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => 0,
        Err(error) => {
            say(format_args!("cannot write to stdout: {error}"));
            EXIT_FAILURE
        }
    }
}
