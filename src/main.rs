//! The `runcap` program.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: runcap::Allocator = runcap::Allocator;

fn main() -> ExitCode {
    ExitCode::from(runcap::cli::main(std::env::args_os()))
}
