//! Every test that runs the program, as one crate.

mod support;

mod encoding;
mod exit_status;
mod json_request;
mod output_cap;
mod stdin;
mod tidy;
mod trees;
