//! Files by a directory's descriptor and a name, which is how a path is followed without a race.

use std::ffi::{CStr, CString};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

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

/// Removes the empty directory `name` from `directory`.
///
/// # Errors
/// As unlinkat(2): ENOTEMPTY or EEXIST for one that is not empty, EBUSY for a mount point, whatever
/// it holds.
pub(crate) fn remove_directory(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, hence open, and the name ends with its NUL.
    let removed =
        unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) };
    super::check(removed).map(drop)
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
    Ok(file_system(fd)? == i128::from(libc::PROC_SUPER_MAGIC))
}

/// The type of the file system that `fd` stands in.
fn file_system(fd: BorrowedFd<'_>) -> io::Result<i128> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is borrowed, hence open, and the kernel fills the whole struct.
    super::check(unsafe { libc::fstatfs(fd.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: the call above has filled it.
    let found = unsafe { found.assume_init() };
    // Their types differ between C libraries and machines.
    Ok(i128::from(found.f_type))
}

/// The entries of a directory but `.` and `..`, one after the other and in no order, in memory for
/// a few of them.
#[derive(Debug)]
pub(crate) struct Entries {
    /// Records of getdents64(2) that were not looked at yet begin at `at`.
    records: Vec<u8>,
    at: usize,
    read_bytes: usize,
}

impl Entries {
    /// Before the name of a record: inode, offset, length of the record, type (getdents(2)).
    const HEAD_BYTES: usize = 19;

    /// So many bytes of records are read at once; the longest record has 280.
    pub(crate) fn new(read_bytes: usize) -> Entries {
        Entries { records: Vec::new(), at: 0, read_bytes }
    }

    /// The next name, and what kind it is: the type bits of its `st_mode`, shifted to 0, or 0 where
    /// the file system does not tell. The first call begins where the descriptor of `directory`
    /// stands, which must be the same one in every call.
    ///
    /// # Errors
    /// As getdents64(2): ENOENT for a directory that was removed.
    pub(crate) fn next(&mut self, directory: BorrowedFd<'_>) -> io::Result<Option<(&CStr, u8)>> {
        let start = loop {
            if self.at == self.records.len() && !self.read(directory)? {
                return Ok(None);
            }
            let record = &self.records[self.at..];
            let start = self.at + Entries::HEAD_BYTES;
            self.at += usize::from(u16::from_ne_bytes([record[16], record[17]]));
            let name = &record[Entries::HEAD_BYTES..];
            if !name.starts_with(b".\0") && !name.starts_with(b"..\0") {
                break start;
            }
        };
        let name = CStr::from_bytes_until_nul(&self.records[start..self.at]);
        Ok(Some((name.expect("names end with a NUL"), self.records[start - 1])))
    }

    /// Reads further records; false when there are none.
    fn read(&mut self, directory: BorrowedFd<'_>) -> io::Result<bool> {
        self.records.resize(self.read_bytes, 0);
        let (start, length) = (self.records.as_mut_ptr(), self.records.len());
        // SAFETY: the descriptor is borrowed, hence open, and at most `length` bytes are written
        // to `records`.
        let count =
            unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), start, length) };
        let error = io::Error::last_os_error();
        self.at = 0;
        self.records.truncate(usize::try_from(count).unwrap_or(0));
        if count < 0 { Err(error) } else { Ok(count > 0) }
    }
}

/// What stat(2) says of a file, as far as clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Type and permissions.
    pub(crate) st_mode: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// When its content changed: seconds since 1970, which may be before, and nanoseconds after
    /// them. Absent where it cannot be told.
    pub(crate) mtime: Option<(i64, u32)>,
}

impl From<&Metadata> for Stat {
    fn from(found: &Metadata) -> Stat {
        // From 0 to 999,999,999, before 1970 too.
        let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or(0);
        let mtime = Some((found.mtime(), nanoseconds));
        Stat { st_mode: found.mode(), size: found.len(), mtime }
    }
}

impl Stat {
    /// What is left to say of an entry of which only [`Entries`]' kind is known.
    pub(crate) fn of_kind(kind: u8) -> Stat {
        Stat { st_mode: u32::from(kind & 0o17) << 12, size: 0, mtime: None }
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.st_mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether it is a symbolic link.
    pub(crate) fn is_symlink(&self) -> bool {
        self.st_mode & libc::S_IFMT == libc::S_IFLNK
    }
}

/// What is at `name` in `directory`; a link is told of itself, and nothing is mounted for it.
///
/// # Errors
/// As fstatat(2).
pub(crate) fn stat_at(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Stat> {
    let mut found = std::mem::MaybeUninit::<libc::stat64>::uninit();
    let (fd, start) = (directory.as_raw_fd(), found.as_mut_ptr());
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the descriptor is borrowed, hence open, the name ends with its NUL, and the kernel
    // fills the whole struct.
    super::check(unsafe { libc::fstatat64(fd, name.as_ptr(), start, flags) })?;
    // SAFETY: the call above has filled it.
    let found = unsafe { found.assume_init() };
    let mtime = u32::try_from(found.st_mtime_nsec).ok().map(|nanos| (found.st_mtime, nanos));
    Ok(Stat { st_mode: found.st_mode, size: u64::try_from(found.st_size).unwrap_or(0), mtime })
}

/// Whether `directory` is on a file system that gives a directory another time with every change
/// of its names. /proc and /sys do not, and those of other machines learn of it late.
///
/// # Errors
/// As fstatfs(2).
pub(crate) fn tells_changes(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let told = [
        i128::from(libc::EXT4_SUPER_MAGIC),
        i128::from(libc::XFS_SUPER_MAGIC),
        i128::from(libc::BTRFS_SUPER_MAGIC),
        i128::from(libc::F2FS_SUPER_MAGIC),
        i128::from(libc::TMPFS_MAGIC),
        i128::from(libc::OVERLAYFS_SUPER_MAGIC),
    ];
    Ok(told.contains(&file_system(directory)?))
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
