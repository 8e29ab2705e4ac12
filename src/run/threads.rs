//! The pipes of one command and the threads that work on them.

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle, Thread};

use crate::outcome::Stream;
use crate::spec::{Outputs, Spec, Stdin};
use crate::sys;

use super::copy::{self, Shared, State};
use super::{Sinks, THREAD_STACK_BYTES};

/// runcap's ends of the command's pipes, each `None` where there is no pipe.
pub(super) struct Ours {
    stdin: Option<PipeWriter>,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
}

/// The command's three descriptors, and our ends of them.
pub(super) fn pipes(spec: &Spec) -> io::Result<([Stdio; 3], Ours)> {
    let (stdin, feed) = match &spec.stdin {
        Stdin::Null => (Stdio::null(), None),
        Stdin::Inherit => (Stdio::inherit(), None),
        Stdin::File(file) => (Stdio::from(file.try_clone()?), None),
        Stdin::Bytes(_) => {
            let (child, ours) = pipe()?;
            sys::pipe::set_nonblocking(ours.as_fd())?;
            (Stdio::from(child), Some(ours))
        }
    };
    let unread: Option<fn() -> Stdio> = match spec.outputs {
        Outputs::Read => None,
        Outputs::Inherit => Some(Stdio::inherit),
        Outputs::Null => Some(Stdio::null),
    };
    if let Some(output) = unread {
        let stdio = [stdin, output(), output()];
        return Ok((stdio, Ours { stdin: feed, stdout: None, stderr: None }));
    }
    let (stdout, child_stdout) = pipe()?;
    sys::pipe::set_nonblocking(stdout.as_fd())?;
    let (stderr, child_stderr) = if spec.merge_stderr {
        (None, child_stdout.try_clone()?)
    } else {
        let (ours, child) = pipe()?;
        sys::pipe::set_nonblocking(ours.as_fd())?;
        (Some(ours), child)
    };
    let stdio = [stdin, Stdio::from(child_stdout), Stdio::from(child_stderr)];
    Ok((stdio, Ours { stdin: feed, stdout: Some(stdout), stderr }))
}

/// The threads of one command. They exist before it does, so that a thread that cannot be had is
/// a clean refusal, and wait for their pipe; without one they end.
pub(super) struct Threads<'scope> {
    feeder: Option<Worker<'scope, PipeWriter>>,
    stdout: Option<Worker<'scope, PipeReader>>,
    stderr: Option<Worker<'scope, PipeReader>>,
}

impl<'scope> Threads<'scope> {
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        spec: &'env Spec,
        sinks: Sinks<'env>,
        shared: &'env Shared,
    ) -> io::Result<Threads<'scope>> {
        let feeder = match &spec.stdin {
            Stdin::Null | Stdin::File(_) | Stdin::Inherit => None,
            Stdin::Bytes(bytes) => Some(Worker::start(scope, move |pipe| {
                copy::feed(pipe, bytes, shared);
                None
            })?),
        };
        let copier = |stream, sink, overflow| {
            Worker::start(scope, move |pipe: PipeReader| {
                let state = copy::copy(&pipe, sink, overflow, shared, stream);
                // Kept open until the command was ended: a closed pipe before the KILL would look
                // to a shell as if its child died of SIGPIPE, and it would go on.
                (state != State::Ended).then_some(pipe)
            })
        };
        let copier_unless = |unread: bool, stream, sink, overflow| {
            if unread {
                shared.set_state(stream, State::Ended);
                return Ok(None);
            }
            copier(stream, sink, overflow).map(Some)
        };
        let unread = spec.outputs != Outputs::Read;
        let stdout = copier_unless(unread, Stream::Stdout, sinks.stdout, spec.stdout.overflow)?;
        let stderr = copier_unless(
            unread || spec.merge_stderr,
            Stream::Stderr,
            sinks.stderr,
            spec.stderr.overflow,
        )?;
        Ok(Threads { feeder, stdout, stderr })
    }

    /// Gives every thread its pipe.
    pub(super) fn hand_over(&self, ours: Ours) {
        if let (Some(worker), Some(pipe)) = (&self.feeder, ours.stdin) {
            worker.give(pipe);
        }
        if let (Some(worker), Some(pipe)) = (&self.stdout, ours.stdout) {
            worker.give(pipe);
        }
        if let (Some(worker), Some(pipe)) = (&self.stderr, ours.stderr) {
            worker.give(pipe);
        }
    }

    /// Waits for their ends and returns the pipes whose end was not reached.
    pub(super) fn join(self) -> Vec<PipeReader> {
        self.feeder.and_then(Worker::join);
        let stderr = self.stderr.and_then(Worker::join);
        self.stdout.and_then(Worker::join).into_iter().chain(stderr).collect()
    }
}

/// A thread that waits for one pipe and works on it; without one it ends.
///
/// The loser was a channel: it hands over one value just as well, with 15 KB more of program.
struct Worker<'scope, P> {
    giver: Giver<P>,
    thread: ScopedJoinHandle<'scope, Option<PipeReader>>,
}

/// The end of a [`Worker`] that gives it its pipe. Dropped, it says that none will come.
struct Giver<P> {
    slot: Arc<Mutex<Slot<P>>>,
    thread: Thread,
}

enum Slot<P> {
    Empty,
    Pipe(P),
    Closed,
}

impl<'scope, P: Send + 'scope> Worker<'scope, P> {
    fn start(
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce(P) -> Option<PipeReader> + Send + 'scope,
    ) -> io::Result<Worker<'scope, P>> {
        let slot = Arc::new(Mutex::new(Slot::Empty));
        let theirs = Arc::clone(&slot);
        let wait_and_work = move || loop {
            // Taken out first: a lock in the match would be held while this works or sleeps.
            let given = std::mem::replace(&mut *lock(&theirs), Slot::Empty);
            match given {
                Slot::Pipe(pipe) => return work(pipe),
                Slot::Closed => return None,
                Slot::Empty => thread::park(),
            }
        };
        let builder = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
        let thread = builder.spawn_scoped(scope, wait_and_work)?;
        let giver = Giver { slot, thread: thread.thread().clone() };
        Ok(Worker { giver, thread })
    }

    fn give(&self, pipe: P) {
        *lock(&self.giver.slot) = Slot::Pipe(pipe);
        self.giver.thread.unpark();
    }

    fn join(self) -> Option<PipeReader> {
        match self.thread.join() {
            Ok(pipe) => pipe,
            // A sink that panicked: the panic is its caller's.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl<P> Drop for Giver<P> {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
        // A pipe that was given and not yet taken stays.
        if let Slot::Empty = *slot {
            *slot = Slot::Closed;
        }
        drop(slot);
        self.thread.unpark();
    }
}

fn lock<P>(slot: &Mutex<Slot<P>>) -> MutexGuard<'_, Slot<P>> {
    // Nothing in between can panic.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
