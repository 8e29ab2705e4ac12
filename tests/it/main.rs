//! Every test that runs the program, as one crate.
#![allow(unreachable_pub, reason = "nobody but these tests sees them")]

mod support;

mod encoding;
mod engine;
mod exit_status;
mod fallback;
mod fuzz_seeds;
mod json_request;
mod leftovers;
mod output_cap;
mod readme;
mod run_cli;
mod shutdown;
mod stdin;
mod terminal;
mod tidy;
mod timeout_kill;
mod trees;
