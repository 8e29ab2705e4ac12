//! The `runcap` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(runcap::cli::main(std::env::args_os()))
}
