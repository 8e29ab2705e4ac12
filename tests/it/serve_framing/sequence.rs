//! Conversations: what a client sends, in which pieces, and every answer it must get. Each is a
//! function of some bytes, so that a seed or a fuzzer may choose it. It knows nothing of sockets.

/// All that happens on one connection to the routes of tests/helper/http.rs.
#[derive(Debug, Default)]
pub struct Conversation {
    pub sent: Vec<u8>,
    /// Where `sent` is cut into pieces, in order.
    pub cuts: Vec<usize>,
    /// The answers, in order.
    pub due: Vec<Due>,
    /// The server ends the connection after the last of them, though more was sent.
    pub is_ended: bool,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub status: u16,
    /// `None` where there is none, whatever the head says of its length.
    pub body: Option<Vec<u8>>,
}

/// A conversation of right requests; with `spoilt`, one that nobody can read on after is among
/// them.
pub fn conversation(bytes: &[u8], spoilt: bool) -> Conversation {
    let mut choices = Choices(bytes);
    let mut all = Conversation::default();
    let count = 1 + choices.below(12);
    let last = spoilt.then(|| choices.below(count));
    for index in 0..count {
        if last == Some(index) {
            let kind = choices.below(12);
            let (sent, due) = last_request(&mut choices, kind);
            all.sent.extend(sent);
            all.due.push(due);
            if kind == ASKS_FOR_THE_END {
                // What it sent after that would be answered by a reset, and rightly.
                break;
            }
        } else {
            let (sent, due) = request(&mut choices);
            all.sent.extend(sent);
            // What comes after the last one is nobody's request.
            let is_heard = last.is_none_or(|last| index < last);
            all.due.extend(is_heard.then_some(due));
        }
    }
    all.is_ended = spoilt;
    let pieces = choices.below(16);
    all.cuts = (0..pieces).map(|_| choices.below(all.sent.len())).collect();
    all.cuts.sort_unstable();
    all
}

/// Choices that bytes make; once they are used up every choice is the first.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }

    /// A number below `count`, which is below 2^24.
    fn below(&mut self, count: usize) -> usize {
        (self.byte() << 16 | self.byte() << 8 | self.byte()) % count.max(1)
    }

    fn one_of<T: Copy>(&mut self, rows: &[T]) -> T {
        rows[self.below(rows.len())]
    }
}

/// Bodies are made of what would be understood, were it read as something else.
const FRAGMENTS: [&[u8]; 8] = [
    b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"\r\n",
    b"x",
    b"\0\xff\xc3",
    &[b'y'; 3000],
];

/// Headers that say nothing of where a request ends.
const HEADERS: [&[u8]; 6] = [
    b"",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"X-Name: \xe9\r\n",
    b"TE: trailers\r\n",
    b"Expect: 100-Continue\r\n",
];

fn data(choices: &mut Choices<'_>) -> Vec<u8> {
    (0..choices.below(6)).flat_map(|_| choices.one_of(&FRAGMENTS)).copied().collect()
}

fn head(method: &str, path: &str, headers: &[u8]) -> Vec<u8> {
    let start = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    [start.as_bytes(), headers, b"\r\n"].concat()
}

/// `data` behind a head that says its length.
fn of_length(path: &str, headers: &[u8], data: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}\r\n", data.len());
    [&head("POST", path, &[headers, length.as_bytes()].concat()), data].concat()
}

/// `data` in chunks, behind a head that says so.
fn chunked(choices: &mut Choices<'_>, path: &str, headers: &[u8], data: &[u8]) -> Vec<u8> {
    let headers = [headers, b"Transfer-Encoding: chunked\r\n"].concat();
    let mut sent = head("POST", path, &headers);
    let mut rest = data;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(1 + choices.below(rest.len()));
        let size = match choices.below(4) {
            0 => format!("{:x}", chunk.len()),
            1 => format!("{:X}", chunk.len()),
            2 => format!("{:08x}", chunk.len()),
            _ => format!("{:x};name=\"0\"", chunk.len()),
        };
        sent.extend([size.as_bytes(), b"\r\n", chunk, b"\r\n"].concat());
        rest = after;
    }
    let end = choices.one_of(&["0\r\n\r\n", "000\r\n\r\n", "0\r\nContent-Length: 7\r\n\r\n"]);
    sent.extend(end.as_bytes());
    sent
}

fn due(status: u16, body: &[u8]) -> Due {
    Due { status, body: Some(body.to_vec()) }
}

/// A right request and its answer.
fn request(choices: &mut Choices<'_>) -> (Vec<u8>, Due) {
    let headers = choices.one_of(&HEADERS[..5]);
    let get = |path| head("GET", path, headers);
    let data = data(choices);
    let count = choices.below(40_000);
    let bodiless = |status| Due { status, body: None };
    match choices.below(12) {
        0 => (get("/health"), due(200, b"ok")),
        1 => (head("HEAD", "/health", headers), bodiless(200)),
        2 => (of_length("/echo", headers, &data), due(200, &data)),
        3 => (chunked(choices, "/echo", headers, &data), due(200, &data)),
        4 => {
            let sent = chunked(choices, "/count", headers, &data);
            (sent, due(200, data.len().to_string().as_bytes()))
        }
        5 => (get("/204"), bodiless(204)),
        6 => (get("/304"), bodiless(304)),
        7 => ([b"\r\n", &*get("/nosuch")].concat(), due(404, b"404 page not found")),
        8 => (get("/live?events=2&pause_ms=0&bytes=3"), due(200, b"xxxxxx")),
        9 => (get(&format!("/big?bytes={count}")), due(200, &vec![b'x'; count])),
        10 => (head("HEAD", &format!("/big?bytes={count}"), headers), bodiless(200)),
        _ => {
            let path = format!("/some?bytes={}", data.len());
            (of_length(&path, headers, &data), due(200, b"Ok(())"))
        }
    }
}

/// The kind of [`last_request`] in which it is the client that ends the connection.
const ASKS_FOR_THE_END: usize = 10;

/// A request after whose answer the connection ends, since nobody knows what comes next or since
/// the client wants it, and the answer's status. The body of a refusal is the server's own.
fn last_request(choices: &mut Choices<'_>, kind: usize) -> (Vec<u8>, Due) {
    let headers = choices.one_of(&HEADERS);
    let data = [&data(choices), FRAGMENTS[0]].concat();
    let with = |line: &str| [headers, line.as_bytes()].concat();
    let (sent, status) = match kind {
        0 => (chunked(choices, "/echo", &with("Content-Length: 5\r\n"), &data), 400),
        1 => (of_length("/echo", &with("Content-Length: 5\r\n"), &data), 400),
        2 => (head("POST", "/echo", &with("Content-Length: x\r\n")), 400),
        3 => (head("GET", "/health", &with("A: b\n")), 400),
        4 => (head("GET", "/health", &with("A: b\r\n c\r\n")), 400),
        5 => (b"GET /health HTTP/2.0\r\n\r\n".to_vec(), 505),
        6 => (head("POST", "/echo", &with("Expect: banana\r\n")), 417),
        7 => (of_length("/forbidden", headers, &data), 403),
        8 => (of_length("/ignore", headers, &data), 200),
        9 => (chunked(choices, "/no-chunks", headers, &data), 411),
        ASKS_FOR_THE_END => (head("GET", "/health", &with("Connection: close\r\n")), 200),
        _ => {
            let head = head("POST", "/echo", b"Transfer-Encoding: chunked\r\n");
            ([&*head, b"2\r\nhi\r\n+5\r\nhello\r\n0\r\n\r\n"].concat(), 400)
        }
    };
    (sent, due(status, b""))
}
