//! Where connections come from: a TCP address or the path of a unix socket.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::quote::quoted;
use crate::sys::socket::{owner_only, set_backlog};

use super::socket::Socket;
use super::{BACKLOG, is_loopback};

/// What to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// An address of this machine; port 0 is any free one.
    Tcp(SocketAddr),
    /// A path at which a socket is made, for its owner alone (0600).
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path after 'unix:'".to_owned()),
            Some(path) => Ok(Listen::Unix(PathBuf::from(path))),
            None => text.parse().map(Listen::Tcp).map_err(|_| {
                "expected an address and a port such as 127.0.0.1:8080 or [::1]:8080, or unix:PATH"
                    .to_owned()
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that connections are accepted from. Dropped, it takes its path away.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    /// With the path, and the device and inode of what was made there.
    Unix(UnixListener, PathBuf, (u64, u64)),
}

impl Listener {
    /// Begins to listen. A socket that stands at a unix path and refuses connections is replaced;
    /// anything else there stays. Call it while this process has one thread.
    ///
    /// # Errors
    /// As bind(2) and listen(2); AddrInUse when somebody listens there already.
    pub fn bind(listen: &Listen) -> io::Result<Listener> {
        let listener = match listen {
            Listen::Tcp(address) => Listener(Kind::Tcp(TcpListener::bind(address)?)),
            Listen::Unix(path) => {
                remove_stale(path)?;
                let listener = owner_only(|| UnixListener::bind(path))?;
                let made = fs::symlink_metadata(path)?;
                Listener(Kind::Unix(listener, path.clone(), (made.dev(), made.ino())))
            }
        };
        match &listener.0 {
            Kind::Tcp(listener) => listener.set_nonblocking(true)?,
            Kind::Unix(listener, ..) => listener.set_nonblocking(true)?,
        }
        set_backlog(listener.as_fd(), BACKLOG)?;
        Ok(listener)
    }

    /// Accepts a connection that is there.
    ///
    /// # Errors
    /// WouldBlock when there is none; as accept(2).
    pub(super) fn accept(&self) -> io::Result<Socket> {
        match &self.0 {
            Kind::Tcp(listener) => Ok(Socket::tcp(listener.accept()?.0)),
            Kind::Unix(listener, ..) => Ok(Socket::unix(listener.accept()?.0)),
        }
    }

    /// The TCP address; `None` for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().ok(),
            Kind::Unix(..) => None,
        }
    }

    /// Whether only this machine can reach it over TCP.
    pub fn is_loopback(&self) -> bool {
        self.address().is_some_and(|address| is_loopback(address.ip()))
    }
}

/// What a client puts before its path: `http://127.0.0.1:8080`, `unix:/run/runcap`.
impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "http://{address}"),
                Err(_) => f.write_str("http"),
            },
            Kind::Unix(_, path, _) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Tcp(listener) => listener.as_fd(),
            Kind::Unix(listener, ..) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix(_, path, made) = &self.0 {
            // Somebody else may have put something else there.
            let there = fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()));
            if there.is_ok_and(|there| there == *made) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Removes a socket at `path` that nobody listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Ok(there) => there,
        // Nothing there, or nothing that can be seen: bind says what is wrong.
        Err(_) => return Ok(()),
    };
    let in_use = |what| {
        let shown = quoted(&path.to_string_lossy());
        Err(io::Error::new(ErrorKind::AddrInUse, format!("{shown} {what}")))
    };
    if !there.file_type().is_socket() {
        return in_use("is there and is no socket: name another path or remove it");
    }
    // A datagram socket, since connecting a stream waits as long as the queue of a listener is
    // full: who has a stream socket there answers EPROTOTYPE at once (unix(7)).
    match UnixDatagram::unbound()?.connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        _ => in_use("is in use by another server"),
    }
}
