//! Which processes are a command's.
//!
//! A process is the command's when it descends from this process and is in the leader's group, or
//! in the session that the leader leads, or carries the command's mark, or descends from one that
//! is; also when it was seen to be so before (number and start time), since a parent's death cuts
//! the chain. Nothing else is ever signalled.

use std::collections::BTreeSet;

use crate::sys::proc::{self, Children, Process};
use crate::sys::rlimit::mark_of;

use super::registry::{self, Started};

/// Processes looked at in one search. A tree that is larger is searched again once its first part
/// is dead.
const SEARCH_MAX: usize = 100_000;

/// A command's processes, as far as they were ever seen.
pub(super) struct Members {
    started: Started,
    /// Number and start of every process besides the leader that was ever found.
    seen: BTreeSet<(u32, u64)>,
    /// Something may have been there besides the leader.
    searched: bool,
}

impl Members {
    pub(super) fn new(started: Started) -> Members {
        Members { started, seen: BTreeSet::new(), searched: false }
    }

    /// Whether nothing but the leader can be there: the leader has ended, and no orphan came.
    pub(super) fn surely_none(&self) -> bool {
        !self.searched && registry::strays().is_empty()
    }

    /// Whether the command's processes carry a mark.
    pub(super) fn are_marked(&self) -> bool {
        self.started.mark.is_some()
    }

    /// Whether anything besides the leader was ever looked for.
    pub(super) fn searched(&self) -> bool {
        self.searched
    }

    /// The command's processes besides the leader, zombies too; all are remembered.
    pub(super) fn find(&mut self) -> Vec<Process> {
        self.searched = true;
        let mut found: Vec<Process> = Vec::new();
        // Processes whose children are still to be looked at, and whether they are the command's.
        let mut parents = vec![(self.started.pid, true)];
        // The leader is not reaped, so it still shows its start.
        let adopts = self.started.adopts_orphans;
        let leader = adopts.then(|| proc::process(self.started.pid)).flatten();
        let mut strays = BTreeSet::new();
        let mut looked_at = 0;
        let own = std::process::id();
        let children = Children::look();
        loop {
            while let Some((parent, ours)) = parents.pop() {
                for child in children.of(parent) {
                    looked_at += 1;
                    let Some(process) = proc::process(child) else { continue };
                    let ours = ours || self.is_member(&process);
                    found.extend(ours.then_some(process));
                    if looked_at < SEARCH_MAX {
                        parents.push((child, ours));
                    }
                }
            }
            // After their parents, since one whose parent has ended meanwhile came here; again
            // and again, since that may happen below an orphan too.
            let came = children.orphans().map_or_else(registry::strays, registry::strays_of);
            for stray in came {
                if looked_at >= SEARCH_MAX || !strays.insert(stray) {
                    continue;
                }
                looked_at += 1;
                // Whoever is no child of this process is none of its affairs: its marks are another
                // runcap's too.
                let child = proc::process(stray).filter(|process| process.parent == own);
                let Some(process) = child else { continue };
                let adopted = leader.is_some_and(|leader| process.start >= leader.start);
                let ours = adopted || self.is_member(&process);
                found.extend(ours.then_some(process));
                parents.push((stray, ours));
            }
            if parents.is_empty() {
                break;
            }
        }
        // One that lost its parent while this looked is there twice.
        let mut once = BTreeSet::new();
        found.retain(|process| once.insert((process.pid, process.start)));
        self.seen.extend(once);
        found
    }

    /// Whether `process` was found to be the command's.
    pub(super) fn holds(&self, process: &Process) -> bool {
        self.seen.contains(&(process.pid, process.start))
    }

    /// Number and start of every process besides the leader that was ever found.
    pub(super) fn seen(&self) -> &BTreeSet<(u32, u64)> {
        &self.seen
    }

    fn is_member(&self, process: &Process) -> bool {
        let leader = self.started.pid;
        process.group == leader
            || process.session == leader
            || self.seen.contains(&(process.pid, process.start))
            || self.started.mark.is_some_and(|mark| mark_of(process.pid) == Some(mark))
    }
}
