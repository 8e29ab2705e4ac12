//! What both ways of moving a file share: several ranges at once, each tried again where its
//! connection broke.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::connection::{Closer, Connection};
use super::{Error, Server};
use crate::wire::sandbox::ranges::{Range, Ranges, ranges};

/// Ranges that are moved at once unless the caller says otherwise: as many connections as the
/// published client uses.
pub const JOBS_DEFAULT: usize = 16;

/// Ranges that are moved at once at most.
pub const JOBS_MAX: usize = 64;

/// Bytes of a range.
pub(super) const RANGE_BYTES: NonZeroU64 = NonZeroU64::new(1 << 20).expect("not zero");

/// How often a range is begun.
const TRIES_MAX: u32 = 4;

/// How long a server that has no room for one more is asked again.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// Pause before a range is begun again, times the tries that there were.
const PAUSE: Duration = Duration::from_millis(100);

/// Stack of a thread that moves ranges.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// Moves every range of `size` bytes, `jobs` at once. The first error that lasts ends it all.
pub(super) fn for_each_range(
    server: &Server,
    size: u64,
    jobs: usize,
    move_range: impl Fn(&mut Connection, Range) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let count = usize::try_from(size.div_ceil(RANGE_BYTES.get())).unwrap_or(usize::MAX);
    let workers = jobs.clamp(1, JOBS_MAX).min(count.max(1));
    let todo = Todo {
        ranges: Mutex::new(Some((ranges(size, RANGE_BYTES), Vec::new()))),
        workers: AtomicUsize::new(workers),
        error: Mutex::new(None),
        closers: Mutex::new(Vec::new()),
    };
    let work = || {
        let (mut connection, mut since) = (None, Instant::now());
        while let Some(range) = todo.next_or_leave() {
            let action = |open: &mut Connection| move_range(open, range);
            match again_unless(&todo, server, &mut connection, action) {
                Ok(()) => since = Instant::now(),
                Err(error) if error.is_busy() => {
                    todo.give_back(range);
                    // The server has no room for so many: the others do this one too.
                    if todo.leave() {
                        return;
                    }
                    // There are no others here; somebody else's may end.
                    match since.elapsed() < BUSY_MAX {
                        true => thread::sleep(PAUSE),
                        false => todo.fail(error),
                    }
                }
                Err(error) => todo.fail(error),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            let thread = thread::Builder::new().stack_size(THREAD_STACK_BYTES);
            // With fewer threads it takes longer.
            if thread.spawn_scoped(scope, work).is_err() {
                todo.leave();
            }
        }
        work();
    });
    let error = todo.error.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(()), Err)
}

/// What is left to be done.
struct Todo {
    /// Those that nobody began, and those that were given back; none once there is an error.
    ranges: Mutex<Option<(Ranges, Vec<Range>)>>,
    /// Who is at it.
    workers: AtomicUsize,
    /// The first one.
    error: Mutex<Option<Error>>,
    /// Of every connection that is open.
    closers: Mutex<Vec<Closer>>,
}

impl Todo {
    fn next(&self) -> Option<Range> {
        let mut ranges = lock(&self.ranges);
        let (ranges, given_back) = ranges.as_mut()?;
        given_back.pop().or_else(|| ranges.next())
    }

    /// As [`Todo::next`]; a worker that gets none has left. The last one looks again: what was
    /// given back after its first look is its own to do.
    fn next_or_leave(&self) -> Option<Range> {
        self.next().or_else(|| if self.leave() { None } else { self.next() })
    }

    fn give_back(&self, range: Range) {
        if let Some((_, given_back)) = &mut *lock(&self.ranges) {
            given_back.push(range);
        }
    }

    /// One worker ends; false for the last one, which has to do what is left.
    fn leave(&self) -> bool {
        let less = |workers: usize| workers.checked_sub(1).filter(|left| *left > 0);
        self.workers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// Ends all that is under way.
    fn fail(&self, error: Error) {
        *lock(&self.ranges) = None;
        lock(&self.error).get_or_insert(error);
        lock(&self.closers).iter().for_each(Closer::close);
    }

    fn has_failed(&self) -> bool {
        lock(&self.ranges).is_none()
    }

    /// Has a connection closed as soon as there is an error, also one that there was.
    fn watch(&self, connection: &Connection) {
        let mut closers = lock(&self.closers);
        closers.retain(|closer| !closer.is_closed());
        closers.push(connection.closer());
        drop(closers);
        if self.has_failed() {
            lock(&self.closers).iter().for_each(Closer::close);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that changes it can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `action` over the connection that is there or a new one, again where that may help: it must
/// be one that can be done twice.
pub(super) fn again<T>(
    server: &Server,
    connection: &mut Option<Connection>,
    action: impl FnMut(&mut Connection) -> Result<T, Error>,
) -> Result<T, Error> {
    try_on(server, connection, action, &|_| {}, &|| false, BUSY_MAX)
}

/// As [`again`], but not once `todo` has failed.
fn again_unless<T>(
    todo: &Todo,
    server: &Server,
    connection: &mut Option<Connection>,
    action: impl FnMut(&mut Connection) -> Result<T, Error>,
) -> Result<T, Error> {
    let (opened, is_over) = (|opened: &Connection| todo.watch(opened), || todo.has_failed());
    try_on(server, connection, action, &opened, &is_over, Duration::ZERO)
}

fn try_on<T>(
    server: &Server,
    connection: &mut Option<Connection>,
    mut action: impl FnMut(&mut Connection) -> Result<T, Error>,
    opened: &dyn Fn(&Connection),
    is_over: &dyn Fn() -> bool,
    busy_max: Duration,
) -> Result<T, Error> {
    let (mut tries, start) = (0, Instant::now());
    loop {
        let open = match connection.take().filter(Connection::is_clean) {
            Some(open) => Ok(open),
            None => Connection::open(&server.address).inspect(opened),
        };
        let done = open.and_then(|mut open| {
            let done = action(&mut open)?;
            *connection = Some(open);
            Ok(done)
        });
        tries += 1;
        match done {
            Err(error) if error.is_busy() => match start.elapsed() < busy_max {
                true => thread::sleep(PAUSE),
                false => return Err(error),
            },
            Err(error) if error.is_passing() && tries < TRIES_MAX && !is_over() => {
                thread::sleep(PAUSE * tries);
            }
            done => return done,
        }
    }
}
