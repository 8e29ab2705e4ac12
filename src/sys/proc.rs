//! What /proc says of processes.

use std::fs;

/// Processes of group `group` that are neither zombies nor being torn down; none when /proc cannot
/// be read.
pub(crate) fn live_group_members(group: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(*pid).is_some_and(|stat| stat.live && stat.group == group))
        .collect()
}

struct Stat {
    live: bool,
    group: u32,
}

/// Reads /proc/PID/stat (proc_pid_stat(5)); `None` when the process is gone.
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything, parentheses
    // too: what follows starts after the last one.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(&text[after_name..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some(Stat { live: !matches!(state, "Z" | "X" | "x"), group })
}
