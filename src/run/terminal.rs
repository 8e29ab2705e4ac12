//! The terminal that a command shares with runcap: who has its foreground, and who stops.
//!
//! A command leads a group of its own, so under a terminal it is in the background until it is
//! given the foreground. A shell does the same for every job; what runcap does here is what a shell
//! would have done had it started the command itself.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::poll::Event;
use crate::sys::proc::Process;
use crate::sys::process::group_exists;
use crate::sys::signal::{CONT, TSTP, TTIN, TTOU, stop_own_group, watch_children, watch_stop_key};
use crate::sys::terminal::{controlling, foreground, own_group, set_foreground};

use super::leader::Leader;

/// The controlling terminal, and runcap's place on it.
#[derive(Debug)]
pub struct Terminal {
    file: File,
    own_group: u32,
    /// Whether a command gets the foreground when it starts.
    from_start: bool,
    /// Whether a command was given the foreground.
    given: AtomicBool,
    /// Readable when a child has stopped or ended.
    children: &'static Event,
    /// Readable when Ctrl-Z was pressed while runcap's group had the foreground.
    stop_key: &'static Event,
}

impl Terminal {
    /// The controlling terminal, if there is one. A command gets its foreground from the start when
    /// runcap's group has it and standard output is that terminal; otherwise once it asks for it by
    /// reading or writing (SIGTTIN, SIGTTOU) while runcap's group has it. Never from the
    /// background.
    ///
    /// From here on this process takes SIGCHLD and SIGTSTP; call it once.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn of_this_process() -> io::Result<Option<Terminal>> {
        let Some(file) = controlling() else { return Ok(None) };
        // Handlers may run until the process ends, so what they notify lives as long.
        let children: &'static Event = Box::leak(Box::new(Event::new()?));
        let stop_key: &'static Event = Box::leak(Box::new(Event::new()?));
        watch_children(children);
        watch_stop_key(stop_key);
        let own_group = own_group();
        let from_start =
            foreground(std::io::stdout().as_fd()).is_ok_and(|group| group == own_group);
        let given = AtomicBool::new(false);
        Ok(Some(Terminal { file, own_group, from_start, given, children, stop_key }))
    }

    /// The descriptor whose foreground a command takes when it starts.
    pub(super) fn foreground_at_start(&self) -> Option<RawFd> {
        self.given.fetch_or(self.from_start, Ordering::Relaxed);
        self.from_start.then(|| self.file.as_raw_fd())
    }

    /// What to wait for besides the command: its stops, and Ctrl-Z.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.children.as_fd(), self.stop_key.as_fd()]
    }

    /// Acts on what [`Terminal::fds`] reported. A command that wants the terminal gets it, if
    /// runcap's group has it; one that stops for another reason takes runcap's whole group with
    /// it, as a job of a shell, and goes on when that does.
    pub(super) fn follow(&self, leader: &mut Leader) {
        self.children.clear();
        if self.stop_key.take() {
            leader.signal_group(TSTP);
        }
        while let Some(signal) = leader.has_stopped() {
            let wants_terminal = matches!(signal, TTIN | TTOU);
            if wants_terminal && self.give(leader.pid()) {
                leader.signal_group(CONT);
                continue;
            }
            let had_terminal = self.is_with(leader.pid());
            self.take_back(leader.pid());
            let stopped = stop_own_group();
            // Where nobody would continue runcap's group the kernel does not stop it: the leader of
            // a session, as in a container. Started without runcap the command would be of that
            // group and not stop for Ctrl-Z either. One that wants the terminal and cannot have it
            // stays stopped, and its deadline ends it.
            if stopped || signal == TSTP {
                if had_terminal || wants_terminal {
                    self.give(leader.pid());
                }
                leader.signal_group(CONT);
            }
        }
    }

    /// Gives the foreground to `group` if runcap's own group has it; whether it did.
    pub(super) fn give(&self, group: u32) -> bool {
        let given =
            self.is_with(self.own_group) && set_foreground(self.file.as_fd(), group).is_ok();
        self.given.fetch_or(given, Ordering::Relaxed);
        given
    }

    /// Takes the foreground back from `group` if that has it.
    pub(super) fn take_back(&self, group: u32) {
        if self.is_with(group) {
            // The terminal may have hung up: then nobody has it.
            let _ = set_foreground(self.file.as_fd(), self.own_group);
        }
    }

    fn is_with(&self, group: u32) -> bool {
        foreground(self.file.as_fd()).is_ok_and(|now| now == group)
    }
}

/// Takes back, once the command is over or could not be started, a foreground that it had and
/// passed on: to a group that is no more, or to one of the processes it `left`.
pub(super) fn recover(terminal: Option<&Terminal>, left: &[Process]) {
    // It is somebody else's if the command never had it, or if a shell took it meanwhile.
    let lost = |group| {
        group == 0 || left.iter().any(|process| process.group == group) || !group_exists(group)
    };
    let given = |terminal: &&Terminal| terminal.given.load(Ordering::Relaxed);
    let Some(terminal) = terminal.filter(given) else { return };
    if foreground(terminal.file.as_fd()).is_ok_and(lost) {
        // The terminal may have hung up: then nobody has it.
        let _ = set_foreground(terminal.file.as_fd(), terminal.own_group);
    }
}
