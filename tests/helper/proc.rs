//! What /proc says of processes, read independently of the program under test.

use std::fs;
use std::time::Duration;

/// One line of /proc/PID/stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    pub start: u64,
    pub live: bool,
}

pub fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        pid,
        parent: number(1)? as u32,
        group: number(2)? as u32,
        session: number(3)? as u32,
        start: number(19)?,
        // A first thread that has ended is a zombie while others of its process still run.
        live: !matches!(fields.first(), Some(&("Z" | "X"))) || number(17)? > 1,
    })
}

/// Every process there is, with chains of parents that hang together: a parent that ended while
/// /proc was read would hide what descends from it.
pub fn all() -> Vec<Process> {
    let mut found = look();
    for _ in 0..10 {
        let there = |pid: u32| pid == 0 || found.iter().any(|process| process.pid == pid);
        if found.iter().all(|process| there(process.parent)) {
            break;
        }
        found = look();
    }
    found
}

fn look() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
}

/// Those of `processes` that descend from `ancestor`.
pub fn descend(processes: &[Process], ancestor: u32) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for process in processes.iter().filter(|process| process.parent == parent) {
            found.push(*process);
            parents.push(process.pid);
        }
    }
    found
}

/// Descendants of this process, but not `spared`.
pub fn descendants(spared: &[u32]) -> Vec<Process> {
    let mut found = descend(&all(), std::process::id());
    found.retain(|process| !spared.contains(&process.pid));
    found
}

/// Whether process `pid` carries runcap's mark: a soft RLIMIT_RTTIME from 2^52 to 2^53.
pub fn is_marked(pid: u32) -> bool {
    let Ok(limits) = fs::read_to_string(format!("/proc/{pid}/limits")) else { return false };
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    soft.is_some_and(|soft| (1 << 52..1 << 53).contains(&soft))
}

/// How long process `pid`'s first thread was ready and had no CPU (/proc/PID/schedstat).
pub fn run_delay(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let waited = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// How long anything on this machine was ready and had no CPU, so far (/proc/pressure/cpu).
pub fn cpu_pressure() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text.lines().next()?.rsplit_once("total=")?.1.parse().ok()?;
    Some(Duration::from_micros(total))
}
