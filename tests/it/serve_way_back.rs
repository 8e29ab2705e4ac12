//! Why runcap has a transport of its own, and that its routes would work without it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use runcap::serve::auth::Guard;
use runcap::serve::log::{Format, Log};
use runcap::serve::root::Root;
use runcap::serve::transport::{Head, Reply, Service};
use runcap::serve::{Settings, State};
use runcap::token::Token;
use runcap::wire::http::target::Target;

use crate::http::{Answer, Client, Server};
use crate::support::{Value, helper, installed, through};

#[test]
fn reason_a_stock_server_dies_of_one_header() {
    // tiny_http's Server with 2 GiB of address space, a handler that does not read, and a body of
    // 4 GiB that is announced: the whole process aborts. runcap's transport answers and lives on.
    if !installed("prlimit") {
        return;
    }
    let request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4294967296\r\n\r\n";
    let limit = ["prlimit", "--as=2147483648"];
    let mut stock = Command::new(helper());
    stock.arg("stock-server");
    let mut stock = Server::of(through(&limit, &stock));
    assert_eq!(stock.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
    let mut client = stock.connect();
    client.send(request);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = stock.child.try_wait().expect("a child") {
            break status;
        }
        let is_alive = start.elapsed() > Duration::from_secs(10);
        assert!(!is_alive, "a stock server survives: src/serve/transport may go");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.signal(), Some(6), "it aborts: {status}");

    let mut routes = Command::new(helper());
    routes.arg("http-routes");
    let own = Server::of(through(&limit, &routes));
    let answer = own.ask(&[b"POST /ignore", &request[6..]].concat());
    assert_eq!((answer.status, answer.closes()), (200, true));
    own.assert_alive();
}

#[test]
fn way_back_the_routes_work_on_a_stock_server() {
    // Each request over runcap's transport and over tiny_http's Server: the same status, content
    // type and body, but for the time it has been up.
    let bearer = "Authorization: Bearer secret\r\n";
    let rows = [
        ("health", "GET /health", ""),
        ("head", "HEAD /health", ""),
        ("unknown", "GET /nowhere", ""),
        ("unknown below /api", "POST /api/nowhere", bearer),
        ("download", "GET /api/files/Cargo.toml", bearer),
        (
            "range",
            "GET /api/files/./Cargo.toml",
            "Authorization: Bearer secret\r\nRange: bytes=1-9\r\n",
        ),
        ("no such file", "GET /api/files/nowhere", bearer),
        ("upload of nothing", "POST /api/files", bearer),
        ("no token", "GET /api/nowhere", ""),
        ("no sandbox token", "GET /v1/x", ""),
        ("wrong sandbox token", "GET /v1/x", "X-Sandbox-Token: wrong\r\n"),
        ("right sandbox token", "GET /v1/x?a=b", "X-Sandbox-Token: secret\r\n"),
    ];
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    std::io::Write::write_all(&mut file, b"secret").expect("room");
    let path = file.path().to_str().expect("text");
    let own = Server::start(&["--token-file", path]);
    let token = Token::from_file(file.path()).expect("a token");
    let root = Root::open(Path::new(".")).expect("a directory");
    let log = Log::new(Format::Off).expect("a thread");
    let guard = Guard { token: Some(token), foreign_hosts: true };
    let settings = Settings {
        cap: 1 << 20,
        default_timeout: Duration::from_secs(60),
        timeout_max: Duration::from_secs(60),
        commands_max: 2,
        body_max_bytes: 1 << 20,
        file_max_bytes: 1 << 20,
        output_budget: None,
    };
    let state = State::new(guard, root, settings, None, log);
    let stock = tiny_http::Server::http("127.0.0.1:0").expect("a port");
    let address = stock.server_addr().to_ip().expect("an address");
    thread::scope(|scope| {
        scope.spawn(|| rows.iter().for_each(|_| answer_one(&stock, &state)));
        for (name, line, headers) in rows {
            let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
            let stream = std::net::TcpStream::connect(address).expect("it accepts");
            let of_stock = ask(Client::new(stream), &request);
            let of_own = ask(own.connect(), &request);
            assert_eq!(shown(&of_stock), shown(&of_own), "{name}");
        }
    });
}

/// Answers one request as runcap's transport would.
fn answer_one(server: &tiny_http::Server, state: &State) {
    // None comes when the test has failed before.
    let request = server.recv_timeout(Duration::from_secs(10)).expect("a connection");
    let Some(mut request) = request else { return };
    let (path, query) = match request.url().split_once('?') {
        Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
        None => (request.url().to_owned(), None),
    };
    let head = Head {
        note: std::cell::OnceCell::new(),
        method: request.method().clone(),
        target: Target { path, query },
        host: None,
        headers: request.headers().to_vec(),
        length: request.body_length().map(|length| length as u64),
        client: None,
    };
    let reply = match state.admit(&head) {
        Ok(_) => state.answer(&head, request.as_reader()),
        Err(refusal) => Reply::Whole(refusal),
    };
    let Reply::Whole(response) = reply else { panic!("none of these is a live answer") };
    request.respond(response).expect("the client reads");
}

fn ask(mut client: Client, request: &str) -> Answer {
    client.send(request.as_bytes());
    if request.starts_with("HEAD") { client.head() } else { client.answer() }
}

/// What must be the same.
fn shown(answer: &Answer) -> (u16, Option<&str>, Value) {
    let mut body = match serde_json::from_slice(&answer.body) {
        Ok(body) => body,
        Err(_) => Value::from(answer.text()),
    };
    if let Some(fields) = body.as_object_mut() {
        for key in ["uptime", "uptime_ms"] {
            fields.remove(key);
        }
    }
    (answer.status, answer.header("content-type"), body)
}
