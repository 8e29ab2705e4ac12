//! The first process of a command and the group it leads: observed, signalled, reaped last.
//!
//! The only code that signals. A group's number stays the leader's as long as the leader is not
//! reaped, zombie or not; that is why [`Leader::reap`] takes the leader away.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::proc::{self, Process};
use crate::sys::process::{self, Reaped};
use crate::sys::signal::KILL;

use super::members::Members;
use super::registry::{self, Started};

/// The unreaped leader of a process group.
pub(super) struct Leader {
    pid: u32,
    /// `None` where the kernel has no pidfds or no descriptor is left: then the poll loop looks
    /// again after a short while.
    pidfd: Option<OwnedFd>,
    ended: bool,
    pub(super) members: Members,
}

impl Leader {
    /// Takes over a child that leads its own group.
    pub(super) fn new(started: Started) -> Leader {
        let pidfd = process::pidfd_open(started.pid).ok();
        Leader { pid: started.pid, pidfd, ended: false, members: Members::new(started) }
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

    /// The signal by which the leader has stopped since this was last asked.
    pub(super) fn has_stopped(&mut self) -> Option<i32> {
        process::has_stopped(self.pid)
    }

    /// Sends `signal` to the leader's group, and to the leader where it left its group. Nobody
    /// gets it twice: a second TERM means "at once" to many programs.
    pub(super) fn signal_group(&self, signal: i32) {
        // ESRCH says that nobody is there any more, EPERM that all changed their user; what is
        // alive after KILL is found by looking, never by this answer ("at least one" is success).
        let _ = process::kill_group(self.pid, signal);
        if process::group_of(self.pid).is_ok_and(|group| group != self.pid) {
            let _ = process::kill(self.pid, signal);
        }
    }

    /// Sends KILL to a process of the command that is not its leader, through a descriptor, so
    /// that it reaches that process or none; returns what to wait for.
    pub(super) fn kill_member(&self, member: &Process) -> Member {
        let pidfd = process::pidfd_open(member.pid).ok();
        // Looked at once more after the descriptor is open: if the number changed hands before,
        // the descriptor is of a stranger; if it does later, it is of a dead process.
        let same = proc::process(member.pid).is_some_and(|now| self.members.holds(&now));
        if same {
            // ESRCH: it ended meanwhile. EPERM: it is another user's now, and will be found alive.
            let _ = match &pidfd {
                Some(pidfd) => process::pidfd_send_signal(pidfd.as_fd(), KILL),
                None => process::kill(member.pid, KILL),
            };
        }
        Member { pidfd: pidfd.filter(|_| same) }
    }

    /// Reaps the leader; `None` when it has not ended (or was reaped by somebody else). From here
    /// on its number may be anybody's.
    pub(super) fn reap(self) -> Option<Reaped> {
        registry::reap_leader(self.pid)
    }
}

/// A process that is waited for, and nothing else.
pub(super) struct Member {
    pidfd: Option<OwnedFd>,
}

impl Member {
    /// Waits for `process`, whose number may change hands: then the wait is for a stranger, and
    /// short, since whoever waits looks again.
    pub(super) fn new(process: &Process) -> Member {
        Member { pidfd: process::pidfd_open(process.pid).ok() }
    }

    /// Readable once the process has ended.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }
}
