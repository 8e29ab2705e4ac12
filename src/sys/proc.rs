//! What /proc says of processes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};

use super::feature::{Feature, allowed};

/// Bytes of the first read of a file of /proc: more than any that is read here for one process.
const READ_BYTES: usize = 2048;

/// A process as /proc/PID/stat shows it (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// Its parent's number.
    pub(crate) parent: u32,
    /// Its process group.
    pub(crate) group: u32,
    /// Its session.
    pub(crate) session: u32,
    /// When it started, in clock ticks since boot. Number and start together name one process.
    pub(crate) start: u64,
    /// Whether it can still do anything.
    pub(crate) life: Life,
}

/// How far a process is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// At least one of its threads runs, or could.
    Running,
    /// It runs none of its code any more: the kernel takes it down.
    Exiting,
    /// Nothing but a status for its parent.
    Ended,
}

/// Looks at process `pid`; `None` when it is gone.
pub(crate) fn process(pid: u32) -> Option<Process> {
    let text = read(&format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything, parentheses
    // too: what follows starts after the last one.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = str::from_utf8(&text[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // Field 9, then 20 and 22; those between are of no interest.
    let flags = fields.nth(2)?.parse().ok()?;
    let threads = fields.nth(10)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Process { pid, parent, group, session, start, life: life(state, flags, threads) })
}

/// State and flags are those of the first thread, which may end before the others do: then the
/// process looks like a zombie and goes on.
fn life(state: &str, flags: u32, threads: u32) -> Life {
    // include/linux/sched.h; the same bit in every kernel so far.
    const PF_EXITING: u32 = 4;
    match state {
        _ if threads > 1 => Life::Running,
        "Z" | "X" | "x" => Life::Ended,
        _ if flags & PF_EXITING != 0 => Life::Exiting,
        _ => Life::Running,
    }
}

/// The children of this process, zombies too, as far as its main thread has them: orphans come
/// there, and the children of a thread that ended.
///
/// Where the kernel has no children lists, every process is looked at, and the children of all
/// threads are found; twice, since one that starts meanwhile may get a number that was passed.
pub(crate) fn own_children() -> Vec<u32> {
    let own = std::process::id();
    task_children(own, own).unwrap_or_else(|_| {
        let looks = [Children::look(), Children::look()];
        let mut found = BTreeSet::new();
        found.extend(looks.iter().filter_map(Children::orphans).flatten());
        let is_child = |pid: &u32| process(*pid).is_some_and(|process| process.parent == own);
        found.into_iter().filter(is_child).collect()
    })
}

/// Who is whose child, zombies too, for one look at many processes.
pub(crate) struct Children {
    /// Every process, where the kernel has no lists; looked at once, since it takes long.
    all: Option<Vec<Process>>,
}

impl Children {
    pub(crate) fn look() -> Children {
        Children { all: (!has_children_lists()).then(|| all_processes().collect()) }
    }

    /// The children of this process, and those whose parent ended while this looked: they may be
    /// this process's by now. `None` where there are lists, which have to be read anew.
    pub(crate) fn orphans(&self) -> Option<Vec<u32>> {
        let all = self.all.as_ref()?;
        // Not collected: a set that is collected is sorted first, by a sort of its own for each
        // type of set, and that is 8 KB of program each time.
        let mut known = BTreeSet::new();
        known.extend(all.iter().map(|process| process.pid));
        let own = std::process::id();
        // Who has no parent in this PID namespace (0) never was anybody's here.
        let lost = |parent| parent != 0 && !known.contains(&parent);
        let came = |process: &&Process| process.parent == own || lost(process.parent);
        Some(all.iter().filter(came).map(|process| process.pid).collect())
    }

    /// The children of process `parent`, of all its threads.
    pub(crate) fn of(&self, parent: u32) -> Vec<u32> {
        if let Some(all) = &self.all {
            let children = all.iter().filter(|process| process.parent == parent);
            return children.map(|process| process.pid).collect();
        }
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
        let tasks = tasks.filter_map(|task| number(&task.ok()?));
        // A thread that just ended has no list.
        tasks.flat_map(|task| task_children(parent, task).unwrap_or_default()).collect()
    }
}

/// Whether this kernel lists children.
pub(crate) fn has_children_lists() -> bool {
    let own = std::process::id();
    task_children(own, own).is_ok()
}

fn task_children(pid: u32, task: u32) -> io::Result<Vec<u32>> {
    if !allowed(Feature::ChildrenLists) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let text = read(&format!("/proc/{pid}/task/{task}/children"))?;
    let text = str::from_utf8(&text).unwrap_or_default();
    Ok(text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect())
}

/// Reads a file of /proc in few calls: its length says 0, so `fs::read` would begin with 32 bytes.
pub(super) fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut text, mut length) = (vec![0; READ_BYTES], 0);
    loop {
        match file.read(&mut text[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == text.len() {
            text.resize(2 * length, 0);
        }
    }
    text.truncate(length);
    Ok(text)
}

fn all_processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| number(&entry.ok()?)).filter_map(process)
}

fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        let rows = [
            ("sleeping", "S", 0x40_4000, 1, Life::Running),
            ("stopped", "T", 0x40_4000, 1, Life::Running),
            ("four threads", "S", 0x40_4000, 4, Life::Running),
            ("its first thread has ended, another runs", "Z", 0x40_400c, 2, Life::Running),
            ("its first thread ends, another runs", "R", 0x40_4004, 2, Life::Running),
            ("being taken down", "R", 0x40_4004, 1, Life::Exiting),
            ("zombie", "Z", 0x40_400c, 1, Life::Ended),
            ("being reaped", "X", 0x40_400c, 0, Life::Ended),
        ];
        for (name, state, flags, threads, expected) in rows {
            assert_eq!(life(state, flags, threads), expected, "{name}");
        }
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let own = process(std::process::id()).expect("it lives");
        assert_eq!((own.pid, own.life), (std::process::id(), Life::Running));
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.start > 0);
    }
}
