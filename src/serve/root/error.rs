//! Why a path cannot be used, as far as clients are told it apart.

use std::fmt;
use std::io;

use super::LINKS_MAX;
use crate::sys::errno;

/// Why a path cannot be used.
#[derive(Debug)]
pub enum RootError {
    /// It leads out of the root.
    Escapes,
    /// Nothing is there.
    NotFound,
    /// Something on the way, or what must be a directory, is none.
    NotADirectory,
    /// A file was expected.
    IsADirectory,
    /// It is a device, a pipe or a socket.
    NotRegular,
    /// The server may not do that there, or nobody may.
    Permission,
    /// The file system or a quota has no room.
    Full,
    /// The file would be, or is, too large.
    TooLarge,
    /// No path can be like this.
    Invalid(String),
    /// Anything else.
    Io(io::Error),
}

impl fmt::Display for RootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RootError::Escapes => "the path leads out of the workspace",
            RootError::NotFound => "no such file or directory",
            RootError::NotADirectory => "not a directory",
            RootError::IsADirectory => "is a directory",
            RootError::NotRegular => "not a regular file",
            RootError::Permission => "permission denied",
            RootError::Full => "no space left on device",
            RootError::TooLarge => "file too large",
            RootError::Invalid(why) => why,
            RootError::Io(error) => return error.fmt(f),
        })
    }
}

impl std::error::Error for RootError {}

impl From<io::Error> for RootError {
    fn from(error: io::Error) -> RootError {
        match error.raw_os_error() {
            Some(errno::EXDEV) => RootError::Escapes,
            Some(errno::ENOENT) => RootError::NotFound,
            Some(errno::ENOTDIR) => RootError::NotADirectory,
            Some(errno::EISDIR) => RootError::IsADirectory,
            Some(errno::ENXIO) => RootError::NotRegular,
            Some(errno::EACCES | errno::EPERM | errno::EROFS) => RootError::Permission,
            Some(errno::ENOSPC | errno::EDQUOT) => RootError::Full,
            Some(errno::EFBIG) => RootError::TooLarge,
            Some(errno::ELOOP) => RootError::Invalid(format!(
                "the path leads through over {LINKS_MAX} links, or through one of /proc"
            )),
            Some(errno::ENAMETOOLONG) => RootError::Invalid("the path is too long".to_owned()),
            _ => RootError::Io(error),
        }
    }
}
