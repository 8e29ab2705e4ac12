//! `runcap client`: the host's half of a sandbox. Whatever a server says, it costs the caller a
//! bound: bodies are streamed, lines, heads, pages and messages are limited, files are moved in
//! ranges.
//!
//! [`Server`] is where the server is, [`run`], [`get`], [`put`] and [`ls`] are what can be asked of
//! it; each speaks the sandbox dialect (`wire::sandbox`) over a [`connection`]. There is no TLS:
//! use ssh or a port-forward.

pub mod connection;
pub mod get;
mod local;
pub mod ls;
mod progress;
pub mod put;
pub mod run;
pub mod transfer;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use crate::quote::quoted;
use crate::token::Token;
use crate::wire::sandbox::client::answers::{read_protocol, shown};

pub use local::abandon;
pub use progress::Progress;

/// The dialect's version that is spoken.
pub const PROTOCOL: u64 = 3;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host, by name or number, and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        const EXPECTED: &str = "expected http://HOST:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("expected a path after 'unix:'".to_owned()),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        if text.starts_with("https:") {
            return Err("TLS is not spoken: use ssh or a port-forward, and http://".to_owned());
        }
        let rest = text.strip_prefix("http://").ok_or(EXPECTED)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or(EXPECTED)?;
        let is_host = |host: &str| {
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let plain = |host: &str| {
                host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            };
            inner.map_or_else(|| plain(host), |inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
        };
        match port.parse() {
            Ok(port) if port > 0 && !host.is_empty() && is_host(host) => {
                Ok(Address::Tcp(host.to_owned(), port))
            }
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) => write!(f, "http://{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A server that speaks the sandbox dialect.
#[derive(Debug)]
pub struct Server {
    address: Address,
    token: Option<Token>,
}

impl Server {
    /// The server at `address`, which wants to be told `token` if it wants one.
    pub fn new(address: Address, token: Option<Token>) -> Server {
        Server { address, token }
    }

    /// A text of the server's without the token, which some say back in an error.
    fn hide(&self, text: String) -> String {
        match &self.token {
            Some(token) => text.replace(token.as_str(), "[token]"),
            None => text,
        }
    }

    /// Asks whether it is there and speaks a protocol that this client does.
    ///
    /// # Errors
    /// `Connect` when nobody answers there, `Protocol` for an older one, and what else an answer
    /// may be wrong about.
    pub fn check(&self) -> Result<(), Error> {
        let body = transfer::again(self, &mut None, |connection| {
            connection.ask(self, "GET", "/health", None)?.small()
        })?;
        match read_protocol(&body).map_err(Error::Invalid)? {
            PROTOCOL.. => Ok(()),
            theirs => Err(Error::Protocol { theirs }),
        }
    }
}

/// Why something could not be done.
#[derive(Debug)]
pub enum Error {
    /// Nobody answers there: what was tried, and the system's reason.
    Connect(String, io::Error),
    /// The connection broke, or the server was silent for too long.
    Connection(io::Error),
    /// The server says no: its status, and its text on one line.
    Refused(u16, String),
    /// What came is nothing that a server of this dialect says: one line.
    Invalid(String),
    /// It speaks an older protocol.
    Protocol {
        /// Which.
        theirs: u64,
    },
    /// A file of this machine.
    Local(PathBuf, io::Error),
    /// A file changed while it was moved: its name.
    Changed(String),
    /// More was printed, or is in a file, than may be held, bytes; and the way out.
    TooLarge(u64, &'static str),
    /// What was asked for cannot be said to a server, and the way out.
    Unspeakable(String),
    /// What came could not be passed on.
    Output(io::Error),
}

impl Error {
    /// Whether the same may succeed on another connection.
    fn is_passing(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        match self {
            Error::Connection(_) => true,
            // Somebody was there, and has gone before it was looked at.
            Error::Connect(_, source) => matches!(source.kind(), BrokenPipe | ConnectionReset),
            error => error.is_busy(),
        }
    }

    /// Whether the server has no room for one more.
    fn is_busy(&self) -> bool {
        matches!(self, Error::Refused(429 | 503, _))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Connect(tried, source) => write!(f, "cannot connect to {tried}: {source}"),
            Error::Connection(source) if source.kind() == io::ErrorKind::WouldBlock => {
                let limit = connection::SILENCE_MAX.as_secs();
                write!(f, "the server was silent for {limit} s")
            }
            Error::Connection(source) => write!(f, "the connection broke: {source}"),
            Error::Refused(status, text) if text.is_empty() => {
                write!(f, "the server answered {status}")
            }
            Error::Refused(status, text) => write!(f, "{text} (status {status})"),
            Error::Invalid(what) => write!(f, "that is no server of this kind: {what}"),
            Error::Protocol { theirs } => write!(
                f,
                "the server speaks protocol {theirs}, this client needs {PROTOCOL} or newer: \
                 update the server"
            ),
            Error::Local(path, source) => {
                write!(f, "{}: {source}", quoted(&path.to_string_lossy()))
            }
            Error::Changed(name) => {
                write!(f, "{} changed while it was moved: try again", quoted(name))
            }
            Error::TooLarge(most, way_out) => write!(f, "more than {most} bytes: {way_out}"),
            Error::Unspeakable(what) => f.write_str(what),
            Error::Output(source) => write!(f, "cannot pass on what came: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Connect(_, source)
            | Error::Connection(source)
            | Error::Local(_, source)
            | Error::Output(source) => Some(source),
            _ => None,
        }
    }
}

/// A text of the server's for a message: short, and nothing that a terminal acts on.
fn one_line(text: &str) -> String {
    shown(&text.chars().take(256).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["http://127.0.0.1:8080", "http://[::1]:80", "http://a-b.c:1", "unix:/a b"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.into()));
        }
        let slash = "http://h:1/".parse::<Address>();
        assert_eq!(slash, Ok(Address::Tcp("h".to_owned(), 1)));
        for text in [
            "",
            "h:1",
            "http://",
            "http://h",
            "http://h:0",
            "http://h:65536",
            "http://:1",
            "http://h:1/x",
            "http://u@h:1",
            "http://h\r\nX: y:1",
            "https://h:1",
            "unix:",
            "http://[::1:1",
            "http://[x]:1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }
}
