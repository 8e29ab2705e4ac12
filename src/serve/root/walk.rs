//! Follows a path step by step, for kernels without openat2(2): the same answers, in more calls.
//!
//! Every step opens one name and no link, so that nothing can be put in the way between a look and
//! a step. `..` stands in links only, since paths of clients are cleaned before. It is never
//! opened: the names that lead to the parent are followed once more from the root, because a
//! directory that was moved meanwhile has another parent, maybe outside.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{LINKS_MAX, c_string};
use crate::sys::errno;
use crate::sys::files::{self, Resolve, flags};

/// Opens what is at `path` below `root`, as openat2(2) would with RESOLVE_NO_MAGICLINKS.
///
/// # Errors
/// As openat2(2).
pub(super) fn open(
    root: BorrowedFd<'_>,
    resolve: Resolve,
    path: &[u8],
    flags: i32,
) -> io::Result<OwnedFd> {
    let mut walk = Walk { root, names: Vec::new(), ahead: Vec::new() };
    walk.push(path);
    let mut here = walk.reopen()?;
    let mut links = 0;
    while let Some(name) = walk.ahead.pop() {
        let is_last = walk.ahead.is_empty();
        if name == b"." {
            continue;
        }
        if name == b".." {
            if walk.names.pop().is_none() && resolve == Resolve::Beneath {
                return Err(error(errno::EXDEV));
            }
            here = walk.reopen()?;
            continue;
        }
        let c_name = c_string(&name)?;
        let found = files::open_at(here.as_fd(), &c_name, STEP, 0)?;
        let found = File::from(found);
        let kind = found.metadata()?.file_type();
        if kind.is_symlink() && !(is_last && flags & flags::O_NOFOLLOW != 0) {
            links += 1;
            if links > LINKS_MAX {
                return Err(error(errno::ELOOP));
            }
            let text = link_text(found.as_fd())?;
            if text.starts_with(b"/") {
                if resolve == Resolve::Beneath {
                    return Err(error(errno::EXDEV));
                }
                walk.names.clear();
                here = walk.reopen()?;
            }
            walk.push(&text);
            continue;
        }
        if is_last {
            if kind.is_symlink() {
                return Ok(found.into());
            }
            // Now a link, if somebody put one there: refused with ELOOP.
            return files::open_at(here.as_fd(), &c_name, flags | flags::O_NOFOLLOW, 0);
        }
        if !kind.is_dir() {
            return Err(error(errno::ENOTDIR));
        }
        walk.names.push(name);
        here = found.into();
    }
    files::open_at(here.as_fd(), c".", flags, 0)
}

/// What a link says, which is refused where it leads to a file by itself and not by its text: links
/// of /proc to descriptors, working directories and the like.
///
/// # Errors
/// ELOOP for such a link; as readlinkat(2).
pub(super) fn link_text(link: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let text = files::read_link(link)?;
    // Those that are followed by their text are short and relative: self, thread-self, mounts.
    let is_odd = text.first().is_some_and(|byte| b"/(".contains(byte)) || text.contains(&b':');
    if is_odd && files::is_procfs(link)? {
        return Err(error(errno::ELOOP));
    }
    Ok(text)
}

/// Opens a name to look at it: no link is followed and nothing happens to a device.
const STEP: i32 = flags::O_PATH | flags::O_NOFOLLOW;

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// From the root to here; none of them was a link.
    names: Vec<Vec<u8>>,
    /// The components to come, the next one last.
    ahead: Vec<Vec<u8>>,
}

impl Walk<'_> {
    /// The components of `path` come next. One with a slash at its end must be a directory's.
    fn push(&mut self, path: &[u8]) {
        if path.ends_with(b"/") {
            self.ahead.push(b".".to_vec());
        }
        let names = path.split(|byte| *byte == b'/').rev();
        self.ahead.extend(names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
    }

    /// Opens where the names lead.
    fn reopen(&self) -> io::Result<OwnedFd> {
        let mut here = files::open_at(self.root, c".", STEP | flags::O_DIRECTORY, 0)?;
        for name in &self.names {
            let name = c_string(name)?;
            here = files::open_at(here.as_fd(), &name, STEP | flags::O_DIRECTORY, 0)?;
        }
        Ok(here)
    }
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    /// What opening comes to: which file, or which error.
    fn shown(opened: io::Result<OwnedFd>) -> Result<(u64, u64), Option<i32>> {
        let found = opened.map_err(|error| error.raw_os_error())?;
        let found = File::from(found).metadata().map_err(|error| error.raw_os_error())?;
        Ok((found.dev(), found.ino()))
    }

    /// Compares both ways for one path, in every way a path is followed; false without openat2.
    fn agree(root: BorrowedFd<'_>, path: &[u8]) -> bool {
        for resolve in [Resolve::Beneath, Resolve::InRoot] {
            for more in [
                flags::O_PATH,
                flags::O_PATH | flags::O_NOFOLLOW,
                flags::O_PATH | flags::O_DIRECTORY,
                flags::O_RDONLY | flags::O_NONBLOCK,
                flags::O_RDONLY | flags::O_DIRECTORY,
            ] {
                let c_path = c_string(if path.is_empty() { b"." } else { path }).expect("no NUL");
                // Any rename on the machine makes `..` uncertain for a moment.
                let by_kernel = loop {
                    match shown(files::open_within(root, &c_path, more, resolve)) {
                        Err(Some(errno::EAGAIN)) => {}
                        other => break other,
                    }
                };
                if by_kernel == Err(Some(errno::ENOSYS)) || by_kernel == Err(Some(errno::EPERM)) {
                    return false;
                }
                let by_steps = shown(open(root, resolve, path, more));
                let path = String::from_utf8_lossy(path);
                assert_eq!(by_steps, by_kernel, "{path:?}, {resolve:?}, flags {more:o}");
            }
        }
        true
    }

    /// Numbers that are the same in each run (xorshift64).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }

        /// A path of at most six components, some of them odd.
        fn path(&mut self) -> String {
            const NAMES: [&str; 12] =
                ["a", "b", "c", "d", "a", "b", "c", "..", "..", ".", "", "missing"];
            let names: Vec<_> = (0..=self.below(6)).map(|_| NAMES[self.below(12)]).collect();
            names.join("/")
        }
    }

    #[test]
    fn steps_and_openat2_agree_on_random_trees() {
        // Directories, files and links to random paths, relative and absolute; then random paths.
        let mut numbers = Numbers(0x5eed_1234_abcd_0001);
        for _ in 0..60 {
            let home = tempfile::tempdir().expect("a directory");
            let at = home.path().join("root");
            std::fs::create_dir_all(&at).expect("it is new");
            for _ in 0..40 {
                // Most are taken already or have no parent, which is as good.
                let path = at.join(numbers.path().trim_start_matches(['/', '.']));
                let _ = match numbers.below(5) {
                    0 | 1 => std::fs::create_dir(path),
                    2 => std::fs::write(path, "x"),
                    _ => match numbers.path() {
                        text if text.is_empty() => Ok(()),
                        text => symlink(text, path),
                    },
                };
            }
            let root = File::open(&at).expect("a directory");
            for _ in 0..60 {
                let path = numbers.path();
                // A client's path never begins with it; a link's text may, for a root that is `/`.
                let path = path.trim_start_matches('/');
                if !agree(root.as_fd(), path.as_bytes()) {
                    eprintln!("not run here: no openat2");
                    return;
                }
            }
        }
    }

    #[test]
    fn steps_and_openat2_agree_on_chains_of_links_and_on_magic_links() {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(home.path().join("end")).expect("it is new");
        symlink("end", home.path().join("l0")).expect("it is new");
        for count in 1..=LINKS_MAX {
            let link = home.path().join(format!("l{count}"));
            symlink(format!("l{}", count - 1), link).expect("it is new");
        }
        let root = File::open(home.path()).expect("a directory");
        for name in ["l38", "l39", "l40", "l38/.", "l39/", "l40/x"] {
            agree(root.as_fd(), name.as_bytes());
        }
        let long = "./".repeat(2040) + "end";
        agree(root.as_fd(), long.as_bytes());
        agree(root.as_fd(), [b'a'; 256].as_slice());
        // Not by its own descriptors' numbers: other tests come and go.
        let proc = File::open("/proc").expect("it is mounted");
        for name in [
            "self/root",
            "self/root/etc",
            "self/cwd",
            "self/exe",
            "self/fd/0",
            "self/ns/mnt",
            "self/status",
            "mounts",
            "self",
            "self/..",
            "self/task/../status",
            "net/unix",
        ] {
            agree(proc.as_fd(), name.as_bytes());
        }
    }
}
