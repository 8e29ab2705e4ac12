//! Removes what stands at a path, and a whole tree if that is wanted, whatever others do to it
//! meanwhile.
//!
//! A tree goes from its leaves up, in a loop over the levels that lead to one of them. A directory
//! is opened by one name in another open directory, never through a link and never as `..`: a
//! directory that was moved meanwhile has another parent. So what is opened stood below the tree,
//! and names are removed from nothing else. Few directories are held open, and on the way back
//! others are opened anew, by the names below the nearest one that is. The whole path of each entry
//! was the loser: from some depth on no call takes it, and somebody may put a link into it.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::{Inside, RACES_MAX, Root, RootError, c_string, is};
use crate::sys::errno;
use crate::sys::files::{self, Entries, flags};

/// Directories of one tree that are held open at once.
const HELD_MAX: usize = 32;

/// Bytes of entries that are read from the kernel at once, for each directory that is held.
const READ_BYTES: usize = 8 << 10;

/// Levels of the deepest tree that is removed; each takes memory for its name.
const DEPTH_MAX: usize = 1 << 16;

/// How often a directory is read over again because names have come into it.
const ROUNDS_MAX: u32 = 32;

/// Names that are taken from one directory before those that it still holds are counted, and then
/// in addition to them: what comes in faster than it goes would never end.
const NAMES_UNCOUNTED_MAX: u64 = 1 << 12;

/// Names that are counted.
const NAMES_COUNTED_MAX: u64 = 1 << 32;

/// What is in the way of a removal.
#[derive(Debug)]
pub enum Obstacle {
    /// The directory holds something, and only an empty one was to be removed.
    NotEmpty,
    /// Names keep coming into the directory.
    Refilled,
    /// Something is mounted there.
    MountPoint,
    /// The tree has more than 65,536 levels.
    TooDeep,
    /// The path cannot be used.
    Other(RootError),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Obstacle {
        match is(&error, errno::EBUSY) {
            true => Obstacle::MountPoint,
            false => Obstacle::Other(error.into()),
        }
    }
}

/// The first thing that could not be removed, and why. What was removed before it is gone.
#[derive(Debug)]
pub struct NotRemoved {
    /// Why.
    pub obstacle: Obstacle,
    /// Its path from the root, without a leading `/`.
    pub path: Vec<u8>,
}

impl Root {
    /// Removes what stands at `path`: a link itself and never its target, a directory if it is
    /// empty, or with all that is below it where `recursive` is set.
    ///
    /// Memory and descriptors do not grow with the number of entries, and stay small for deep
    /// trees. It ends even while others fill the directories.
    ///
    /// # Errors
    /// `Other` with `Invalid` for the root itself; [`Obstacle`].
    pub fn remove(&self, path: &Inside, recursive: bool) -> Result<(), NotRemoved> {
        let fail = |obstacle| NotRemoved { obstacle, path: path.0.clone() };
        let other = |error: io::Error| fail(error.into());
        let Some((parent, name)) = path.split() else {
            let reason = "the workspace itself cannot be removed".to_owned();
            return Err(fail(Obstacle::Other(RootError::Invalid(reason))));
        };
        let only = flags::O_PATH | flags::O_DIRECTORY;
        let parent = self.follow(&parent.0, only).map_err(other)?;
        let name = c_string(name).map_err(other)?;
        if take(parent.as_fd(), &name).map_err(fail)? == Taken::Gone {
            return Ok(());
        }
        if !recursive {
            return Err(fail(Obstacle::NotEmpty));
        }
        let (parent, levels, top) = (parent.as_fd(), vec![], Allowance::UNCOUNTED);
        let mut tree = Tree { parent, path, device: 0, levels, held: 0, top };
        for _ in 0..ROUNDS_MAX {
            tree.empty(&name)?;
            match take(parent, &name) {
                Ok(Taken::Gone) | Err(Obstacle::Other(RootError::NotFound)) => return Ok(()),
                Ok(Taken::NotYet) => {}
                Err(obstacle) => return Err(fail(obstacle)),
            }
        }
        Err(fail(Obstacle::Refilled))
    }
}

/// What became of a name.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Gone,
    /// It is a directory that holds something.
    NotYet,
}

/// Removes `name` from `directory`, if that can be done in one step.
fn take(directory: BorrowedFd<'_>, name: &CStr) -> Result<Taken, Obstacle> {
    let mut tries = 0;
    loop {
        let refused = match files::unlink(directory, name) {
            Ok(()) => return Ok(Taken::Gone),
            // What Linux says of a directory, and what POSIX says.
            Err(error) if is(&error, errno::EISDIR) || is(&error, errno::EPERM) => error,
            Err(error) => return Err(error.into()),
        };
        match files::remove_directory(directory, name) {
            Ok(()) => return Ok(Taken::Gone),
            Err(error) if is_full(&error) => return Ok(Taken::NotYet),
            Err(error) if !is(&error, errno::ENOTDIR) => return Err(error.into()),
            // It was a directory a moment ago.
            Err(_) if is(&refused, errno::EISDIR) && tries < RACES_MAX => tries += 1,
            Err(_) => return Err(refused.into()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    is(error, errno::ENOTEMPTY) || is(error, errno::EEXIST)
}

fn is_scarce(error: &io::Error) -> bool {
    is(error, errno::EMFILE) || is(error, errno::ENFILE)
}

/// Whether a name that was a directory's is nobody's, or something else's.
fn is_gone(error: &io::Error) -> bool {
    [errno::ENOENT, errno::ENOTDIR, errno::ELOOP].iter().any(|number| is(error, *number))
}

/// How many names `directory` holds now.
fn count(directory: BorrowedFd<'_>) -> io::Result<u64> {
    // A descriptor of its own, which stands at the beginning.
    let again = files::open_at(directory, c".", flags::O_RDONLY | flags::O_DIRECTORY, 0)?;
    let (mut names, mut count) = (Entries::new(READ_BYTES), 0);
    while count < NAMES_COUNTED_MAX && names.next(again.as_fd())?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// A tree that is being emptied.
struct Tree<'a> {
    /// Where it stands.
    parent: BorrowedFd<'a>,
    /// For messages.
    path: &'a Inside,
    /// Of the file system that it is on: others are mounted.
    device: u64,
    /// From the top of the tree to the directory that is being emptied; the first stands in
    /// `parent`, each other one in the one before.
    levels: Vec<Level>,
    /// How many of them are open.
    held: usize,
    /// Of the first one, whenever it is the first.
    top: Allowance,
}

struct Level {
    name: CString,
    open: Option<Open>,
    rounds: u32,
    allowance: Allowance,
}

/// Names that may still be taken from a directory.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    left: u64,
    /// What it holds is in them.
    is_counted: bool,
}

impl Allowance {
    const UNCOUNTED: Allowance = Allowance { left: NAMES_UNCOUNTED_MAX, is_counted: false };

    /// Takes one name; false when there are none left.
    fn take(&mut self, directory: BorrowedFd<'_>) -> io::Result<bool> {
        if self.left == 0 && !self.is_counted {
            let counted = match count(directory) {
                // It was removed.
                Err(error) if is(&error, errno::ENOENT) => 0,
                counted => counted?,
            };
            *self = Allowance { left: counted + NAMES_UNCOUNTED_MAX, is_counted: true };
        }
        let is_any = self.left > 0;
        self.left -= u64::from(is_any);
        Ok(is_any)
    }
}

struct Open {
    directory: File,
    /// Those that were read and not removed yet; lost when it is closed, and read again then.
    names: Entries,
}

impl Tree<'_> {
    /// Removes everything below the directory `top`. Where it is none any more, there is nothing.
    fn empty(&mut self, top: &CStr) -> Result<(), NotRemoved> {
        self.enter(top.to_owned())?;
        while let Some(level) = self.levels.last_mut() {
            let Some(open) = &mut level.open else {
                self.reopen()?;
                continue;
            };
            let directory = open.directory.as_fd();
            let name = match open.names.next(directory) {
                Ok(entry) => entry.map(|(name, _)| name.to_owned()),
                // Somebody has removed it.
                Err(error) if is(&error, errno::ENOENT) => None,
                Err(error) => return Err(self.failure(None, error.into())),
            };
            let Some(name) = name else {
                self.leave()?;
                continue;
            };
            match level.allowance.take(directory) {
                Ok(true) => {}
                Ok(false) => return Err(self.failure(None, Obstacle::Refilled)),
                Err(error) => return Err(self.failure(None, error.into())),
            }
            match take(directory, &name) {
                Ok(Taken::Gone) | Err(Obstacle::Other(RootError::NotFound)) => {}
                Ok(Taken::NotYet) => self.enter(name)?,
                Err(obstacle) => return Err(self.failure(Some(&name), obstacle)),
            }
        }
        Ok(())
    }

    /// Goes on with the directory `name` of the one that is being emptied.
    fn enter(&mut self, name: CString) -> Result<(), NotRemoved> {
        if self.levels.len() == DEPTH_MAX {
            return Err(self.failure(Some(&name), Obstacle::TooDeep));
        }
        let allowance = match self.levels.is_empty() {
            true => self.top,
            false => Allowance::UNCOUNTED,
        };
        self.levels.push(Level { name, open: None, rounds: 0, allowance });
        self.reopen()
    }

    /// Removes the directory that was emptied from the one above it, which comes next. The top of
    /// the tree stays.
    fn leave(&mut self) -> Result<(), NotRemoved> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        self.held -= usize::from(level.open.take().is_some());
        let depth = self.levels.len();
        if depth == 0 {
            self.top = level.allowance;
        }
        if self.levels.last().is_some_and(|above| above.open.is_none()) {
            self.reopen()?;
        }
        let above = self.levels.last().and_then(|above| above.open.as_ref());
        // One above has gone from its place, or this was the top.
        let Some(above) = above.filter(|_| self.levels.len() == depth) else { return Ok(()) };
        match files::remove_directory(above.directory.as_fd(), &level.name) {
            Ok(()) => Ok(()),
            // If there is something else now, the next round finds it.
            Err(error) if is_gone(&error) => Ok(()),
            // Opened anew, since it may be another one.
            Err(error) if is_full(&error) && level.rounds < ROUNDS_MAX => {
                level.rounds += 1;
                self.levels.push(level);
                Ok(())
            }
            Err(error) if is_full(&error) => {
                Err(self.failure(Some(&level.name), Obstacle::Refilled))
            }
            Err(error) => Err(self.failure(Some(&level.name), error.into())),
        }
    }

    /// Opens the last level by the names that lead to it from the nearest one that is open, and
    /// holds some of those between, at equal distances. Where one of the names is no directory's
    /// any more, the level above it is the last.
    fn reopen(&mut self) -> Result<(), NotRemoved> {
        if self.held == HELD_MAX {
            self.close_every_other();
        }
        let first = self.levels.iter().rposition(|level| level.open.is_some());
        let first = first.map_or(0, |nearest| nearest + 1);
        let last = self.levels.len() - 1;
        let distance = (last + 1 - first).div_ceil(HELD_MAX - self.held);
        let mut between: Option<File> = None;
        for depth in first..=last {
            let above = self.levels[..depth].last().and_then(|level| level.open.as_ref());
            let here = match (&between, above) {
                (Some(directory), _) => directory.as_fd(),
                (None, Some(open)) => open.directory.as_fd(),
                (None, None) => self.parent,
            };
            let only = flags::O_RDONLY | flags::O_DIRECTORY | flags::O_NOFOLLOW;
            match files::open_at(here, &self.levels[depth].name, only, 0) {
                Ok(opened) => {
                    let directory = self.checked(opened, depth)?;
                    if (last - depth).is_multiple_of(distance) {
                        between = None;
                        self.hold(depth, directory);
                    } else {
                        between = Some(directory);
                    }
                }
                Err(error) if is_gone(&error) => {
                    self.levels.truncate(depth);
                    if let (Some(directory), Some(above)) = (between, depth.checked_sub(1)) {
                        self.hold(above, directory);
                    }
                    return Ok(());
                }
                // Others need descriptors too; tried again with those that are let go of here.
                Err(error) if is_scarce(&error) && self.held > 1 => {
                    self.close_every_other();
                    return Ok(());
                }
                Err(error) => {
                    self.levels.truncate(depth + 1);
                    return Err(self.failure(None, error.into()));
                }
            }
        }
        Ok(())
    }

    /// Refuses a directory of another file system than that of the tree.
    fn checked(&mut self, opened: OwnedFd, depth: usize) -> Result<File, NotRemoved> {
        let directory = File::from(opened);
        let found = directory.metadata().map_err(|error| self.failure(None, error.into()))?;
        if depth == 0 {
            self.device = found.dev();
        }
        if found.dev() != self.device {
            self.levels.truncate(depth + 1);
            return Err(self.failure(None, Obstacle::MountPoint));
        }
        Ok(directory)
    }

    fn hold(&mut self, depth: usize, directory: File) {
        self.levels[depth].open = Some(Open { directory, names: Entries::new(READ_BYTES) });
        self.held += 1;
    }

    /// Lets go of half of the directories that are held, and not of the last one. So those that
    /// remain lie the closer together the deeper they are, and the way back is short.
    fn close_every_other(&mut self) {
        let held = self.levels.iter_mut().rev().filter(|level| level.open.is_some());
        for level in held.skip(1).step_by(2) {
            level.open = None;
            self.held -= 1;
        }
    }

    /// What is said of the last level, or of a name in it.
    fn failure(&self, name: Option<&CStr>, obstacle: Obstacle) -> NotRemoved {
        let mut path = self.path.0.clone();
        let below = self.levels.iter().skip(1).map(|level| &*level.name);
        for name in below.chain(name) {
            path.push(b'/');
            path.extend_from_slice(name.to_bytes());
        }
        NotRemoved { obstacle, path }
    }
}
