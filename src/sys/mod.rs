//! The only unsafe code: system calls that std does not offer, as safe functions, and the program's
//! allocator.
//!
//! But for that, nothing here decides anything; each function is one call, its result turned into
//! `io::Result`.
#![allow(unsafe_code)]

pub(crate) mod alloc;
pub(crate) mod cgroup;
pub(crate) mod exec;
pub mod feature;
pub(crate) mod files;
pub(crate) mod pipe;
pub(crate) mod poll;
pub(crate) mod proc;
pub(crate) mod process;
pub(crate) mod rlimit;
pub(crate) mod secret;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod terminal;

use std::io;

/// Error numbers that the layers above tell apart.
pub(crate) mod errno {
    pub(crate) use libc::{
        E2BIG, EACCES, EAGAIN, EBUSY, EDQUOT, EEXIST, EFBIG, EINVAL, EISDIR, ELOOP, EMFILE,
        ENAMETOOLONG, ENFILE, ENOENT, ENOMEM, ENOSPC, ENOSYS, ENOTDIR, ENOTEMPTY, ENXIO, EPERM,
        EROFS, EXDEV,
    };
}

/// The result of a libc call that reports failure as -1 and errno.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
