//! runcap runs commands whose output, time and leftovers nobody can predict, and promises bounds
//! that hold: it keeps at most so many bytes of a stream and counts the rest, never lets a command
//! block or die because of the cap, ends it and everything it started at the deadline, and answers.
//!
//! ```
//! use runcap::capture::Capture;
//! use runcap::run::{Control, Sinks, run};
//! use runcap::spec::{Keep, Limit, Overflow, Spec};
//! use std::time::Duration;
//!
//! let limit = Limit { cap: 5, keep: Keep::Head, overflow: Overflow::Discard };
//! let argv = vec!["echo".into(), "hello, world".into()];
//! let spec = Spec::new(argv, Some(Duration::from_secs(10)), limit);
//! let mut stdout = Capture::new(limit.cap, limit.keep)?;
//! let mut stderr = Capture::new(limit.cap, limit.keep)?;
//! let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
//! let outcome = run(&spec, sinks, Control::none())?;
//! assert_eq!(outcome.leader, Some(runcap::outcome::Exit::Code(0)));
//! assert_eq!((stdout.head(), stdout.received()), (&b"hello"[..], 13));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Map
//! Arrows only go down: a front (`cli`, `json` and `live`, `serve`, `client`, `doctor`) knows
//! `wire`, which turns bytes into types and back without any I/O, and the core: `spec` (what to
//! run), `capture` (what is kept), `outcome` (how it ended), `run` (makes it so) and `sys` (all
//! unsafe code). The core knows no JSON and no flags. One function, [`run::run`], runs a command in
//! every mode.
//!
//! Read [`spec`], [`capture`] and [`outcome`] first, then `run/mod.rs`, `run/supervise.rs` (the
//! poll loop) and `run/copy.rs`; then `run/members.rs` and `run/sweep.rs` for what outlives a
//! leader; then [`wire`] and `json`; last [`serve::transport`], whose text says why a server has
//! connections of its own, `serve/routes.rs`, and [`client`], its other half.
//!
//! # Invariants
//! 1. Kept ≤ cap for every policy, chunking and stream; kept + dropped = received; the head is a
//!    prefix and the tail a suffix of what was received.
//! 2. Memory of one command ≤ the bytes it keeps + 256 KiB a stream + the request. An answer is
//!    written straight to its destination.
//! 3. `run` returns within timeout + grace + drain + 100 ms and the kernel's own teardown,
//!    whatever descendants do; what KILL does not end is waited for at most 750 ms more, then
//!    reported. No thread, descriptor or zombie outlives the answer by more than that.
//! 4. At the deadline nothing the command started survives: its group, and what left it by setsid,
//!    double fork, closed pipes or a cleared environment. Nothing else is ever signalled.
//! 5. After a normal exit [`spec::Leftovers`] decides; a command that leaves nothing pays one
//!    small read for the check.
//! 6. Everything captured before a timeout, kill, cap or drain limit is in the answer.
//! 7. Exactly one status. Timed out is decided before the leader's exit is known, or not at all.
//! 8. The child starts clean: empty signal mask, default dispositions, no descriptor beyond 0, 1
//!    and 2, stdin /dev/null unless given.
//! 9. A signal to runcap ends what runs as at a deadline, and it is still answered.
//! 10. Nothing without a limit, and hitting one is visible. A request costs its own connection at
//!     most: every head, body, wait, buffer and thread of a server is bounded, and what is cut
//!     never looks whole, on either side.
//! 11. A byte stream is decoded once, by one stateful decoder; no character is split.
//! 12. pidfd, close_range, splice and children lists are used where the kernel has them, with
//!     fallbacks that tests force.

#[cfg(not(target_os = "linux"))]
compile_error!("runcap relies on Linux process groups, pidfds and /proc: it builds for Linux only");

pub mod capture;
pub mod outcome;
mod quote;
pub mod run;
pub mod spec;
mod sys;

pub mod wire;

pub mod cli;
pub mod client;
pub mod doctor;
pub mod json;
pub mod live;
pub mod mirror;
pub mod serve;
pub mod token;

#[doc(hidden)]
pub use sys::{alloc::Allocator, feature};

/// One line of runcap's own on stderr.
fn say(line: std::fmt::Arguments<'_>) {
    // Nobody may be there to read it.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("runcap: {line}\n"));
}

/// Compiles and runs the example of README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
