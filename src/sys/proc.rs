//! What /proc says of processes.

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
    /// Neither a zombie nor being torn down.
    pub(crate) live: bool,
}

/// Looks at process `pid`; `None` when it is gone.
pub(crate) fn process(pid: u32) -> Option<Process> {
    let text = read(&format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything, parentheses
    // too: what follows starts after the last one.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = str::from_utf8(&text[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let live = !matches!(fields.next()?, "Z" | "X" | "x");
    let mut number = || fields.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // Fields 7 to 21 are of no interest; the start is field 22.
    let start = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, start, live })
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

fn children_by_parent(parents: &[u32]) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| number(&entry.ok()?));
    let all = pids.filter_map(process);
    all.filter(|process| parents.contains(&process.parent)).map(|process| process.pid).collect()
}

fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}
