//! Files by a directory's descriptor and a name, which is how a path is followed without a race.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use super::feature::{Feature, allowed};

/// Flags of open(2) that the layers above put together.
pub(crate) mod flags {
    pub(crate) use libc::{
        O_CREAT, O_DIRECTORY, O_EXCL, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_WRONLY,
    };
}

/// What becomes of a path that leads above the directory it begins at (openat2(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolve {
    /// It is refused with EXDEV, and so is a link to an absolute path.
    Beneath,
    /// As under chroot(2): the directory's parent is itself, and absolute links begin at it.
    InRoot,
}

/// Opens `name` in `directory`, close-on-exec; `mode` is that of a new file.
///
/// # Errors
/// As openat(2).
pub(crate) fn open_at(
    directory: BorrowedFd<'_>,
    name: &CStr,
    flags: i32,
    mode: u32,
) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the descriptor is borrowed, hence open, and the name ends with its NUL.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, mode) };
    let fd = super::check(fd)?;
    // SAFETY: the call above returned a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens what is there at `path`, close-on-exec, without ever leaving `directory` and without
/// following links of /proc that lead anywhere.
///
/// # Errors
/// As openat2(2): EXDEV for a path that leaves, EAGAIN when a rename made it uncertain; ENOSYS
/// before Linux 5.6, EPERM under some sandboxes.
pub(crate) fn open_within(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    resolve: Resolve,
) -> io::Result<OwnedFd> {
    if !allowed(Feature::Openat2) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    // openat(2) adds it by itself, and O_PATH takes no other flags.
    let large = if flags & libc::O_PATH == 0 { libc::O_LARGEFILE } else { 0 };
    let flags = flags | large | libc::O_CLOEXEC;
    let jail = match resolve {
        Resolve::Beneath => libc::RESOLVE_BENEATH,
        Resolve::InRoot => libc::RESOLVE_IN_ROOT,
    };
    // struct open_how: flags, mode (0, since nothing is made), resolve.
    let how: [u64; 3] = [u64::from(flags.cast_unsigned()), 0, libc::RESOLVE_NO_MAGICLINKS | jail];
    // SAFETY: the descriptor is borrowed, hence open, the path ends with its NUL, and `how` has
    // the length that is given with it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_raw_fd(),
            path.as_ptr(),
            how.as_ptr(),
            size_of_val(&how),
        )
    };
    let fd = super::check(fd as libc::c_int)?;
    // SAFETY: the call above returned a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the directory `name` in `directory`; the umask takes from `mode`.
///
/// # Errors
/// As mkdirat(2).
pub(crate) fn make_directory(directory: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, hence open, and the name ends with its NUL.
    super::check(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// Gives the file `from.1` in `from.0` the place `to.1` in `to.0`, in one step.
///
/// # Errors
/// As renameat(2): EXDEV between two file systems.
pub(crate) fn rename(from: (BorrowedFd<'_>, &CStr), to: (BorrowedFd<'_>, &CStr)) -> io::Result<()> {
    let (from_fd, from_name) = (from.0.as_raw_fd(), from.1.as_ptr());
    // SAFETY: both descriptors are borrowed, hence open, and both names end with their NUL.
    let renamed = unsafe { libc::renameat(from_fd, from_name, to.0.as_raw_fd(), to.1.as_ptr()) };
    super::check(renamed).map(drop)
}

/// Removes the file `name` from `directory`; a link goes itself.
///
/// # Errors
/// As unlinkat(2).
pub(crate) fn unlink(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, hence open, and the name ends with its NUL.
    super::check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// What the symbolic link `link`, opened with O_PATH and O_NOFOLLOW, points to.
///
/// # Errors
/// As readlinkat(2); ENAMETOOLONG for more than a path can have.
pub(crate) fn read_link(link: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut text = vec![0; libc::PATH_MAX as usize];
    let (start, length) = (text.as_mut_ptr().cast(), text.len());
    // SAFETY: the descriptor is borrowed, hence open, the name ends with its NUL, and at most
    // `length` bytes are written to `text`.
    let count = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), start, length) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    if count == length {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    text.truncate(count);
    Ok(text)
}

/// Whether `fd` stands in a file system of processes, where links may lead anywhere.
///
/// # Errors
/// As fstatfs(2).
pub(crate) fn is_procfs(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is borrowed, hence open, and the kernel fills the whole struct.
    super::check(unsafe { libc::fstatfs(fd.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: the call above has filled it.
    let found = unsafe { found.assume_init() };
    // Their types differ between C libraries and machines.
    Ok(i128::from(found.f_type) == i128::from(libc::PROC_SUPER_MAGIC))
}

/// Calls `each` with the name of every entry of `directory` but `.` and `..`, from where its
/// descriptor stands, in no order.
///
/// # Errors
/// As getdents64(2).
pub(crate) fn for_each_name(
    directory: BorrowedFd<'_>,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    /// Before the name: inode, offset, length of the record, type (getdents(2)).
    const HEAD_BYTES: usize = 19;
    let mut buffer = vec![0_u8; 32 << 10];
    loop {
        let (start, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the descriptor is borrowed, hence open, and at most `length` bytes are written
        // to `buffer`.
        let count =
            unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), start, length) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        if count == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..count];
        while let [_, ..] = rest {
            let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let (record, after) = rest.split_at(length);
            let name = record[HEAD_BYTES..].split(|byte| *byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                each(name);
            }
            rest = after;
        }
    }
}

/// Closes `fd` and says whether everything written to it has found a place, which some file
/// systems learn only then.
///
/// # Errors
/// As close(2).
pub(crate) fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor was owned, and nobody has it any more.
    super::check(unsafe { libc::close(fd.into_raw_fd()) }).map(drop)
}

/// A name that nobody can guess: `prefix` and 16 hexadecimal digits.
///
/// # Errors
/// As getrandom(2): EINTR before the kernel has any randomness.
pub(crate) fn unguessable_name(prefix: &str) -> io::Result<CString> {
    let mut bytes = [0_u8; 8];
    let (start, length) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: at most `length` bytes are written to `bytes`; so few come all at once.
    let count = unsafe { libc::getrandom(start, length, 0) };
    if usize::try_from(count) != Ok(length) {
        return Err(io::Error::last_os_error());
    }
    let name = format!("{prefix}{:016x}", u64::from_ne_bytes(bytes));
    Ok(CString::new(name).expect("prefixes and digits have no NUL"))
}
