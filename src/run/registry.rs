//! Which children this process has started and not reaped, shared by all commands.
//!
//! Starting a leader, writing its number down and reaping orphans happen under one lock, so no
//! reaper ever sees a leader that is not written down, and none takes its status.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sys::proc::{self, Process};
use crate::sys::process::{self, Reaped};
use crate::sys::rlimit::{MARK_FIRST, MarkUse, mark_use, with_mark};

/// Everything that is known of this process's children.
#[derive(Default)]
pub(super) struct Registry {
    /// Leaders that are not reaped; only their own command reaps them.
    leaders: BTreeSet<u32>,
    /// Children that are none of any command running now, by their start: what this process had
    /// before its first command, and what commands left running.
    others: BTreeMap<u32, u64>,
    mark_use: Option<MarkUse>,
    marks: u64,
}

/// Marks of one process before the first is used again. A pid has at most 22 bits (proc(5),
/// pid_max), and so all marks stay below 2^53.
const MARKS_OF_A_PROCESS: u64 = 1 << 30;

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// Whether this process runs nothing but commands, one at a time, and had no children before: then
/// every orphan that comes to it is its command's.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Whether every zombie that is no leader may be reaped: true in the program, false in a library
/// user's process, whose children are its own.
static REAPS_ALL: AtomicBool = AtomicBool::new(false);

/// A leader that was started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started {
    pub(super) pid: u32,
    /// The mark that the command's processes inherit.
    pub(super) mark: Option<u64>,
    /// Orphans that came since the spawn are the command's: there is nobody else who could have
    /// left them. So a process is found that lost the mark as well (su, runuser), and all of them
    /// where there is no mark.
    pub(super) adopts_orphans: bool,
}

fn lock() -> MutexGuard<'static, Option<Registry>> {
    // What a thread that died was doing is one insertion or removal, done or not.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of the children that this process has already, which are nobody's to signal.
/// `one_at_a_time` says that no two commands will ever run at once.
pub(super) fn take_over(one_at_a_time: bool) {
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    registry.others.extend(starts(&proc::own_children()));
    ALONE.store(one_at_a_time && registry.others.is_empty(), Ordering::Relaxed);
    REAPS_ALL.store(true, Ordering::Relaxed);
}

/// Whether this process had children before its first command.
pub(super) fn has_others() -> bool {
    !lock().get_or_insert_default().others.is_empty()
}

/// Whether every zombie that is no leader is this program's to reap.
pub(super) fn reaps_all() -> bool {
    REAPS_ALL.load(Ordering::Relaxed)
}

/// Starts a leader through `spawn`, marked where that works, and writes it down.
///
/// # Errors
/// What `spawn` returned.
pub(super) fn start(spawn: impl FnOnce() -> io::Result<u32>) -> io::Result<Started> {
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    let works = *registry.mark_use.get_or_insert_with(mark_use) == MarkUse::Works;
    let mark = works.then(|| {
        registry.marks = (registry.marks + 1) % MARKS_OF_A_PROCESS;
        // A part for each process, so that a command of another runcap never has the same one.
        MARK_FIRST + u64::from(std::process::id()) * MARKS_OF_A_PROCESS + registry.marks
    });
    let pid = match mark {
        Some(mark) => with_mark(mark, spawn)?,
        None => spawn()?,
    };
    registry.leaders.insert(pid);
    let adopts_orphans = ALONE.load(Ordering::Relaxed);
    Ok(Started { pid, mark, adopts_orphans })
}

/// Reaps leader `pid` and gives it up. `None` when it has not ended: then it is reaped like an
/// orphan when it does after all; also when somebody else reaped it.
pub(super) fn reap_leader(pid: u32) -> Option<Reaped> {
    // Under the lock, since the number may come back at once, on an orphan.
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    let reaped = process::reap(pid);
    registry.leaders.remove(&pid);
    if let Ok(None) = reaped {
        ALONE.store(false, Ordering::Relaxed);
        registry.others.extend(starts(&[pid]));
    }
    reaped.ok().flatten()
}

/// Children of this process that no command running now accounts for. Their own leaders and what
/// stays from before are left out; a command that leaves nothing pays one small read here.
pub(super) fn strays() -> Vec<u32> {
    // The kernel may leave out children when others are reaped while it lists them (proc(5)), so
    // the list is read under the lock, too.
    let mut registry = lock();
    strays_among(registry.get_or_insert_default(), proc::own_children())
}

/// Those of `processes` that no command running now accounts for. Leaders are looked up after the
/// list was made: one started meanwhile is in both.
pub(super) fn strays_of(processes: Vec<u32>) -> Vec<u32> {
    strays_among(lock().get_or_insert_default(), processes)
}

fn strays_among(registry: &Registry, children: Vec<u32>) -> Vec<u32> {
    let known = |pid: &u32| registry.leaders.contains(pid) || registry.others.contains_key(pid);
    children.into_iter().filter(|pid| !known(pid)).collect()
}

/// Takes note that `processes` live on after their command; from now on no orphan can be told
/// from theirs.
pub(super) fn leave_running(processes: &[Process]) {
    if processes.is_empty() {
        return;
    }
    ALONE.store(false, Ordering::Relaxed);
    let mut registry = lock();
    let own = std::process::id();
    let children = processes.iter().filter(|process| process.parent == own);
    let children = children.map(|process| (process.pid, process.start));
    registry.get_or_insert_default().others.extend(children);
}

/// Reaps orphans that have ended: all of them in the program, else those of `only`.
pub(super) fn reap_orphans(only: &[u32]) {
    let mut registry = lock();
    let registry = registry.get_or_insert_default();
    let children = match reaps_all() {
        true => proc::own_children(),
        false => only.to_vec(),
    };
    for pid in children {
        if registry.leaders.contains(&pid) {
            continue;
        }
        // ECHILD says that it is no child of ours (any more); alive is no reason to wait.
        if let Ok(Some(_)) | Err(_) = process::reap(pid) {
            registry.others.remove(&pid);
        }
    }
}

fn starts(pids: &[u32]) -> Vec<(u32, u64)> {
    pids.iter().filter_map(|pid| Some((*pid, proc::process(*pid)?.start))).collect()
}
