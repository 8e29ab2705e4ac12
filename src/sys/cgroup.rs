//! The memory limit of the control group that runcap runs in.

use std::fs;
use std::path::Path;

/// Where control groups are mounted (cgroups(7)).
const MOUNT: &str = "/sys/fs/cgroup";

/// Bytes that may be kept of one stream: both together may take half of what this process's memory
/// cgroup allows, the least of the groups it is in. `None` when there is no limit or none can be
/// read.
///
/// Version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`) are both looked at. Inside a
/// container the path that /proc/self/cgroup names may not exist, since only the container's own
/// group is mounted; then the mount itself is that group.
pub(crate) fn stream_cap_ceiling() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = limit_of(Path::new(MOUNT), &groups)?;
    Some(usize::try_from(limit / 4).unwrap_or(usize::MAX).max(1))
}

/// Bytes of memory that this process may use: what its memory cgroup allows, or what the machine
/// has (MemTotal of proc_meminfo(5)). `None` when neither can be read.
pub(crate) fn memory_max() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let total = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = total.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let total = total.map(|kib| kib.saturating_mul(1024));
    [limit_of(Path::new(MOUNT), &groups), total].into_iter().flatten().min()
}

fn limit_of(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| limit_of_line(root, line)).min()
}

/// One line is `ID:CONTROLLERS:PATH`, with no controllers for version 2 (cgroups(7)).
fn limit_of_line(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (mount, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = mount.join(path.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|group| group.starts_with(&mount))
        .filter_map(|group| limit_in(&group.join(file)))
        .min()
}

fn limit_in(file: &Path) -> Option<u64> {
    // Version 1 says "no limit" with a number near 2^63, version 2 with `max`.
    const NO_LIMIT: u64 = 1 << 62;
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/a/memory.limit_in_bytes", "1000\n");
        write("memory/a/b/memory.limit_in_bytes", "2000\n");
        write("memory.max", "4000\n");
        write("slice/memory.max", "max\n");
        let rows = [
            ("version 1, the parent's is smaller", "4:memory:/a/b\n", Some(1000)),
            ("version 1, no limit", "4:cpu,memory:/\n", None),
            ("version 1, path outside this mount", "4:memory:/docker/f00\n", None),
            ("version 2, limit above", "0::/slice\n", Some(4000)),
            ("version 2, path outside this mount", "0::/no/such\n", Some(4000)),
            ("other controller", "3:cpu:/a\n", None),
            ("both", "4:memory:/a/b\n0::/slice\n", Some(1000)),
            ("nonsense", "x\n\n", None),
        ];
        for (name, groups, expected) in rows {
            assert_eq!(limit_of(root.path(), groups), expected, "{name}");
        }
    }
}
