//! Which newer kernel interfaces are used, and how a test takes them away.

use std::sync::atomic::{AtomicU8, Ordering};

/// A kernel interface that has a fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Feature {
    /// pidfd_open(2) and pidfd_send_signal(2), Linux 5.3.
    Pidfd = 1,
    /// close_range(2) with CLOSE_RANGE_CLOEXEC, Linux 5.11.
    CloseRange = 2,
    /// splice(2) to /dev/null.
    Splice = 4,
    /// /proc/PID/task/TID/children, Linux 4.2 with CONFIG_PROC_CHILDREN.
    ChildrenLists = 8,
    /// The inherited mark, a soft RLIMIT_RTTIME.
    Mark = 16,
    /// openat2(2), Linux 5.6.
    Openat2 = 32,
}

static TAKEN_AWAY: AtomicU8 = AtomicU8::new(0);

/// Makes this process do without `feature` from now on, as on a kernel that lacks it.
pub fn take_away(feature: Feature) {
    TAKEN_AWAY.fetch_or(feature as u8, Ordering::Relaxed);
}

/// Whether `feature` may be tried.
pub(crate) fn allowed(feature: Feature) -> bool {
    TAKEN_AWAY.load(Ordering::Relaxed) & feature as u8 == 0
}
