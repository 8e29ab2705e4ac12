//! The first process of a command and the group it leads: observed, signalled, reaped last.
//!
//! The only code that signals. A group's number stays the leader's as long as the leader is not
//! reaped, zombie or not; that is why [`Leader::reap`] takes the leader away.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::proc::live_group_members;
use crate::sys::process::{self, Reaped};

/// The unreaped leader of a process group.
pub(super) struct Leader {
    pid: u32,
    /// `None` where the kernel has no pidfds or no descriptor is left: then the poll loop looks
    /// again after a short while.
    pidfd: Option<OwnedFd>,
    ended: bool,
}

impl Leader {
    /// Takes over the child `pid`, which leads its own group.
    pub(super) fn new(pid: u32) -> Leader {
        Leader { pid, pidfd: process::pidfd_open(pid).ok(), ended: false }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable once the leader has ended.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether the leader has ended; it is not reaped by asking.
    pub(super) fn has_ended(&mut self) -> bool {
        // ECHILD: somebody else in this process reaped it, so it has ended.
        self.ended = self.ended || process::has_ended(self.pid).unwrap_or(true);
        self.ended
    }

    /// Sends `signal` to the leader's group, and to the leader in case it left its group.
    pub(super) fn signal_group(&self, signal: i32) {
        // ESRCH says that nobody is there any more, EPERM that all changed their user; what is
        // alive after KILL is found by looking, never by this answer ("at least one" is success).
        let _ = process::kill_group(self.pid, signal);
        let _ = process::kill(self.pid, signal);
    }

    /// A live process of the group, if there is one.
    pub(super) fn live_member(&self) -> Option<Member> {
        let pid = *live_group_members(self.pid).first()?;
        Some(Member { pidfd: process::pidfd_open(pid).ok() })
    }

    /// Reaps the leader; `None` when it has not ended (or was reaped by somebody else).
    pub(super) fn reap(self) -> Option<Reaped> {
        process::reap(self.pid).ok().flatten()
    }
}

/// A process that is waited for, and nothing else.
pub(super) struct Member {
    pidfd: Option<OwnedFd>,
}

impl Member {
    /// Readable once the process has ended.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }
}
