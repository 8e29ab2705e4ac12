//! runcap's transport with routes that answer in every way a handler can.

use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use runcap::run::{Concurrency, Inheritance, prepare_process, watch_ending_signals};
use runcap::serve::transport::{
    BodyRule, Ended, Entry, Head, Limits, Listener, Live, Reply, Service, WriteBody, serve,
};
use tiny_http::{Header, Response, ResponseBox, StatusCode};

/// Serves until it is told to end. Arguments: connections at once, the longest body in bytes, and
/// the address, which is a free port of 127.0.0.1 otherwise.
pub(crate) fn routes(arguments: &[String]) {
    let number = |index: usize, default: u64| {
        arguments.get(index).map_or(default, |text| text.parse().expect("a number"))
    };
    prepare_process(Concurrency::Many, Inheritance::Withheld).expect("a process in order");
    let end = watch_ending_signals().expect("descriptors");
    let address = arguments.get(2).map_or("127.0.0.1:0", String::as_str);
    let listener = Listener::bind(&address.parse().expect("an address")).expect("a port");
    eprintln!("listening on {listener}");
    let connections = usize::try_from(number(0, 512)).expect("it fits");
    let keep_alive = Duration::from_secs(75);
    let limits = Limits { connections, keep_alive, idle_exit: None };
    let ended =
        serve(listener, limits, Some(end), Arc::new(Routes { body_max: number(1, 1 << 40) }));
    std::process::exit(i32::from(ended == Ended::CutShort));
}

struct Routes {
    body_max: u64,
}

impl Service for Routes {
    fn admit(&self, head: &Head<'_>) -> Result<BodyRule, ResponseBox> {
        match head.target.path.as_str() {
            "/forbidden" => Err(text(403, "forbidden")),
            "/no-chunks" => Ok(BodyRule { max_bytes: self.body_max, chunked: false }),
            _ => Ok(BodyRule { max_bytes: self.body_max, chunked: true }),
        }
    }

    fn answer<'a>(&'a self, head: &'a Head<'a>, body: &mut dyn Read) -> Reply<'a> {
        match head.target.path.as_str() {
            "/health" => text(200, "ok").into(),
            // The body comes back.
            "/echo" => echo(body).into(),
            // What arrived, even where reading failed: nothing of this may reach the client then.
            "/half" => {
                let mut bytes = Vec::new();
                let failed = body.read_to_end(&mut bytes).is_err();
                text(200, &format!("{} bytes, failed: {failed}", bytes.len())).into()
            }
            // How many bytes the body has.
            "/count" => match io::copy(body, &mut io::sink()) {
                Ok(count) => text(200, &count.to_string()).into(),
                Err(error) => text(500, &error.to_string()).into(),
            },
            // Answered without a look at the body.
            "/ignore" => text(200, "ignored").into(),
            // Reads as many bytes as asked for, no more.
            "/some" => {
                let mut some = vec![0; number(head, "bytes")];
                let read = body.read_exact(&mut some);
                text(200, &format!("{:?}", read.map_err(|error| error.kind()))).into()
            }
            "/big" => data(number(head, "bytes")).into(),
            "/fails" => reader(Broken(number(head, "bytes"), End::Error), 1 << 20).into(),
            "/short" => reader(Broken(number(head, "bytes"), End::Eof), 1 << 20).into(),
            "/long" => reader(io::repeat(b'x'), number(head, "bytes")).into(),
            "/panic" => panic!("a handler panics"),
            "/reader-panics" => reader(Broken(number(head, "bytes"), End::Panic), 1 << 20).into(),
            "/no-length" => {
                let body: Box<dyn Read + Send> = Box::new(io::repeat(b'x'));
                Reply::Whole(Response::new(StatusCode(200), vec![], body, None, None))
            }
            "/bad-header" => {
                let header = Header::from_bytes("X", "a\r\nInjected: yes").expect("ASCII");
                text(200, "x").with_header(header).into()
            }
            "/204" => Response::empty(204).boxed().into(),
            "/304" => Response::empty(304).boxed().into(),
            "/headers" => {
                let lines = head.headers.iter().map(|header| format!("{header}\n"));
                text(200, &lines.collect::<String>()).into()
            }
            "/live" => live(head),
            "/live-bad-header" => {
                let header = Header::from_bytes("X", "a\r\nInjected: yes").expect("ASCII");
                let write: WriteBody<'_> = Box::new(|_| Ok(()));
                Reply::Live(Live { status: 200, headers: vec![header], write })
            }
            _ => text(404, "404 page not found").into(),
        }
    }

    fn refuse(&self, path: Option<&str>, status: u16, reason: &str) -> ResponseBox {
        text(status, &format!("{}: {reason}", path.unwrap_or("-")))
    }

    fn log(&self, entry: &Entry<'_>) {
        eprintln!("{entry:?}");
    }

    fn complain(&self, what: fmt::Arguments<'_>) {
        eprintln!("{what}");
    }
}

fn text(status: u16, text: &str) -> ResponseBox {
    Response::from_data(text).with_status_code(status).boxed()
}

fn number(head: &Head<'_>, key: &str) -> usize {
    let value = head.target.query_value(key).expect("well encoded").expect("it is asked with it");
    String::from_utf8(value).expect("text").parse().expect("a number")
}

fn echo(body: &mut dyn Read) -> ResponseBox {
    let mut bytes = Vec::new();
    match body.read_to_end(&mut bytes) {
        Ok(_) => Response::from_data(bytes).boxed(),
        Err(error) => text(500, &error.to_string()),
    }
}

/// So many bytes. Those of a bench, which measures the way they take, are there already.
fn data(bytes: usize) -> ResponseBox {
    static BENCH: OnceLock<Vec<u8>> = OnceLock::new();
    if bytes == 10 << 20 {
        let data: &'static [u8] = BENCH.get_or_init(|| vec![b'x'; 10 << 20]);
        return reader(data, bytes);
    }
    reader(io::repeat(b'x').take(bytes as u64), bytes)
}

fn reader(reader: impl Read + Send + 'static, declared: usize) -> ResponseBox {
    let reader: Box<dyn Read + Send> = Box::new(reader);
    Response::new(StatusCode(200), vec![], reader, Some(declared), None)
}

enum End {
    Eof,
    Error,
    Panic,
}

/// So many bytes, then a bad end.
struct Broken(usize, End);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.min(buffer.len());
        if count > 0 {
            buffer[..count].fill(b'x');
            self.0 -= count;
            return Ok(count);
        }
        match self.1 {
            End::Eof => Ok(0),
            End::Error => Err(io::Error::other("the disk failed")),
            End::Panic => panic!("a reader panics"),
        }
    }
}

/// `events` lines, one each `pause_ms`; then the end that `end` names: ok, error or panic.
fn live<'a>(head: &'a Head<'a>) -> Reply<'a> {
    let (events, pause_ms) = (number(head, "events"), number(head, "pause_ms"));
    let bytes = number(head, "bytes");
    let end = head.target.query_value("end").expect("well encoded").unwrap_or_default();
    Reply::Live(Live {
        status: 200,
        headers: vec![],
        write: Box::new(move |out| {
            for _ in 0..events {
                out.write_all(&vec![b'x'; bytes])?;
                out.flush()?;
                std::thread::sleep(Duration::from_millis(pause_ms as u64));
            }
            match end.as_slice() {
                b"error" => Err(io::Error::other("the source failed").into()),
                b"panic" => panic!("a live handler panics"),
                _ => Ok(()),
            }
        }),
    })
}
