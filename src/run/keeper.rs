//! One thread that outlives commands: it drains the pipes of processes that were left running, so
//! that a service does not die of SIGPIPE on its next log line, and reaps orphans.
//!
//! It exists only once there is something for it to do.

use std::collections::VecDeque;
use std::io::{ErrorKind, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::sys::poll::{Event, Interest, PollFd, poll};
use crate::sys::signal::watch_children;

use super::{THREAD_STACK_BYTES, registry};

/// Streams of left-running processes that are drained at once; the oldest is closed first.
pub const KEPT_STREAMS_MAX: usize = 64;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// What the thread shares with those who give it work.
struct Keeper {
    /// Readable when `incoming` has grown or a child has ended.
    wake: &'static Event,
    incoming: Mutex<VecDeque<PipeReader>>,
    /// Streams that are drained, those in `incoming` not counted; changed under its lock.
    kept: AtomicUsize,
}

static KEEPER: Mutex<Option<&'static Keeper>> = Mutex::new(None);

/// The thread, started at the first call; `None` when it cannot be had.
fn keeper() -> Option<&'static Keeper> {
    let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if keeper.is_none() {
        let wake: &'static Event = Box::leak(Box::new(Event::new().ok()?));
        let incoming = Mutex::new(VecDeque::new());
        let shared: &'static Keeper =
            Box::leak(Box::new(Keeper { wake, incoming, kept: AtomicUsize::new(0) }));
        let builder = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
        builder.spawn(|| keep(shared)).ok()?;
        if registry::reaps_all() {
            watch_children(wake);
        }
        *keeper = Some(shared);
    }
    *keeper
}

/// Reaps this process's orphans from now on, as they end.
pub(super) fn reap_from_now_on() {
    if let Some(keeper) = keeper() {
        // One may have ended before it was watched.
        keeper.wake.notify();
    }
}

/// Drains `pipes` until their ends, as long as this process lives. Where that cannot be had they
/// are closed, and who writes to them gets SIGPIPE.
pub(super) fn drain(pipes: impl IntoIterator<Item = PipeReader>) {
    let Some(keeper) = keeper() else { return };
    let mut incoming = keeper.incoming.lock().unwrap_or_else(PoisonError::into_inner);
    incoming.extend(pipes);
    while incoming.len() > KEPT_STREAMS_MAX {
        incoming.pop_front();
    }
    keeper.wake.notify();
}

/// Streams of left-running processes that are drained now; they are closed when this process ends.
pub fn kept_streams() -> usize {
    let keeper = *KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    keeper.map_or(0, |keeper| {
        let incoming = keeper.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        (incoming.len() + keeper.kept.load(Ordering::Relaxed)).min(KEPT_STREAMS_MAX)
    })
}

fn keep(keeper: &Keeper) {
    let mut pipes: VecDeque<PipeReader> = VecDeque::new();
    let mut scratch = vec![0; READ_BYTES];
    loop {
        let wake = PollFd::new(Some(keeper.wake.as_fd()), Interest::Read);
        let mut fds = vec![wake];
        fds.extend(pipes.iter().map(|pipe| PollFd::new(Some(pipe.as_fd()), Interest::Read)));
        // A poll that fails (out of kernel memory) sees nothing and is tried again.
        let _ = poll(&mut fds, None);
        let mut ready = fds[1..].iter().map(PollFd::ready);
        pipes.retain(|pipe| !ready.next().unwrap_or(false) || goes_on(pipe, &mut scratch));
        keeper.wake.clear();
        let mut incoming = keeper.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        pipes.extend(incoming.drain(..));
        while pipes.len() > KEPT_STREAMS_MAX {
            pipes.pop_front();
        }
        keeper.kept.store(pipes.len(), Ordering::Relaxed);
        drop(incoming);
        registry::reap_orphans(&[]);
    }
}

/// Throws away what stands in the pipe; false at its end.
fn goes_on(mut pipe: &PipeReader, scratch: &mut [u8]) -> bool {
    match pipe.read(scratch) {
        Ok(count) => count > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
