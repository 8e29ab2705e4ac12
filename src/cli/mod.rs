//! The command line: what was typed, turned into what a mode needs.

mod run;
mod values;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::doctor;
use crate::json;
use crate::outcome::EXIT_FAILURE;
use crate::say;

/// Runs commands within bounds that hold: output, time, memory and leftovers.
#[derive(Debug, Parser)]
#[command(name = "runcap", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs one command, and ends with its exit code.
    ///
    /// Without output limits the command has runcap's own stdin, stdout and stderr. With
    /// --max-output-size, --stdout-limit, --stderr-limit, --merge-stderr or --json runcap reads its
    /// output and passes it on.
    ///
    /// Example: runcap run -t 5m --max-output-size 4M -- make test
    Run(Box<run::Run>),
    /// Ends with 0 when every request on stdin was carried out, whatever the commands did.
    ///
    /// Reads JSON requests from stdin, runs one after the other and writes one JSON answer a line
    /// to stdout. Ends with 1 when a request was refused or there was none, and with 125 when
    /// stdin or stdout failed.
    ///
    /// Example: echo '{"command":["echo","hi"]}' | runcap json
    #[command(verbatim_doc_comment)]
    Json(Json),
    /// Shows which kernel interfaces are in use here, and which promise is weaker without each.
    Doctor,
}

#[derive(Debug, Args)]
struct Json {
    /// Bytes kept of each stream, where a request does not say.
    #[arg(long, value_name = "SIZE", default_value = "10M", value_parser = values::cap)]
    max_output_size: usize,
    /// Timeout, where a request does not say.
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = values::timeout)]
    default_timeout: Duration,
    /// Longest timeout and grace; a request for more is refused.
    #[arg(long, value_name = "DUR", default_value = "24h", value_parser = values::timeout)]
    max_timeout: Duration,
    /// Bytes of one request; a larger one is refused and ends the run.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = values::size)]
    max_request_size: usize,
    /// Kill the running command when runcap dies, however that happens.
    #[arg(long)]
    die_with_parent: bool,
}

/// Does what the arguments say and returns runcap's exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and end with 0, also when nobody reads them.
            let _ = error.print();
            return if error.use_stderr() { EXIT_FAILURE } else { 0 };
        }
    };
    match cli.mode {
        Mode::Run(options) => run::main(*options),
        Mode::Doctor => match doctor::write_report(&mut std::io::stdout()) {
            Ok(()) => 0,
            // Nobody reads on: that is the reader's choice.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            Err(error) => {
                say(format_args!("cannot write to stdout: {error}"));
                EXIT_FAILURE
            }
        },
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
    }
}
