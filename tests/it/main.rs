//! Every test that runs the program, as one crate.
#![allow(unreachable_pub, reason = "nobody but these tests sees them")]

mod http;
mod support;

mod client_files;
mod client_hostile;
mod client_odd;
mod client_run;
mod encoding;
mod engine;
mod exit_status;
mod fallback;
mod fuzz_seeds;
mod json_request;
mod leftovers;
mod output_cap;
mod readme;
mod root;
mod run_cli;
mod serve_answers;
mod serve_auth;
mod serve_end;
mod serve_exec;
mod serve_execute;
mod serve_files;
mod serve_floods;
mod serve_framing;
mod serve_front;
mod serve_listing;
mod serve_log;
mod serve_processes;
mod serve_sandbox_files;
mod serve_scarcity;
mod serve_uploads;
mod serve_way_back;
mod shutdown;
mod stdin;
mod terminal;
mod tidy;
mod timeout_kill;
mod trees;
