//! Every test that runs the program, as one crate.
#![allow(unreachable_pub, reason = "nobody but these tests sees them")]

mod support;

mod encoding;
mod exit_status;
mod json_request;
mod output_cap;
mod stdin;
mod tidy;
mod trees;
