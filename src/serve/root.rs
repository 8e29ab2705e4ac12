//! The one way to files: every path of a client is taken below one directory, and never leaves it.
//!
//! A path is first cleaned as text ([`Root::inside`]), then followed by the kernel under openat2(2)
//! or, where it is missing, step by step with the same answers (`walk`). Comparing the result of
//! realpath(3) with a prefix was the loser: between the comparison and the opening anybody who may
//! write below the root can put a link in the way, and commands may.

mod error;
mod listing;
mod removal;
mod replacement;
mod shown;
mod walk;

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::quote::quoted;
use crate::sys::errno;
use crate::sys::files::{self, Resolve, flags};

pub use error::RootError;
use listing::Kept;
pub use listing::{LISTED_MAX, Page};
pub use removal::{NotRemoved, Obstacle};
pub use replacement::{NEW_FILE_MODE, Replacement, TEMPORARY_PREFIX, abandon_all};
pub use shown::{Name, shown_path};

/// Symbolic links that one path may lead through, as for the kernel (path_resolution(7)).
pub const LINKS_MAX: usize = 40;

/// Bytes of the longest path (PATH_MAX without its NUL).
pub const PATH_MAX_BYTES: usize = 4095;

/// How often a path is followed anew because something was renamed meanwhile, before it is followed
/// step by step.
const RACES_MAX: usize = 16;

/// The directory that everything happens below.
///
/// A root that is `/` behaves as for every process: `/..` is `/`, and absolute links are followed.
/// Below any other one a link to an absolute path leads out, and is refused.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    resolve: Resolve,
    /// Of lists.
    kept: Kept,
}

/// A path relative to the root, without empty components, `.`, `..` and NUL. The empty one is the
/// root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside(Vec<u8>);

impl Inside {
    /// The path, without a leading `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its last component; empty for the root.
    pub fn name(&self) -> &[u8] {
        split_last(&self.0).1
    }

    /// The directory it stands in, and its name there; `None` for the root.
    fn split(&self) -> Option<(Inside, &[u8])> {
        let (parent, name) = split_last(&self.0);
        (!name.is_empty()).then(|| (Inside(parent.to_vec()), name))
    }
}

/// Cuts the last component off a path.
fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// A name or path for the kernel.
fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(errno::EINVAL))
}

impl Root {
    /// The root at `path`.
    ///
    /// # Errors
    /// When it cannot be opened or is no directory.
    pub fn open(path: &Path) -> io::Result<Root> {
        let only = flags::O_PATH | flags::O_DIRECTORY;
        let directory = File::options().read(true).custom_flags(only).open(path)?;
        let found = directory.metadata()?;
        let whole = std::fs::metadata("/")?;
        let is_whole = (found.dev(), found.ino()) == (whole.dev(), whole.ino());
        let resolve = if is_whole { Resolve::InRoot } else { Resolve::Beneath };
        Ok(Root { directory: directory.into(), resolve, kept: Kept::default() })
    }

    /// Cleans a path as text. An absolute one begins at the root too.
    ///
    /// # Errors
    /// `Escapes` for more `..` than there are components before them, also where the root is `/`;
    /// `Invalid` for NUL and more than [`PATH_MAX_BYTES`].
    pub fn inside(&self, path: &[u8]) -> Result<Inside, RootError> {
        if path.len() > PATH_MAX_BYTES {
            let reason = format!("the path has over {PATH_MAX_BYTES} bytes");
            return Err(RootError::Invalid(reason));
        }
        if path.contains(&0) {
            let shown = quoted(&String::from_utf8_lossy(path));
            return Err(RootError::Invalid(format!("invalid path {shown}: it holds a NUL")));
        }
        let mut inside = Vec::with_capacity(path.len());
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." if inside.is_empty() => return Err(RootError::Escapes),
                b".." => inside.truncate(split_last(&inside).0.len()),
                _ => {
                    if !inside.is_empty() {
                        inside.push(b'/');
                    }
                    inside.extend_from_slice(component);
                }
            }
        }
        Ok(Inside(inside))
    }

    /// Opens the regular file at `path` for reading.
    ///
    /// # Errors
    /// Any but `Full` and `TooLarge`; `IsADirectory` and `NotRegular` for other kinds of file.
    pub fn open_file(&self, path: &Inside) -> Result<File, RootError> {
        // Opening some devices has effects, so what it is, is asked before.
        require_regular(&File::from(self.follow(&path.0, flags::O_PATH)?).metadata()?)?;
        // And after: the name may be another file's by now. A pipe must not block.
        let quietly = flags::O_RDONLY | flags::O_NONBLOCK | flags::O_NOCTTY;
        let file = File::from(self.follow(&path.0, quietly)?);
        require_regular(&file.metadata()?)?;
        Ok(file)
    }

    /// Opens the directory at `path`, for reading and for names in it.
    ///
    /// # Errors
    /// Any but `Full`, `TooLarge`, `IsADirectory` and `NotRegular`.
    pub fn open_directory(&self, path: &Inside) -> Result<OwnedFd, RootError> {
        Ok(self.follow(&path.0, flags::O_RDONLY | flags::O_DIRECTORY)?)
    }

    /// Opens the directory at `path` for entering it and for names in it (O_PATH).
    ///
    /// # Errors
    /// As [`Root::open_directory`], but that it need not be readable.
    pub fn enter(&self, path: &Inside) -> Result<OwnedFd, RootError> {
        Ok(self.follow(&path.0, flags::O_PATH | flags::O_DIRECTORY)?)
    }

    /// What stands at `path`; a link is told of itself, not of its target.
    ///
    /// # Errors
    /// As [`Root::open_directory`].
    pub fn metadata(&self, path: &Inside) -> Result<Metadata, RootError> {
        let found = self.follow(&path.0, flags::O_PATH | flags::O_NOFOLLOW)?;
        Ok(File::from(found).metadata()?)
    }

    /// The directory at `path`, made with its parents where it is missing: 0755, from which the
    /// umask takes. What exists stays. The descriptor is for names in it (O_PATH).
    ///
    /// # Errors
    /// Any but `TooLarge`, `IsADirectory` and `NotRegular`.
    pub fn create_directories(&self, path: &Inside) -> Result<OwnedFd, RootError> {
        let names: Vec<&[u8]> = path.0.split(|byte| *byte == b'/').collect();
        let (mut exists, mut missing) = (&path.0[..], 0);
        let mut directory = loop {
            match self.follow(exists, flags::O_PATH | flags::O_DIRECTORY) {
                Err(error) if is(&error, errno::ENOENT) && !exists.is_empty() => {
                    exists = split_last(exists).0;
                    missing += 1;
                }
                other => break other?,
            }
        };
        for name in &names[names.len() - missing..] {
            let name = c_string(name)?;
            match files::make_directory(directory.as_fd(), &name, 0o755) {
                // Somebody was faster. A link that leads nowhere is not followed either.
                Err(error) if is(&error, errno::EEXIST) => {}
                other => other?,
            }
            let only = flags::O_PATH | flags::O_DIRECTORY | flags::O_NOFOLLOW;
            directory = files::open_at(directory.as_fd(), &name, only, 0)?;
        }
        Ok(directory)
    }

    /// Begins a new content for the file at `path`, whose parents are made. `mode` is the file's
    /// afterwards; without one it keeps that of the old file, and a new one gets 0644.
    ///
    /// # Errors
    /// Any but `TooLarge`; `IsADirectory` and `NotRegular` for what is no file already.
    pub fn replace(&self, path: &Inside, mode: Option<u32>) -> Result<Replacement, RootError> {
        self.replace_below(path, mode, Parents::Made)
    }

    /// As [`Root::replace`]; `parents` says what becomes of missing ones.
    ///
    /// # Errors
    /// As [`Root::replace`]; `NotFound` for parents that are missing and not to be made.
    pub fn replace_below(
        &self,
        path: &Inside,
        mode: Option<u32>,
        parents: Parents,
    ) -> Result<Replacement, RootError> {
        let target = self.target(path, parents)?;
        let mut replacement = Replacement::begin(target.directory.try_clone()?)?;
        replacement.aim(target, mode);
        Ok(replacement)
    }

    /// Begins the content of a file whose place is not known yet, in the root; [`Root::aim`] gives
    /// it one.
    ///
    /// # Errors
    /// `Permission`, `Full`, `Io`.
    pub fn draft(&self) -> Result<Replacement, RootError> {
        Replacement::begin(self.directory.try_clone()?)
    }

    /// Gives a draft its place. On another file system than the root it has none.
    ///
    /// # Errors
    /// As [`Root::replace`].
    pub fn aim(
        &self,
        draft: &mut Replacement,
        path: &Inside,
        mode: Option<u32>,
    ) -> Result<(), RootError> {
        draft.aim(self.target(path, Parents::Made)?, mode);
        Ok(())
    }

    /// Opens the regular file at `path` for writing in place; what it holds stays. A new one gets
    /// `mode`, or 0644 without one, and an old one keeps its own. Several may do so at once.
    ///
    /// # Errors
    /// As [`Root::replace_below`]; `Io` when the name changes all the time.
    pub fn open_to_change(
        &self,
        path: &Inside,
        mode: Option<u32>,
        parents: Parents,
    ) -> Result<File, RootError> {
        let quietly = flags::O_WRONLY | flags::O_NONBLOCK | flags::O_NOCTTY | flags::O_NOFOLLOW;
        let mut tries = 0;
        loop {
            let Target { directory, name, old } = self.target(path, parents)?;
            // Nothing that nobody has looked at is opened: a new file must be new.
            let (more, moved) = match old {
                None => (flags::O_CREAT | flags::O_EXCL, [errno::EEXIST, errno::ENOENT]),
                Some(_) => (0, [errno::ENOENT, errno::ELOOP]),
            };
            match files::open_at(directory.as_fd(), &name, quietly | more, 0o600) {
                Err(error) if moved.iter().any(|n| is(&error, *n)) && tries < RACES_MAX => {
                    tries += 1;
                }
                Err(error) if is(&error, errno::EACCES) && old.is_some() => {
                    match open_read_only(directory.as_fd(), &name) {
                        Ok(file) => return Ok(file),
                        // Its mode is not ours to change.
                        Err(_) => return Err(error.into()),
                    }
                }
                opened => {
                    let file = File::from(opened?);
                    require_regular(&file.metadata()?)?;
                    if old.is_none() {
                        // Whatever the umask is, as for a file that is replaced.
                        let mode = Permissions::from_mode(mode.unwrap_or(NEW_FILE_MODE));
                        file.set_permissions(mode)?;
                    }
                    return Ok(file);
                }
            }
        }
    }

    /// One page of the directory at `path`: at most `limit` names, in the order of their bytes,
    /// that come after `after`. That may be a name as it is shown, or any bytes.
    ///
    /// # Errors
    /// As [`Root::open_directory`].
    pub fn list(&self, path: &Inside, after: &[u8], limit: usize) -> Result<Page<'_>, RootError> {
        Page::read(&self.kept, self.open_directory(path)?, after, limit)
    }

    /// Where a new content of the file at `path` belongs: the place that the links lead to.
    fn target(&self, path: &Inside, parents: Parents) -> Result<Target, RootError> {
        let (parent, _) = path.split().ok_or(RootError::IsADirectory)?;
        if parents == Parents::Made {
            self.create_directories(&parent)?;
        }
        let mut path = path.0.clone();
        for _ in 0..=LINKS_MAX {
            let (parent, name) = split_last(&path);
            if matches!(name, b"" | b"." | b"..") {
                // A link's text may end like this, and what it names is a directory if anything.
                self.follow(&path, flags::O_PATH)?;
                return Err(RootError::IsADirectory);
            }
            let directory = self.follow(parent, flags::O_PATH | flags::O_DIRECTORY)?;
            let name = c_string(name)?;
            let only = flags::O_PATH | flags::O_NOFOLLOW;
            let found = match files::open_at(directory.as_fd(), &name, only, 0) {
                Ok(found) => found,
                Err(error) if is(&error, errno::ENOENT) => {
                    return Ok(Target { directory, name, old: None });
                }
                Err(error) => return Err(error.into()),
            };
            let found = File::from(found);
            let old = found.metadata()?;
            if !old.is_symlink() {
                require_regular(&old)?;
                return Ok(Target { directory, name, old: Some(old) });
            }
            let text = walk::link_text(found.as_fd())?;
            path = match text.first() {
                Some(b'/') if self.resolve == Resolve::Beneath => return Err(RootError::Escapes),
                Some(b'/') => text,
                _ if parent.is_empty() => text,
                _ => [parent, b"/", &text].concat(),
            };
        }
        Err(io::Error::from_raw_os_error(errno::ELOOP).into())
    }

    /// Opens what is at `path`, which may hold `..` behind links; the empty one is the root.
    fn follow(&self, path: &[u8], flags: i32) -> io::Result<OwnedFd> {
        if path.len() > PATH_MAX_BYTES {
            return Err(io::Error::from_raw_os_error(errno::ENAMETOOLONG));
        }
        let root = self.directory.as_fd();
        let whole = c_string(if path.is_empty() { b"." } else { path })?;
        for _ in 0..RACES_MAX {
            match files::open_within(root, &whole, flags, self.resolve) {
                Err(error) if is(&error, errno::EAGAIN) => {}
                Err(error)
                    if is(&error, errno::ENOSYS)
                        || is(&error, errno::EPERM)
                        || is(&error, errno::EINVAL) =>
                {
                    break;
                }
                other => return other,
            }
        }
        walk::open(root, self.resolve, path, flags)
    }
}

/// What becomes of the parents of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// Missing ones are made.
    Made,
    /// They must be there.
    Required,
}

/// Opens a regular file for writing that its owner may not write into: its mode allows it for a
/// moment. A file of which one range says that it is read-only is still open to the others.
fn open_read_only(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    // One at a time, or one would take the other's moment for the mode that there was.
    static CHANGING: Mutex<()> = Mutex::new(());
    let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let found = File::from(files::open_at(directory, name, flags::O_PATH | flags::O_NOFOLLOW, 0)?);
    let old = found.metadata()?;
    if !old.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    // The file itself, whatever stands at its name now.
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    let mode = old.mode() & 0o7777;
    let quietly = flags::O_NONBLOCK | flags::O_NOCTTY;
    let mut tries = 0;
    loop {
        std::fs::set_permissions(&itself, Permissions::from_mode(mode | 0o200))?;
        let opened = File::options().write(true).custom_flags(quietly).open(&itself);
        std::fs::set_permissions(&itself, Permissions::from_mode(mode))?;
        match opened {
            // A range that was written in between has set the mode that it was told.
            Err(error) if is(&error, errno::EACCES) && tries < RACES_MAX => tries += 1,
            opened => return opened,
        }
    }
}

/// The place of a file, of which `old` stands there.
struct Target {
    directory: OwnedFd,
    name: CString,
    old: Option<Metadata>,
}

/// Refuses what has no content of its own.
fn require_regular(found: &Metadata) -> Result<(), RootError> {
    match found {
        _ if found.is_dir() => Err(RootError::IsADirectory),
        _ if found.is_file() => Ok(()),
        _ => Err(RootError::NotRegular),
    }
}

fn is(error: &io::Error, number: i32) -> bool {
    error.raw_os_error() == Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_text() {
        let home = tempfile::tempdir().expect("a directory");
        let roots = [Path::new("/"), home.path()].map(|path| Root::open(path).expect("it is one"));
        let long = "a/".repeat(2048);
        type Row<'a> = (&'a str, &'a [u8], Result<&'a [u8], &'a str>);
        let rows: [Row<'_>; 20] = [
            ("empty", b"", Ok(b"")),
            ("root", b"/", Ok(b"")),
            ("here", b".", Ok(b"")),
            ("relative", b"a/b", Ok(b"a/b")),
            ("absolute", b"/a/b", Ok(b"a/b")),
            ("empty components", b"//a///b//", Ok(b"a/b")),
            ("dots", b"./a/./b/.", Ok(b"a/b")),
            ("up and down", b"a/../b", Ok(b"b")),
            ("up to the root", b"a/b/../..", Ok(b"")),
            ("up in the middle", b"a/b/../c", Ok(b"a/c")),
            ("three dots", b".../..a/b..", Ok(b".../..a/b..")),
            ("any byte", b"\xff\n /\\..\\", Ok(b"\xff\n /\\..\\")),
            ("still encoded", b"%2e%2e/a", Ok(b"%2e%2e/a")),
            ("up", b"..", Err("out of the workspace")),
            ("absolute up", b"/..", Err("out of the workspace")),
            ("one too many", b"a/../../b", Err("out of the workspace")),
            ("and back", b"../workspace/a", Err("out of the workspace")),
            ("NUL", b"a\0b", Err("it holds a NUL")),
            ("longest", &long.as_bytes()[..PATH_MAX_BYTES], Ok(&long.as_bytes()[..4095])),
            ("too long", long.as_bytes(), Err("over 4095 bytes")),
        ];
        for (name, path, expected) in rows {
            for root in &roots {
                match (root.inside(path), expected) {
                    (Ok(inside), Ok(expected)) => assert_eq!(inside.as_bytes(), expected, "{name}"),
                    (Err(error), Err(text)) => {
                        assert!(error.to_string().contains(text), "{name}: {error}");
                    }
                    (result, _) => panic!("{name}: {result:?}"),
                }
            }
        }
    }

    #[test]
    fn metadata_is_that_of_a_link_and_directories_are_made_once() {
        let home = tempfile::tempdir().expect("a directory");
        let root = Root::open(home.path()).expect("it is one");
        let inside = |path: &str| root.inside(path.as_bytes()).expect("it stays inside");
        root.create_directories(&inside("a/b/c")).expect("they are made");
        root.create_directories(&inside("a/b/c")).expect("they are there");
        root.create_directories(&inside("")).expect("the root is there");
        std::os::unix::fs::symlink("a/b", home.path().join("link")).expect("it is new");
        root.create_directories(&inside("link/d")).expect("it is made");
        assert!(home.path().join("a/b/d").is_dir());
        assert!(root.metadata(&inside("link")).expect("it is there").is_symlink());
        assert!(root.metadata(&inside("link/c")).expect("it is there").is_dir());
        assert!(root.metadata(&inside("")).expect("it is there").is_dir());
        let nowhere = root.metadata(&inside("a/x"));
        assert!(matches!(nowhere, Err(RootError::NotFound)), "{nowhere:?}");
        let draft = root.draft().expect("room");
        let lost = draft.commit();
        assert!(matches!(lost, Err(RootError::Invalid(_))), "{lost:?}");
        assert_eq!(std::fs::read_dir(home.path()).expect("a directory").count(), 2);
    }
}
