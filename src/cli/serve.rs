//! What was typed after `runcap serve`, turned into the server's options or a refusal.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::outcome::EXIT_FAILURE;
use crate::say;
use crate::serve::Settings;
use crate::serve::log::Format;
use crate::serve::transport::Listen;
use crate::token::Token;

use super::values;

/// What was typed after `runcap serve`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Address and port, or unix:PATH.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: Listen,
    /// All paths of clients are below this directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// Clients must know the token in this file [default: $RUNCAP_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let everybody in, also from other machines.
    #[arg(long, conflicts_with = "token_file")]
    no_auth: bool,
    /// Bytes kept of each stream of a command.
    #[arg(long, value_name = "SIZE", default_value = "10M", value_parser = values::server_cap)]
    #[arg(allow_hyphen_values = true)]
    max_output_size: usize,
    /// Timeout unless a request says.
    #[arg(long, value_name = "DUR", default_value = "60s", value_parser = values::timeout)]
    default_timeout: Duration,
    /// Longest timeout, a longer one is cut to it.
    #[arg(long, value_name = "DUR", default_value = "1h", value_parser = values::timeout)]
    max_timeout: Duration,
    /// Captured bytes of all commands together [default: a quarter of the memory].
    #[arg(long, value_name = "SIZE", value_parser = values::limit_size)]
    output_budget: Option<u64>,
    /// Commands at once.
    #[arg(long, value_name = "N", default_value = "128", value_parser = values::count)]
    max_commands: usize,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value = "512", value_parser = values::count)]
    max_connections: usize,
    /// Bytes of a JSON or multipart body.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = values::size)]
    max_body_size: usize,
    /// Bytes of a file that is written raw.
    #[arg(long, value_name = "SIZE", default_value = "256G", value_parser = values::limit_size)]
    max_file_size: u64,
    /// How long a connection may lie idle between requests.
    #[arg(long, value_name = "DUR", default_value = "75s", value_parser = values::timeout)]
    keep_alive: Duration,
    /// End after so long without a connection [default: never].
    #[arg(long, value_name = "DUR", value_parser = values::timeout)]
    idle_exit: Option<Duration>,
    /// A line on stderr for each answer: text, json or off.
    #[arg(long, value_name = "WHAT", default_value = "text", value_parser = values::log)]
    log: Format,
}

pub(super) fn main(options: Options) -> u8 {
    if options.default_timeout > options.max_timeout {
        say(format_args!(
            "--default-timeout is longer than --max-timeout: raise the one or lower the other"
        ));
        return EXIT_FAILURE;
    }
    match token(&options) {
        Ok(token) => crate::serve::serve(crate::serve::Options {
            listen: options.listen,
            workspace: options.workspace,
            token,
            no_auth: options.no_auth,
            settings: Settings {
                cap: options.max_output_size,
                default_timeout: options.default_timeout,
                timeout_max: options.max_timeout,
                commands_max: options.max_commands,
                body_max_bytes: options.max_body_size as u64,
                file_max_bytes: options.max_file_size,
                output_budget: options.output_budget,
            },
            connections_max: options.max_connections,
            keep_alive: options.keep_alive,
            idle_exit: options.idle_exit,
            log: options.log,
        }),
        Err(message) => {
            say(format_args!("{message}"));
            EXIT_FAILURE
        }
    }
}

/// The token of the file, or else of the variable, which is taken out of the environment in any
/// case.
fn token(options: &Options) -> Result<Option<Token>, String> {
    let variable = Token::from_environment();
    match &options.token_file {
        Some(file) => Token::from_file(file).map(Some),
        None if options.no_auth && !matches!(variable, Ok(None)) => {
            Err("--no-auth and RUNCAP_TOKEN contradict each other: leave one out".to_owned())
        }
        None => variable,
    }
}
