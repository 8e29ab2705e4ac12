//! Every test that runs the program, as one crate.

// One crate of private modules: whatever they share is unreachable from outside.
#![allow(unreachable_pub)]

mod support;

mod encoding;
mod exit_status;
mod fallback;
mod json_request;
mod leftovers;
mod output_cap;
mod shutdown;
mod stdin;
mod tidy;
mod timeout_kill;
mod trees;
