//! Accepting: a thread for each connection up to a fixed number, an immediate 503 past it, and a
//! rest where the process is out of something, since an error of accept(2) says nothing about the
//! next connection.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::EndSignals;
use crate::sys::alloc::KeepsBlocks;
use crate::sys::poll::{Interest, PollFd, poll};

use super::connection::{self, Connection};
use super::places::Places;
use super::socket::Socket;
use super::{
    ACCEPT_REST, BACKLOG, LINGER_MAX, Limits, Listener, PLACE_WAIT, SHUTDOWN_MAX, Service,
    THREAD_STACK_BYTES, TURNED_AWAY_MAX,
};

/// What all connections of a server share.
pub(super) struct Shared<S> {
    pub(super) service: Arc<S>,
    pub(super) keep_alive: Duration,
    pub(super) large_heads: Places,
    pub(super) large_buffers: Places,
    open: Mutex<Open>,
    fewer: Condvar,
}

/// Connections that are being served.
struct Open {
    connections: Vec<Arc<Connection>>,
    /// When one was closed, or the server began.
    last_closed: Instant,
}

impl<S> Shared<S> {
    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing that changes it can panic halfway.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time until nobody has been connected for as long as `idle`, if it begins now.
    fn idle_left(&self, idle: Duration) -> Duration {
        let open = self.open();
        match open.connections.is_empty() {
            true => idle.saturating_sub(open.last_closed.elapsed()),
            false => idle,
        }
    }
}

/// A connection among those that may be open at once; dropped, its place is free again.
struct Opened<S> {
    shared: Arc<Shared<S>>,
    connection: Arc<Connection>,
}

impl<S> Opened<S> {
    /// `None` when `max` are open.
    fn new(shared: &Arc<Shared<S>>, connection: &Arc<Connection>, max: usize) -> Option<Opened<S>> {
        let mut open = shared.open();
        if open.connections.len() >= max {
            return None;
        }
        open.connections.push(Arc::clone(connection));
        Some(Opened { shared: Arc::clone(shared), connection: Arc::clone(connection) })
    }
}

impl<S> Drop for Opened<S> {
    fn drop(&mut self) {
        let mut open = self.shared.open();
        open.connections.retain(|other| !Arc::ptr_eq(other, &self.connection));
        open.last_closed = Instant::now();
        self.shared.fewer.notify_all();
    }
}

/// Why a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every request that had come was answered.
    Answered,
    /// Connections were still open when no more time was left.
    CutShort,
}

/// Serves connections from `listener` until `end` says so, if it is there, or nobody came for a
/// while, and then until those that are open have been answered, at most [`SHUTDOWN_MAX`].
pub fn serve<S: Service>(
    listener: Listener,
    limits: Limits,
    end: Option<EndSignals>,
    service: Arc<S>,
) -> Ended {
    let shared = Arc::new(Shared {
        service,
        keep_alive: limits.keep_alive,
        large_heads: Places::default(),
        large_buffers: Places::default(),
        open: Mutex::new(Open { connections: Vec::new(), last_closed: Instant::now() }),
        fewer: Condvar::new(),
    });
    accept_all(&listener, limits, end, &shared);
    // From here on who connects is refused by the kernel, and a new server may listen.
    drop(listener);
    let start = Instant::now();
    let mut open = shared.open();
    open.connections.iter().for_each(|connection| connection.end_if_idle());
    while !open.connections.is_empty() {
        let left = SHUTDOWN_MAX.saturating_sub(start.elapsed());
        if left.is_zero() || end.is_some_and(|end| is_readable(end.kill())) {
            return Ended::CutShort;
        }
        // A signal wakes nobody here, so it is looked for now and then.
        let woken = shared.fewer.wait_timeout(open, left.min(ACCEPT_REST));
        open = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
    Ended::Answered
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(Some(fd), Interest::Read)];
    poll(&mut fds, Some(Duration::ZERO)).is_ok() && fds[0].ready()
}

fn accept_all<S: Service>(
    listener: &Listener,
    limits: Limits,
    end: Option<EndSignals>,
    shared: &Arc<Shared<S>>,
) {
    let mut turned_away = TurnedAway::default();
    let (mut resting, mut complained) = (false, false);
    loop {
        let idle_left = limits.idle_exit.map(|idle| shared.idle_left(idle));
        let mut fds = vec![
            PollFd::new(end.as_ref().map(EndSignals::stop), Interest::Read),
            // Out of descriptors, a connection that waits would keep this loop spinning.
            PollFd::new((!resting).then(|| listener.as_fd()), Interest::Read),
        ];
        fds.extend(turned_away.poll_fds());
        let rest = resting.then_some(ACCEPT_REST);
        let wait = [rest, turned_away.wait(), idle_left].into_iter().flatten().min();
        // A poll that fails (out of kernel memory) sees nothing and is tried again.
        if poll(&mut fds, wait).is_err() {
            thread::sleep(ACCEPT_REST);
        }
        if fds[0].ready() {
            // Who was connected before is owed an answer; without a limit newcomers could keep the
            // server from ever ending.
            for _ in 0..BACKLOG {
                match listener.accept() {
                    Ok(socket) => start_connection(socket, limits, shared, &mut turned_away),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // One that has left already says nothing about those behind it.
                    Err(_) => {}
                }
            }
            return;
        }
        resting = false;
        turned_away.look_after();
        if !fds[1].ready() && rest.is_none() {
            // Who has come in the last moment is let in first.
            if idle_left == Some(Duration::ZERO) {
                return;
            }
            continue;
        }
        match listener.accept() {
            Ok(socket) => {
                complained = false;
                start_connection(socket, limits, shared, &mut turned_away);
            }
            Err(error) if comes_back_at_once(&error) => {
                resting = true;
                if !std::mem::replace(&mut complained, true) {
                    let what = format_args!("connections cannot be accepted now: {error}");
                    shared.service.complain(what);
                }
            }
            Err(_) => {}
        }
    }
}

/// Whether an error of accept(2) says something about this process, so that it comes back as soon
/// as it is tried again. The others are about one connection that is lost already.
fn comes_back_at_once(error: &io::Error) -> bool {
    let passes = [ErrorKind::WouldBlock, ErrorKind::Interrupted, ErrorKind::ConnectionAborted];
    !passes.contains(&error.kind())
}

fn start_connection<S: Service>(
    socket: Socket,
    limits: Limits,
    shared: &Arc<Shared<S>>,
    turned_away: &mut TurnedAway,
) {
    let connection = Arc::new(Connection::new(socket));
    let opened = Opened::new(shared, &connection, limits.connections)
        .or_else(|| turned_away.wait_for_place(shared, &connection, limits.connections));
    let started = opened.is_some_and(|opened| {
        let serve = move || {
            let _keeps = KeepsBlocks::new();
            connection::serve(&opened.connection, &opened.shared);
        };
        // Out of threads, what the thread would have owned is dropped, its place with it.
        thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(serve).is_ok()
    });
    if !started {
        let reason = "no room for another connection";
        connection::turn_away(&connection.socket, &*shared.service, reason);
        turned_away.add(connection);
    }
}

/// Connections that got a 503. Each is kept until its client has closed it, or for a moment, since
/// a close would reset it and lose the answer where a request is still under way.
#[derive(Default)]
struct TurnedAway {
    connections: Vec<(Arc<Connection>, Instant)>,
    /// When a place was last waited for in vain.
    in_vain: Option<Instant>,
}

impl TurnedAway {
    /// Waits a moment for a place: who connects as soon as another connection has ended may be
    /// here before the thread of that has noticed. Not again soon after it was in vain, so that a
    /// flood is told at once.
    fn wait_for_place<S>(
        &mut self,
        shared: &Arc<Shared<S>>,
        connection: &Arc<Connection>,
        max: usize,
    ) -> Option<Opened<S>> {
        if self.in_vain.is_some_and(|in_vain| in_vain.elapsed() < ACCEPT_REST) {
            return None;
        }
        drop(shared.fewer.wait_timeout(shared.open(), PLACE_WAIT));
        let opened = Opened::new(shared, connection, max);
        self.in_vain = opened.is_none().then(Instant::now);
        opened
    }

    fn add(&mut self, connection: Arc<Connection>) {
        if self.connections.len() == TURNED_AWAY_MAX {
            self.connections.remove(0);
        }
        self.connections.push((connection, Instant::now() + LINGER_MAX));
    }

    fn poll_fds(&self) -> impl Iterator<Item = PollFd> {
        let fds = self.connections.iter().map(|(connection, _)| connection.socket.as_fd());
        fds.map(|fd| PollFd::new(Some(fd), Interest::Read))
    }

    /// Time until one has been kept for long enough.
    fn wait(&self) -> Option<Duration> {
        let now = Instant::now();
        self.connections.iter().map(|(_, until)| until.saturating_duration_since(now)).min()
    }

    fn look_after(&mut self) {
        let now = Instant::now();
        let stays = |connection: &Connection| connection::drain(&connection.socket);
        self.connections.retain(|(connection, until)| *until > now && stays(connection));
    }
}
