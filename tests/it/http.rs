//! A server that a test talks to, and a client that takes nothing on trust: every answer must be
//! framed to the byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    Signal, descriptors, helper, runcap, send, slack, status_kib, threads, wait_until,
};

/// A server in a process of its own, killed when it is dropped.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    /// Where it writes its lines.
    stderr: tempfile::TempPath,
}

impl Server {
    /// `runcap serve ARGS` on a free port.
    pub fn start(args: &[&str]) -> Server {
        let mut command = runcap();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        Server::of(command)
    }

    /// runcap's transport with the routes of tests/helper/http.rs.
    pub fn routes(args: &[&str]) -> Server {
        let mut command = Command::new(helper());
        // The trace of a panic takes 100 MB of debug symbols.
        command.arg("http-routes").args(args).env("RUST_BACKTRACE", "0");
        Server::of(command)
    }

    /// A command that says `listening on http://ADDRESS` on stderr.
    pub fn of(command: Command) -> Server {
        Server::try_of(command).unwrap_or_else(|ended| panic!("it does not listen: {ended:?}"))
    }

    /// As [`Server::of`]; how it ended and what it said when it does not begin.
    pub fn try_of(mut command: Command) -> Result<Server, (ExitStatus, String)> {
        let (file, path) = tempfile::NamedTempFile::new().expect("a file").into_parts();
        let child = command.stdin(Stdio::null()).stderr(file).spawn().expect("the program starts");
        let mut server = Server { child, address: SocketAddr::from(([0; 4], 0)), stderr: path };
        let mut ended = None;
        wait_until("the server listens", || {
            ended = server.child.try_wait().expect("a child");
            // Its end comes later: such a line may be written in pieces.
            let (log, said) = (server.log(), "listening on http");
            ended.is_some()
                || log.split_inclusive('\n').any(|l| l.contains(said) && l.ends_with('\n'))
        });
        let log = server.log();
        if let Some(status) = ended {
            return Err((status, log));
        }
        let at = log.split("listening on http://").nth(1).expect("it was there");
        let address = at.lines().next().expect("a line").parse();
        server.address = address.expect("an address");
        Ok(server)
    }

    /// A process that listens there already, whose stderr is elsewhere.
    pub fn at(child: Child, address: SocketAddr) -> Server {
        let stderr = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        Server { child, address, stderr }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).expect("the file is there")
    }

    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).expect("the server accepts"))
    }

    /// Sends one request on a connection of its own and returns its answer.
    #[track_caller]
    pub fn ask(&self, request: &[u8]) -> Answer {
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }

    /// Asserts that it answers within a second, where the machine is not busy.
    #[track_caller]
    pub fn assert_alive(&self) {
        let start = Instant::now();
        let answer = self.ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(answer.status, 200);
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_millis(500) + slack(), "it took {elapsed:?}");
    }

    /// Bytes of the largest resident set so far.
    pub fn peak_rss_bytes(&self) -> u64 {
        status_kib(self.pid(), "VmHWM") * 1024
    }

    /// Open descriptors and threads. The server is not dumpable: only root sees them.
    pub fn resources(&self) -> (usize, usize) {
        (descriptors(self.pid()), threads(self.pid()))
    }

    /// Sends TERM and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        send(self.pid(), Signal::TERM);
        self.child.wait().expect("the program ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection.
pub struct Client {
    pub stream: TcpStream,
    /// What was read and belongs to no answer yet.
    unread: Vec<u8>,
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The chunks that the body came in; empty when it came whole.
    pub chunks: Vec<Vec<u8>>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// Whether it says that the connection ends.
    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

impl Client {
    pub fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        stream.set_write_timeout(Some(Duration::from_secs(60))).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Client { stream, unread: Vec::new() }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends until the server reads no more; how many bytes it took.
    pub fn send_until_refused(&mut self, bytes: &[u8], count: usize) -> usize {
        (0..count).take_while(|_| self.stream.write_all(bytes).is_ok()).count() * bytes.len()
    }

    fn more(&mut self) -> usize {
        let mut buffer = vec![0; 64 << 10];
        let count = loop {
            match self.stream.read(&mut buffer) {
                // A read with a timeout is not restarted when the machine was held up (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.expect("the server answers"),
            }
        };
        self.unread.extend_from_slice(&buffer[..count]);
        count
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line = self.unread.drain(..end + 2).collect::<Vec<_>>();
                return String::from_utf8(line[..end].to_vec()).expect("lines are text");
            }
            let unread = String::from_utf8_lossy(&self.unread).into_owned();
            assert_ne!(self.more(), 0, "cut in a line: {unread:?}");
        }
    }

    /// The next bytes of the connection, whatever they are.
    #[track_caller]
    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            let have = self.unread.len();
            assert_ne!(self.more(), 0, "cut after {have} of {count} bytes");
        }
        self.unread.drain(..count).collect()
    }

    /// The head of the next answer; its body is left unread.
    #[track_caller]
    pub fn head(&mut self) -> Answer {
        let line = self.line();
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("a status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return Answer { status, headers, body: vec![], chunks: vec![] };
            }
            let (name, value) = line.split_once(": ").expect("a header line");
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    /// The next answer, to its last byte.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        if answer.header("transfer-encoding") == Some("chunked") {
            assert_eq!(answer.header("content-length"), None, "one framing");
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    return answer;
                }
                answer.body.extend_from_slice(&chunk);
                answer.chunks.push(chunk);
            }
        }
        let length = answer.header("content-length").expect("its length").parse();
        answer.body = self.exactly(length.expect("a number"));
        answer
    }

    /// The next chunk of a body; the empty one is its end.
    #[track_caller]
    pub fn chunk(&mut self) -> Vec<u8> {
        let size = usize::from_str_radix(&self.line(), 16).expect("a size");
        let chunk = self.exactly(size);
        assert_eq!(self.exactly(2), b"\r\n");
        chunk
    }

    /// Everything up to the connection's end; whether it was an orderly one (FIN).
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut buffer = vec![0; 64 << 10];
        let is_orderly = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the connection did not end: {error}"),
            }
        };
        (std::mem::take(&mut self.unread), is_orderly)
    }

    /// Asserts that nothing more comes and the connection ends in an orderly way.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        let (rest, is_orderly) = self.rest();
        assert_eq!(String::from_utf8_lossy(&rest), "", "nothing more comes");
        assert!(is_orderly, "the connection was reset");
    }

    /// Says that nothing more will be sent.
    pub fn end_writing(&self) {
        self.stream.shutdown(Shutdown::Write).expect("a connection");
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&self.stream, linger).expect("a socket");
    }
}

/// The most that a server may ever have resident, whatever clients do.
const RSS_MAX_BYTES: u64 = 24 << 20;

/// A server and what it had before its clients came.
pub struct Watched {
    pub server: Server,
    pub before: (usize, usize),
}

impl Watched {
    pub fn new(server: Server) -> Watched {
        let before = server.resources();
        server.assert_alive();
        wait_until("it is idle", || server.resources() == before);
        Watched { server, before }
    }

    /// Asserts that it answers, never had much memory, and has given back all else.
    #[track_caller]
    pub fn assert_unharmed(&self) {
        self.assert_unharmed_called("it");
    }

    #[track_caller]
    pub fn assert_unharmed_called(&self, name: &str) {
        self.server.assert_alive();
        let (start, pid) = (Instant::now(), self.server.pid());
        while self.server.resources() != self.before {
            let now = self.server.resources();
            let what = "descriptors and threads";
            let before = self.before;
            assert!(start.elapsed() < Duration::from_secs(15), "{name}: {what} {before:?} {now:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let peak = self.server.peak_rss_bytes();
        println!("{name}: VmHWM {} KiB (process {pid})", peak >> 10);
        assert!(peak <= RSS_MAX_BYTES, "{name}: {peak} bytes were resident");
    }
}

/// Waits until `condition` holds, at most `limit`.
#[track_caller]
pub fn wait_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes that have come for a server and that it has not read, and connections it has not accepted.
pub fn unread_bytes(server: &Server) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
    let port = format!(":{:04X}", server.address.port());
    let of_server = |fields: &Vec<&str>| fields[1].ends_with(&port);
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect());
    let queues = rows.filter(of_server).map(|fields: Vec<&str>| {
        let (_, received) = fields[4].split_once(':').expect("two queues");
        u64::from_str_radix(received, 16).expect("a number")
    });
    queues.sum()
}

impl Client {
    /// The status of the next answer; `None` when the connection was reset before it.
    pub fn try_status(&mut self) -> Option<u16> {
        let mut start = [0; 12];
        let read = self.stream.read_exact(&mut start);
        read.ok().and_then(|()| std::str::from_utf8(&start[9..]).ok()?.parse().ok())
    }

    /// Bytes up to the connection's end, which are not kept.
    pub fn count_rest(&mut self) -> usize {
        let unread = std::mem::take(&mut self.unread).len();
        let rest = std::io::copy(&mut self.stream, &mut std::io::sink()).expect("it is read");
        unread + usize::try_from(rest).expect("it fits")
    }

    /// Bytes of a chunked body, which are not kept.
    pub fn count_chunked(&mut self) -> usize {
        let mut count = 0;
        loop {
            let size = usize::from_str_radix(&self.line(), 16).expect("a size");
            self.exactly(size + 2);
            count += size;
            if size == 0 {
                return count;
            }
        }
    }
}

/// Lets this process, and the servers it starts from now on, have files for 512 connections.
pub fn many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < 4096) {
        let current = Some(maximum.map_or(4096, |maximum| maximum.min(4096)));
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("up to the hard limit");
    }
}
