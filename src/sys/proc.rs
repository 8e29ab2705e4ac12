//! What /proc says of processes.

use std::fs;
use std::io;

use super::feature::{Feature, allowed};

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
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
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
/// threads are found.
pub(crate) fn own_children() -> Vec<u32> {
    let own = std::process::id();
    task_children(own, own).unwrap_or_else(|_| children_by_parent(&[own]))
}

/// The children of `parents`, zombies too.
pub(crate) fn children(parents: &[u32]) -> Vec<u32> {
    let mut children = Vec::new();
    for parent in parents {
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.filter_map(|task| number(&task.ok()?)) {
            match task_children(*parent, task) {
                Ok(found) => children.extend(found),
                // A thread that just ended has no file; a kernel without lists has none at all.
                Err(_) if has_children_lists() => {}
                Err(_) => return children_by_parent(parents),
            }
        }
    }
    children
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
    let text = fs::read_to_string(format!("/proc/{pid}/task/{task}/children"))?;
    Ok(text.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect())
}

fn children_by_parent(parents: &[u32]) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| number(&entry.ok()?));
    let all = pids.filter_map(process);
    all.filter(|process| parents.contains(&process.parent)).map(|process| process.pid).collect()
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
