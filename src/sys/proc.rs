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
    /// Neither a zombie nor being torn down: one of its threads at least still runs.
    pub(crate) live: bool,
}

/// Looks at process `pid`; `None` when it is gone.
pub(crate) fn process(pid: u32) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    // The second field is the program's name in parentheses and may hold anything, parentheses
    // too: what follows starts after the last one.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // Fields 7 to 19 are of no interest; 20 is the number of threads, 22 the start.
    let threads: u64 = fields.nth(13)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    // The state is that of the first thread: one that ended before the others is a zombie, and
    // its process lives on with all that it holds.
    Some(Process { pid, parent, group, session, start, live: !ended || threads > 1 })
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

    fn live(state: &str, threads: u32) -> bool {
        let stat = format!(
            "7 (a) b (c) {state} 5 6 4 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 9876 1 2\n"
        );
        let process = parse(7, stat.as_bytes()).expect("a line of stat");
        assert_eq!((process.parent, process.group, process.session), (5, 6, 4));
        assert_eq!(process.start, 9876);
        process.live
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        assert!(live("S", 1));
        assert!(live("Z", 2), "its first thread has ended, another runs");
        assert!(!live("Z", 1));
        assert!(!live("X", 0));
    }
}
