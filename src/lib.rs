//! runcap runs commands whose output, time and leftovers nobody can predict.
#[cfg(not(target_os = "linux"))]
compile_error!("runcap relies on Linux process groups, pidfds and /proc; it builds for Linux only");

pub mod cli;
pub mod json;
pub mod live;
pub mod spec;
pub mod capture;
pub mod outcome;
pub mod run;
mod quote;
mod sys;
pub mod wire;
