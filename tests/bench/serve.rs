//! The server's connections against a bare loop over std::net that answers the same bytes.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Figure, Goal};
use crate::tools::{alternate, helper, median, median_ms, milliseconds, ms, pin, runcap};

const ROUNDS: usize = 9;

/// How long one round of tiny requests takes.
const ROUND: Duration = Duration::from_millis(700);

pub(crate) const BIG_BYTES: usize = 10 << 20;

/// Big answers in a round; the median counts.
const BIG_A_ROUND: usize = 15;

/// A server that is killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts `command`, which takes the address as its last argument.
    pub(crate) fn start(command: &mut Command) -> Server {
        // Nobody reads the log, which is written all the same; so the address must be chosen here.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port");
        let child = command.arg(address.to_string()).stderr(Stdio::null()).spawn();
        let server = Server { child: child.expect("the server starts"), address };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < Duration::from_secs(5), "the server does not listen");
            thread::sleep(Duration::from_millis(2));
        }
        server
    }

    /// The server under test, with its log of every answer.
    pub(crate) fn runcap() -> Server {
        Server::start(Command::new(runcap()).args(["serve", "--listen"]))
    }

    /// As [`Server::runcap`], with a workspace.
    pub(crate) fn runcap_in(workspace: &Path) -> Server {
        let mut command = Command::new(runcap());
        Server::start(command.arg("serve").arg("--workspace").arg(workspace).arg("--listen"))
    }

    /// The largest resident set so far, bytes.
    pub(crate) fn peak_rss_bytes(&self) -> f64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).expect("the server lives");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
        let kib = line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number");
        kib * 1024.0
    }

    /// runcap's transport with the routes of tests/helper.
    fn routes() -> Server {
        Server::start(Command::new(helper()).args(["http-routes", "512", "1024"]))
    }

    /// A thread a connection that reads to the end of a head and writes `bytes` of body in writes
    /// of at most `piece` bytes.
    fn raw(bytes: usize, piece: usize) -> Server {
        let [bytes, piece] = [bytes, piece].map(|number| number.to_string());
        Server::start(Command::new(helper()).args(["raw-http", &bytes, &piece]))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_nodelay(true).expect("a socket");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, and then the figures say so.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Length of the answer in `bytes`, once its head is whole.
pub(crate) fn answer_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).expect("heads are text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    Some(end + length.expect("its length").parse::<usize>().expect("a number"))
}

/// Asks over and over for `ROUND`; how many answers came.
fn ask_for_a_while(stream: &mut TcpStream, buffer: &mut [u8]) -> u64 {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").expect("it reads");
        let mut have = 0;
        loop {
            have += match stream.read(&mut buffer[have..]).expect("it answers") {
                0 => panic!("cut after {have} bytes"),
                count => count,
            };
            if answer_length(&buffer[..have]) == Some(have) {
                break;
            }
        }
        count += 1;
    }
    count
}

/// One round over `connections`: microseconds an answer, and the least that one connection got
/// beside the mean.
fn round(server: &Server, connections: usize) -> (f64, f64) {
    let begin = Barrier::new(connections);
    let counts: Vec<u64> = thread::scope(|scope| {
        let ask = || {
            let mut stream = server.connect();
            begin.wait();
            ask_for_a_while(&mut stream, &mut [0; 4096])
        };
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client ends")).collect()
    });
    let sum = counts.iter().sum::<u64>() as f64;
    let least = counts.iter().min().map_or(0.0, |least| *least as f64);
    (ROUND.as_secs_f64() * 1e6 / sum, least * connections as f64 / sum)
}

/// Tiny answers on kept connections.
pub(crate) fn tiny(connections: usize) -> Vec<Figure> {
    let (ours, raw) = (Server::runcap(), Server::raw(104, BIG_BYTES));
    let mut shares = vec![];
    let pairs = alternate(
        ROUNDS,
        || {
            let (us, share) = round(&ours, connections);
            shares.push(share);
            us
        },
        || round(&raw, connections).0,
    );
    // As a goal 0.6 of the requests a second is 1 / 0.6 of the time.
    let goal = Goal::Ratio(1.0 / 0.6);
    let least = median(&shares);
    vec![
        Figure::pairs("an answer, us", "raw std::net loop", goal, pairs),
        Figure::alone("least share of a connection / mean", least, Goal::None),
    ]
}

/// From the first to the last byte of a big answer, against a loop that writes `piece` bytes at a
/// time. One write of the whole is the fastest there is, and needs the whole in memory.
pub(crate) fn big(piece: usize) -> Vec<Figure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // On a core each: where the scheduler puts both on one they take turns, for a whole run or not.
    pin("1");
    let (ours, raw) = (Server::routes(), Server::raw(BIG_BYTES, piece));
    pin("0");
    let (mut our_stream, mut raw_stream) = (ours.connect(), raw.connect());
    let mut buffer = vec![0; 1 << 20];
    let mut fetch = |stream: &mut TcpStream| {
        let times: Vec<f64> = (0..BIG_A_ROUND).map(|_| fetch_big(stream, &mut buffer)).collect();
        median(&times)
    };
    // Both closures need the buffer, one after the other.
    let fetch = std::cell::RefCell::new(&mut fetch);
    let raw = alternate(
        ROUNDS,
        || (fetch.borrow_mut())(&mut our_stream),
        || (fetch.borrow_mut())(&mut raw_stream),
    );
    pin(&format!("0-{}", cores - 1));
    vec![Figure::pairs(
        "10 MiB, first to last byte, ms",
        "raw std::net loop",
        Goal::Ratio(1.25),
        raw,
    )]
}

fn fetch_big(stream: &mut TcpStream, buffer: &mut [u8]) -> f64 {
    let request = format!("GET /big?bytes={BIG_BYTES} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut have = stream.read(buffer).expect("it answers");
    ms(|| {
        let length = answer_length(&buffer[..have]).expect("the head came whole");
        while have < length {
            have += match stream.read(buffer).expect("it answers") {
                0 => panic!("cut after {have} of {length} bytes"),
                count => count,
            };
        }
        assert_eq!(have, length);
    })
}

/// Commands over kept connections against a loop of std's spawn and wait (posix_spawn and waitid)
/// on as many threads.
pub(crate) fn execute(clients: usize, goal: f64) -> Vec<Figure> {
    let ours = Server::runcap();
    let raw = alternate(
        ROUNDS,
        || per_command_ms(clients, || execute_over(ours.connect())),
        || per_command_ms(clients, || spawn_and_wait as fn()),
    );
    vec![Figure::pairs("a command, ms", "std posix_spawn", Goal::Ratio(goal), raw)]
}

/// Milliseconds a command takes where `clients` run one after the other each, all at once: the
/// median of one client, the mean over all of several.
fn per_command_ms<C: FnMut()>(clients: usize, client: impl Fn() -> C + Sync) -> f64 {
    const COMMANDS: usize = 60;
    if clients == 1 {
        return median_ms(COMMANDS, client());
    }
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut run = client();
                (0..COMMANDS).for_each(|_| run());
            });
        }
    });
    milliseconds(start.elapsed()) / (clients * COMMANDS) as f64
}

fn execute_over(mut stream: TcpStream) -> impl FnMut() {
    let body = r#"{"command": ["/bin/true"]}"#;
    let head = "POST /api/execute HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    move || {
        stream.write_all(request.as_bytes()).expect("it reads");
        let (mut buffer, mut have) = ([0; 4096], 0);
        while answer_length(&buffer[..have]) != Some(have) {
            have += match stream.read(&mut buffer[have..]).expect("it answers") {
                0 => panic!("cut after {have} bytes"),
                count => count,
            };
        }
        assert!(buffer[..have].starts_with(b"HTTP/1.1 200 "));
    }
}

fn spawn_and_wait() {
    let status = Command::new("/bin/true").process_group(0).status().expect("/bin/true starts");
    assert!(status.success());
}
