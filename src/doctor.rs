//! `runcap doctor`: what of the kernel is in use here, and which promise is weaker without it.

use std::fs::File;
use std::io::{self, Write, pipe};
use std::os::fd::AsFd;

use crate::sys;
use crate::sys::rlimit::MarkUse;

/// One kernel interface, looked at here.
struct Finding {
    name: &'static str,
    in_use: bool,
    /// What is done instead, and which promise that weakens.
    without: &'static str,
}

/// Writes one line for each kernel interface that runcap uses.
///
/// # Errors
/// As the writer.
pub fn write_report(out: &mut dyn Write) -> io::Result<()> {
    for Finding { name, in_use, without } in findings() {
        if in_use {
            writeln!(out, "{name:<16} in use")?;
        } else {
            writeln!(out, "{name:<16} not here: {without}")?;
        }
    }
    Ok(())
}

fn findings() -> [Finding; 7] {
    let mark = sys::rlimit::mark_use();
    [
        Finding {
            name: "pidfd",
            in_use: sys::process::pidfd_open(std::process::id()).is_ok(),
            without: "ends are noticed up to 5 ms late, and a process outside the group is \
                      killed by a number that was checked just before",
        },
        Finding {
            name: "close_range",
            in_use: sys::signal::close_on_exec_from(u32::MAX),
            without: "inherited descriptors are closed one by one from /proc/self/fd",
        },
        Finding {
            name: "splice",
            in_use: splices().unwrap_or(false),
            without: "output past the cap is read and thrown away, which takes more CPU time",
        },
        Finding {
            name: "children lists",
            in_use: sys::proc::has_children_lists(),
            without: "every process in /proc is looked at after each command, which takes longer",
        },
        Finding {
            name: "subreaper",
            in_use: sys::process::become_subreaper().is_ok(),
            without: "orphans go to PID 1: a process that left the command's group outlives it",
        },
        Finding {
            name: "openat2",
            in_use: opens_within(),
            without: "the server follows every path of a client step by step, in more calls",
        },
        Finding {
            name: "inherited mark",
            in_use: mark == MarkUse::Works,
            without: match mark {
                MarkUse::Nested => {
                    "this runcap runs under another and leaves its mark in place: what left the \
                     group is told by descent, and while one command runs at a time by orphaning"
                }
                _ => {
                    "a finite RLIMIT_RTTIME is in the way, or /proc/PID/limits does not show it: \
                     what left the group, the session and its parents may outlive the command"
                }
            },
        },
    ]
}

fn opens_within() -> bool {
    let (flags, resolve) = (sys::files::flags::O_PATH, sys::files::Resolve::Beneath);
    let root = File::open("/");
    root.and_then(|root| sys::files::open_within(root.as_fd(), c".", flags, resolve)).is_ok()
}

fn splices() -> io::Result<bool> {
    let (reader, mut writer) = pipe()?;
    writer.write_all(b"x")?;
    let null = File::options().write(true).open("/dev/null")?;
    Ok(sys::pipe::splice(reader.as_fd(), null.as_fd(), 1)? == 1)
}
