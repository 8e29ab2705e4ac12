//! Where does the head of a request end, and what does it say?
//!
//! The question behind both is which byte comes after the request: whoever answers it otherwise
//! than the client or a proxy takes the body of one request for the next one. So whatever two
//! readers of RFC 9112 could read in two ways is refused, also where the RFC would let a server
//! repair it.

use super::parameters::is_token;
use super::target::{self, Target};
use crate::quote::quoted;

/// Bytes of the longest head: empty lines before it, request line, headers and blank line.
pub const HEAD_MAX_BYTES: usize = 32 << 10;

/// Header lines of a head at most.
pub const HEADERS_MAX: usize = 100;

/// Incremental search for the end of a head in a growing buffer; never looks at a byte twice.
#[derive(Debug, Default)]
pub struct Scan {
    /// Bytes looked at.
    seen: usize,
    /// Lines begun that are not empty: the request line, then headers.
    lines: usize,
    /// A byte of the current line was seen.
    in_line: bool,
    after_cr: bool,
}

/// Why a request is not read on: the connection ends after this answer, since nobody knows where
/// the next request begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Status of the answer: 400, 413, 417, 431, 501 or 505.
    pub status: u16,
    /// One line that names the offending value and the way out.
    pub reason: String,
}

/// What a request says before its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// A token as sent: methods are case-sensitive.
    pub method: String,
    /// What is asked for.
    pub target: Target,
    /// The version the client speaks.
    pub version: Version,
    /// Names as sent, and values without the white space around them, in the order sent. A byte
    /// of a value that is not ASCII is a `?`.
    pub headers: Vec<(String, String)>,
    /// The authority of an absolute target, else the Host header, which may be empty.
    pub host: Option<String>,
    /// Where the body ends.
    pub framing: Framing,
    /// The connection ends after this request.
    pub close: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

/// Versions that are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: one request a connection, and no chunks.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How the end of a body is found (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body comes in chunks.
    Chunked,
}

impl Scan {
    /// A scan before the first byte of a head.
    pub fn new() -> Scan {
        Scan::default()
    }

    /// Goes on in `bytes`, which is everything since the head's begin. `None`: more is needed.
    /// `Some(n)`: the head is `bytes[..n]`, and what follows is its body or the next request. The
    /// scan is over after that, as after an error.
    ///
    /// # Errors
    /// As soon as no head can go on like this, so that nobody waits for the rest of it: 400 for CR
    /// and LF that are no line end together and for control bytes, 431 for more than
    /// [`HEAD_MAX_BYTES`] or [`HEADERS_MAX`].
    pub fn look(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refused> {
        while let Some(byte) = bytes[..bytes.len().min(HEAD_MAX_BYTES)].get(self.seen) {
            self.seen += 1;
            match byte {
                b'\n' if self.after_cr => {
                    if !self.in_line && self.lines > 0 {
                        return Ok(Some(self.seen));
                    }
                    (self.after_cr, self.in_line) = (false, false);
                }
                b'\n' => return Err(refused(400, "line end", b"\n", LINE_END)),
                _ if self.after_cr => return Err(refused(400, "line end", b"\r", LINE_END)),
                b'\r' => self.after_cr = true,
                0..b'\t' | 0xa..b' ' | 0x7f => return Err(control_byte(*byte)),
                b' ' | b'\t' if !self.in_line => {
                    return Err(refused(400, "line that begins with", &[*byte], NO_FOLDING));
                }
                // Only a header's value takes a tab.
                b'\t' if self.lines <= 1 => return Err(control_byte(*byte)),
                _ if self.in_line => {}
                _ if self.lines > HEADERS_MAX => {
                    return Err(over(HEADERS_MAX, "header lines", "send fewer"));
                }
                _ => {
                    self.in_line = true;
                    self.lines += 1;
                }
            }
        }
        if self.seen == HEAD_MAX_BYTES {
            return Err(over(HEAD_MAX_BYTES, "bytes", "send fewer or shorter headers"));
        }
        Ok(None)
    }
}

const LINE_END: &str = "lines of a head end with CR LF";
const NO_FOLDING: &str = "put a header on one line";

impl RequestHead {
    /// The value of the first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        values(&self.headers, name).next()
    }
}

/// Reads a head as [`Scan`] found it, blank line included. The limits are the scan's.
///
/// # Errors
/// 400 for what RFC 9112 does not allow or what could be read in two ways, 413 for a length over
/// `u64::MAX`, 417 for another expectation than `100-continue`, 501 for other transfer codings than
/// `chunked` and for CONNECT, 505 for other versions than 1.0 and 1.1.
pub fn parse_request(head: &[u8]) -> Result<RequestHead, Refused> {
    let mut rest = head;
    let mut line = take_line(&mut rest)?;
    // Some clients end a body with one line end too many (RFC 9112, section 2.2).
    while line.is_empty() {
        line = take_line(&mut rest)?;
    }
    let (method, target, version) = request_line(line)?;
    let (target, authority) = target::parse(method, target)?;
    let headers = header_lines(rest)?;
    let host = host(version, &headers)?;
    let framing = framing(version, &headers)?;
    let expects_continue = expects_continue(&headers)? && version == Version::Http11;
    let close = closes(version, &headers);
    let host = authority.or(host);
    let method = method.to_owned();
    Ok(RequestHead { method, target, version, headers, host, framing, close, expects_continue })
}

/// A refusal that names the value it is about.
pub(super) fn refused(status: u16, what: &str, value: &[u8], way_out: &str) -> Refused {
    let value = quoted(&String::from_utf8_lossy(value));
    Refused { status, reason: format!("{what} {value}: {way_out}") }
}

fn control_byte(byte: u8) -> Refused {
    refused(400, "control byte", &[byte], "leave it out of the head")
}

fn over(limit: usize, unit: &str, way_out: &str) -> Refused {
    Refused { status: 431, reason: format!("the head has over {limit} {unit}: {way_out}") }
}

fn not_one_head() -> Refused {
    let reason = "the head does not end at its blank line: pass what the scan found".to_owned();
    Refused { status: 400, reason }
}

/// Takes a line off the front, without its CR LF. A CR or LF alone stays in the line, where it is
/// a control byte.
pub(super) fn take_line<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Refused> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or_else(not_one_head)?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    Ok(line)
}

fn request_line(line: &[u8]) -> Result<(&str, &[u8], Version), Refused> {
    let malformed = || refused(400, "request line", line, "expected 'METHOD TARGET HTTP/1.1'");
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    let method = str::from_utf8(method).map_err(|_| malformed())?;
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err(malformed());
    }
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(refused(505, "version", version, "use HTTP/1.1"));
        }
        _ => return Err(malformed()),
    };
    Ok((method, target, version))
}

/// Header lines up to the blank line, with which `rest` must end.
pub(super) fn header_lines(mut rest: &[u8]) -> Result<Vec<(String, String)>, Refused> {
    let mut headers = Vec::new();
    loop {
        let line = take_line(&mut rest)?;
        if line.is_empty() {
            return if rest.is_empty() { Ok(headers) } else { Err(not_one_head()) };
        }
        headers.push(header_line(line)?);
    }
}

/// One header line (RFC 9112, section 5), without its line end. Messages do not show values: one
/// may be a secret.
fn header_line(line: &[u8]) -> Result<(String, String), Refused> {
    let name_length = line.iter().take_while(|byte| is_token(**byte)).count();
    let (name, rest) = line.split_at(name_length);
    let value = match rest {
        [b':', value @ ..] if !name.is_empty() => trim(value),
        _ => {
            let shown = &line[..line.len().min(name_length + 1)];
            let way_out = "expected a name and ':' at once after it";
            return Err(refused(400, "header line that begins with", shown, way_out));
        }
    };
    if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(refused(400, "value of header", name, "it holds a control byte"));
    }
    let shown = |byte: &u8| if byte.is_ascii() { char::from(*byte) } else { '?' };
    Ok((name.iter().map(shown).collect(), value.iter().map(shown).collect()))
}

fn host(version: Version, headers: &[(String, String)]) -> Result<Option<String>, Refused> {
    let mut hosts = values(headers, "host");
    let host = hosts.next();
    if let Some(second) = hosts.next() {
        return Err(refused(400, "second Host header", second.as_bytes(), "send exactly one"));
    }
    let Some(host) = host else {
        return match version {
            Version::Http10 => Ok(None),
            Version::Http11 => {
                let reason = "no Host header: HTTP/1.1 needs exactly one".to_owned();
                Err(Refused { status: 400, reason })
            }
        };
    };
    if !target::is_authority(host.as_bytes()) {
        return Err(refused(400, "Host header", host.as_bytes(), "expected HOST or HOST:PORT"));
    }
    Ok(Some(host.to_owned()))
}

/// [`Framing::None`] where no header says anything, which means something else in a response.
pub(super) fn framing(version: Version, headers: &[(String, String)]) -> Result<Framing, Refused> {
    let mut lengths = values(headers, "content-length");
    let length = lengths.next().map(content_length).transpose()?;
    if let Some(second) = lengths.next() {
        // Equal ones are refused too: not every proxy compares them as numbers.
        let value = second.as_bytes();
        return Err(refused(400, "second Content-Length header", value, "send one"));
    }
    let codings: Vec<&str> = values(headers, "transfer-encoding").collect();
    if codings.is_empty() {
        return Ok(length.map_or(Framing::None, Framing::Length));
    }
    let codings = codings.join(",");
    let refuse = |status, way_out| {
        Err(refused(status, "Transfer-Encoding header", codings.as_bytes(), way_out))
    };
    if length.is_some() {
        return refuse(400, "send it or Content-Length, not both");
    }
    if version == Version::Http10 {
        return refuse(400, "HTTP/1.0 has none, use Content-Length");
    }
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let mut codings = codings.as_bytes().rsplit(|byte| *byte == b',').map(trim);
    if !codings.next().is_some_and(is_chunked) {
        return refuse(400, "expected 'chunked'");
    }
    let mut is_coded = false;
    for coding in codings {
        if coding.is_empty() || is_chunked(coding) {
            return refuse(400, "expected 'chunked'");
        }
        is_coded = true;
    }
    if is_coded {
        return refuse(501, "only 'chunked' is supported");
    }
    Ok(Framing::Chunked)
}

fn content_length(value: &str) -> Result<u64, Refused> {
    let refuse =
        |status, way_out| Err(refused(status, "Content-Length header", value.as_bytes(), way_out));
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return refuse(400, "expected decimal digits only");
    }
    // Only digits are left, so all that can fail is the range.
    value.parse().or_else(|_| refuse(413, "larger than any body"))
}

/// Nothing follows on this connection.
pub(super) fn closes(version: Version, headers: &[(String, String)]) -> bool {
    let is_close = |value: &str| {
        value.split(',').any(|option| trim(option.as_bytes()).eq_ignore_ascii_case(b"close"))
    };
    version == Version::Http10 || values(headers, "connection").any(is_close)
}

fn expects_continue(headers: &[(String, String)]) -> Result<bool, Refused> {
    let mut expects = false;
    for value in values(headers, "expect") {
        if !value.eq_ignore_ascii_case("100-continue") {
            let way_out = "only '100-continue' is supported";
            return Err(refused(417, "Expect header", value.as_bytes(), way_out));
        }
        expects = true;
    }
    Ok(expects)
}

pub(super) fn values<'a>(
    headers: &'a [(String, String)],
    name: &str,
) -> impl Iterator<Item = &'a str> {
    let named = headers.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.as_str())
}

/// Without the optional white space of RFC 9110, section 5.6.3, around it.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &[u8]) -> Result<Option<usize>, u16> {
        Scan::new().look(bytes).map_err(|refusal| refusal.status)
    }

    #[test]
    fn the_head_ends_after_its_blank_line_and_faults_are_told_at_once() {
        let rows = [
            ("nothing", "", Ok(None)),
            ("no headers", "A\r\n\r\nB", Ok(Some(5))),
            ("headers and a body", "A\r\nb: c\r\n\r\n\n\0", Ok(Some(11))),
            ("empty lines before", "\r\n\r\n\r\nA\r\n\r\n", Ok(Some(11))),
            ("only empty lines", "\r\n\r\n\r\n", Ok(None)),
            ("no blank line", "A\r\nb: c\r\n", Ok(None)),
            ("half a blank line", "A\r\n\r", Ok(None)),
            ("bytes that are not ASCII", "A\r\nb: é\r\n\r\n", Ok(Some(12))),
            ("tab in a value", "A\r\nb:\tc\r\n\r\n", Ok(Some(11))),
            ("bare LF", "A\n", Err(400)),
            ("LF first", "\n", Err(400)),
            ("bare CR", "A\rB", Err(400)),
            ("two CR", "A\r\r", Err(400)),
            ("NUL", "A\0", Err(400)),
            ("TLS", "\x16", Err(400)),
            ("DEL", "A\r\nb\x7f", Err(400)),
            ("tab in the request line", "A\t", Err(400)),
            ("line folded by a tab", "A\r\n\t", Err(400)),
            ("line folded by a space", "A\r\nb: c\r\n ", Err(400)),
        ];
        for (name, text, expected) in rows {
            let bytes = text.as_bytes();
            assert_eq!(scan(bytes), expected, "{name}");
            let mut scan = Scan::new();
            let end = bytes.len() - usize::from(expected.is_err());
            for length in 0..expected.unwrap_or(None).unwrap_or(end) {
                assert_eq!(scan.look(&bytes[..length]), Ok(None), "{name}, {length} bytes");
            }
            let last = scan.look(bytes).map_err(|refusal| refusal.status);
            assert_eq!(last, expected, "{name}, at once");
        }
    }

    #[test]
    fn hs2_a_head_has_so_many_bytes_and_lines_and_no_more() {
        let padded = |length: usize| [b"A\r\nb:", &*vec![b'c'; length - 9], b"\r\n\r\n"].concat();
        let lines = |count: usize| "A\r\n".to_owned() + &"b:\r\n".repeat(count);
        let longest = padded(HEAD_MAX_BYTES);
        assert_eq!(scan(&longest), Ok(Some(HEAD_MAX_BYTES)));
        assert_eq!(scan(&longest[..HEAD_MAX_BYTES - 1]), Ok(None));
        assert_eq!(scan(&padded(HEAD_MAX_BYTES + 1)[..HEAD_MAX_BYTES]), Err(431));
        assert_eq!(scan(&b"\r\n".repeat(HEAD_MAX_BYTES)), Err(431));
        let most = lines(HEADERS_MAX);
        assert_eq!(scan((most.clone() + "\r\n").as_bytes()), Ok(Some(most.len() + 2)));
        assert_eq!(scan((most.clone() + "\r").as_bytes()), Ok(None));
        assert_eq!(scan((most + "b").as_bytes()), Err(431));
    }

    /// The head of a right request with `headers` in addition.
    fn with(headers: &str) -> Result<RequestHead, Refused> {
        parse_request(format!("GET / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n").as_bytes())
    }

    #[test]
    fn a_head_is_read_as_sent() {
        let head = parse_request(
            b"\r\nm-SEARCH http://b:1/c?d HTTP/1.1\r\nHost: a\r\nX-a:\r\n\
              x-A: \t1 \t2\xc3\xa9\t \r\nContent-Length: 007\r\n\r\n",
        )
        .expect("it is right");
        let headers = [("Host", "a"), ("X-a", ""), ("x-A", "1 \t2??"), ("Content-Length", "007")];
        let expected = RequestHead {
            method: "m-SEARCH".to_owned(),
            target: Target { path: "/c".to_owned(), query: Some("d".to_owned()) },
            version: Version::Http11,
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            host: Some("b:1".to_owned()),
            framing: Framing::Length(7),
            close: false,
            expects_continue: false,
        };
        assert_eq!(head, expected);
        assert_eq!((head.header("X-A"), head.header("x")), (Some(""), None));
    }

    #[test]
    fn request_lines_are_strict() {
        let line = "request line";
        let rows: [(&str, &[u8], u16, &str); 16] = [
            ("two spaces", b"GET  / HTTP/1.1", 400, line),
            ("space before", b" GET / HTTP/1.1", 400, line),
            ("space behind", b"GET / HTTP/1.1 ", 400, line),
            ("more behind", b"GET / HTTP/1.1 junk", 400, line),
            ("tab", b"GET\t/ HTTP/1.1", 400, line),
            ("no version", b"GET /", 400, line),
            ("no target", b"GET HTTP/1.1", 400, line),
            ("no method", b" / HTTP/1.1", 400, line),
            ("method that is no token", b"G@T / HTTP/1.1", 400, line),
            ("method that is not ASCII", b"G\xc3\x89T / HTTP/1.1", 400, line),
            ("other protocol", b"GET / http/1.1", 400, line),
            ("two digits", b"GET / HTTP/1.10", 400, line),
            ("one digit", b"GET / HTTP/1", 400, line),
            ("version 2", b"PRI * HTTP/2.0", 505, "version 'HTTP/2.0'"),
            ("version 1.2", b"GET / HTTP/1.2", 505, "version 'HTTP/1.2'"),
            ("tunnel", b"CONNECT a:80 HTTP/1.1", 501, "request target 'a:80'"),
        ];
        for (name, line, status, begin) in rows {
            let head = [line, b"\r\nHost: a\r\n\r\n"].concat();
            let refusal = parse_request(&head).expect_err(name);
            assert_eq!(refusal.status, status, "{name}");
            assert!(refusal.reason.starts_with(begin), "{name}: {}", refusal.reason);
        }
    }

    #[test]
    fn hs3_hs4_bodies_end_in_one_way_or_the_request_is_refused() {
        let rows = [
            ("none", "X: y", Ok(Framing::None)),
            ("length", "content-LENGTH: \t5 ", Ok(Framing::Length(5))),
            ("zero", "Content-Length: 0", Ok(Framing::Length(0))),
            ("largest", "Content-Length: 18446744073709551615", Ok(Framing::Length(u64::MAX))),
            ("one more", "Content-Length: 18446744073709551616", Err(413)),
            ("plus", "Content-Length: +5", Err(400)),
            ("minus", "Content-Length: -1", Err(400)),
            ("list", "Content-Length: 5, 5", Err(400)),
            ("hexadecimal", "Content-Length: 0x5", Err(400)),
            ("empty", "Content-Length:", Err(400)),
            ("other digits", "Content-Length: \u{665}", Err(400)),
            ("two lengths", "Content-Length: 5\r\nContent-Length: 6", Err(400)),
            ("twice the same", "Content-Length: 5\r\nContent-Length: 5", Err(400)),
            ("chunked", "Transfer-Encoding: Chunked", Ok(Framing::Chunked)),
            ("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 5", Err(400)),
            ("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked", Err(400)),
            ("other coding first", "Transfer-Encoding: gzip , chunked", Err(501)),
            ("on two lines", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", Err(501)),
            ("identity", "Transfer-Encoding: identity", Err(400)),
            ("other name", "Transfer-Encoding: xchunked", Err(400)),
            ("parameter", "Transfer-Encoding: chunked;a", Err(400)),
            ("chunked first", "Transfer-Encoding: chunked, identity", Err(400)),
            ("chunked twice", "Transfer-Encoding: chunked, chunked", Err(400)),
            ("twice, on two", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Err(400)),
            ("empty coding", "Transfer-Encoding:", Err(400)),
            ("empty coding first", "Transfer-Encoding: , chunked", Err(400)),
            ("empty coding last", "Transfer-Encoding: chunked,", Err(400)),
            ("vertical tab", "Transfer-Encoding: \u{b}chunked", Err(400)),
        ];
        for (name, headers, expected) in rows {
            let framing = with(headers).map(|head| head.framing);
            assert_eq!(framing.map_err(|refusal| refusal.status), expected, "{name}");
        }
        let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parse_request(old).expect_err("HTTP/1.0 has no chunks").status, 400);
    }

    #[test]
    fn header_lines_are_strict_and_show_no_values() {
        let line = |shown: &str| {
            let way_out = "expected a name and ':' at once after it";
            format!("header line that begins with '{shown}': {way_out}")
        };
        let value = "value of header 'a': it holds a control byte".to_owned();
        let rows = [
            ("empty name", ": secret", line(":")),
            ("space before the colon", "a : secret", line("a ")),
            ("folded", "a: b\r\n secret", line(" ")),
            ("folded by a tab", "a: b\r\n\tsecret", line("\\t")),
            ("no colon", "a", line("a")),
            ("name that is no token", "a@b: secret", line("a@")),
            ("name that is not ASCII", "é: secret", line("\u{fffd}")),
            ("NUL", "a: secret\0", value.clone()),
            ("DEL", "a: secret\u{7f}", value.clone()),
            ("bare LF", "a: secret\nb: c", value.clone()),
            ("bare CR", "a: secret\rb: c", value),
        ];
        for (name, headers, reason) in rows {
            assert_eq!(with(headers), Err(Refused { status: 400, reason }), "{name}");
        }
        let end = "GET / HTTP/1.1\r\nHost: a\r\n";
        for head in ["", "\r\n\r\n", end, &format!("{end}\r\n\r\n")] {
            let refusal = parse_request(head.as_bytes()).expect_err("not one head");
            assert!(refusal.reason.contains("blank line"), "{head:?}: {}", refusal.reason);
        }
    }

    #[test]
    fn there_is_one_host() {
        let rows = [
            ("name and port", "1", "Host: a.b-c:80", Ok(Some("a.b-c:80"))),
            ("address", "1", "Host: [::1]:80", Ok(Some("[::1]:80"))),
            ("empty", "1", "Host:", Ok(Some(""))),
            ("none", "1", "X: y", Err(400)),
            ("none in 1.0", "0", "X: y", Ok(None)),
            ("one in 1.0", "0", "host: a", Ok(Some("a"))),
            ("two", "1", "Host: a\r\nhost: a", Err(400)),
            ("two in 1.0", "0", "Host: a\r\nHost: b", Err(400)),
            ("space", "1", "Host: a b", Err(400)),
            ("comma", "1", "Host: a,b", Err(400)),
            ("user", "1", "Host: u@a", Err(400)),
            ("path", "1", "Host: a/b", Err(400)),
            ("query", "1", "Host: a?b", Err(400)),
            ("not ASCII", "1", "Host: é", Err(400)),
        ];
        for (name, minor, headers, expected) in rows {
            let head = format!("GET / HTTP/1.{minor}\r\n{headers}\r\n\r\n");
            let host = parse_request(head.as_bytes()).map(|head| head.host);
            let expected = expected.map(|host| host.map(str::to_owned));
            assert_eq!(host.map_err(|refusal| refusal.status), expected, "{name}");
        }
    }

    #[test]
    fn hs7_connection_and_expectation_are_understood() {
        // Close and expectation of HTTP/1.1; HTTP/1.0 always closes and never waits.
        let rows = [
            ("neither", "X: close", Ok((false, false))),
            ("close", "Connection: CLOSE", Ok((true, false))),
            ("close in a list", "Connection: a ,\tClose\t, b", Ok((true, false))),
            ("close on the second line", "Connection: a\r\nConnection: close", Ok((true, false))),
            ("other option", "Connection: keep-alive, closed", Ok((false, false))),
            ("expectation", "Expect: 100-Continue", Ok((false, true))),
            ("unknown expectation", "Expect: banana", Err(417)),
            ("one known, one not", "Expect: 100-continue\r\nExpect: b", Err(417)),
            ("empty expectation", "Expect:", Err(417)),
        ];
        for (name, headers, expected) in rows {
            let read = with(headers).map(|head| (head.close, head.expects_continue));
            assert_eq!(read.map_err(|refusal| refusal.status), expected, "{name}");
            let head = format!("GET / HTTP/1.0\r\n{headers}\r\n\r\n");
            let old = parse_request(head.as_bytes());
            let old = old.map(|head| (head.close, head.expects_continue));
            let expected = expected.map(|_| (true, false));
            assert_eq!(old.map_err(|refusal| refusal.status), expected, "{name} in HTTP/1.0");
        }
    }
}
