//! runcap runs commands whose output, time and leftovers nobody can predict.
#[cfg(not(target_os = "linux"))]
compile_error!("runcap relies on Linux process groups, pidfds and /proc; it builds for Linux only");

pub mod capture;
pub mod cli;
pub mod doctor;
pub mod json;
pub mod live;
pub mod outcome;
mod quote;
pub mod run;
pub mod spec;
mod sys;
pub mod wire;

#[doc(hidden)]
pub use sys::feature;

/// One line of runcap's own on stderr.
fn say(line: std::fmt::Arguments<'_>) {
    // Nobody may be there to read it.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("runcap: {line}\n"));
}
