//! What does the head of a response say, and what frames the body behind it?
//!
//! The head ends where [`Scan`](super::head::Scan) finds its end, and its headers are read as those
//! of a request. A server that was taken over may answer anything: what two readers of RFC 9112
//! could read in two ways is refused, so that no byte of a body is taken for the next response.

use super::head::{
    Framing, Refused, Version, closes, framing, header_lines, refused, take_line, values,
};

/// What a response says before its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// 100 to 599, without 101.
    pub status: u16,
    /// Names as sent, and values without the white space around them, in the order sent. A byte
    /// of a value that is not ASCII is a `?`.
    pub headers: Vec<(String, String)>,
    /// Where the body ends.
    pub framing: ResponseFraming,
    /// The connection carries no request after this one.
    pub close: bool,
}

/// How the end of a response's body is found (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFraming {
    /// There is no body: 1xx, 204 and 304.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body comes in chunks.
    Chunked,
    /// The body ends with the connection: nobody can tell it from one that was cut.
    UntilClose,
}

impl ResponseHead {
    /// The value of the first header of that name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        values(&self.headers, name).next()
    }
}

/// Reads the head of an answer to a request that was neither HEAD nor CONNECT, as the scan found
/// it, blank line included. The limits are the scan's.
///
/// To skip interim responses (1xx) is the caller's work, and so is a limit on how many.
///
/// # Errors
/// One line that names the offending value: what RFC 9112 does not allow or what could be read in
/// two ways, other versions than 1.0 and 1.1, other transfer codings than `chunked`, a status
/// outside of 100 to 599, and 101, since nobody asked for another protocol.
pub fn parse_response(head: &[u8]) -> Result<ResponseHead, String> {
    read(head).map_err(|refusal| refusal.reason)
}

fn read(head: &[u8]) -> Result<ResponseHead, Refused> {
    let mut rest = head;
    let (version, status) = status_line(take_line(&mut rest)?)?;
    let headers = header_lines(rest)?;
    let framing = response_framing(status, framing(version, &headers)?)?;
    let close = framing == ResponseFraming::UntilClose || closes(version, &headers);
    Ok(ResponseHead { status, headers, framing, close })
}

/// The reason phrase is dropped: it may be anything, and says nothing that the status does not.
fn status_line(line: &[u8]) -> Result<(Version, u16), Refused> {
    let malformed = || refused(400, "status line", line, "expected 'HTTP/1.1 STATUS REASON'");
    let (version, rest) = line.split_at_checked(b"HTTP/1.1".len()).ok_or_else(malformed)?;
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            return Err(refused(400, "version", version, "only HTTP/1.0 and HTTP/1.1 are read"));
        }
        _ => return Err(malformed()),
    };
    // Many servers leave out the space behind the status where they have no reason to give.
    let [b' ', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', reason @ ..] = rest else {
        return Err(malformed());
    };
    let is_text = |byte: &u8| !byte.is_ascii_control() || *byte == b'\t';
    if !matches!(reason, [] | [b' ', ..]) || !reason.iter().all(is_text) {
        return Err(malformed());
    }
    let digits = [*a, *b, *c];
    let status = digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0'));
    match status {
        101 => Err(refused(400, "status", &digits, "no other protocol was asked for")),
        100..=599 => Ok((version, status)),
        _ => Err(refused(400, "status", &digits, "expected 100 to 599")),
    }
}

fn response_framing(status: u16, said: Framing) -> Result<ResponseFraming, Refused> {
    match (status, said) {
        // What it says is about the body that a 200 would have had.
        (304, _) => Ok(ResponseFraming::None),
        // A length of zero is as forbidden (RFC 9110, section 8.6), but misleads nobody.
        (100..=199 | 204, Framing::None | Framing::Length(0)) => Ok(ResponseFraming::None),
        (100..=199 | 204, _) => {
            let way_out = "it has no body, so no Content-Length or Transfer-Encoding header";
            Err(refused(400, "status", status.to_string().as_bytes(), way_out))
        }
        (_, Framing::None) => Ok(ResponseFraming::UntilClose),
        (_, Framing::Length(length)) => Ok(ResponseFraming::Length(length)),
        (_, Framing::Chunked) => Ok(ResponseFraming::Chunked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http::head::Scan;

    #[test]
    fn a_head_is_read_as_sent() {
        let bytes = b"HTTP/1.1 404 Not  Found \xe9\r\nContent-Length: 007\r\nX-a:\r\n\
              x-A: \t1 \t2\xc3\xa9\t \r\n\r\nbody";
        let end = Scan::new().look(bytes).expect("it is right").expect("it has an end");
        assert_eq!(&bytes[end..], b"body");
        let head = parse_response(&bytes[..end]).expect("it is right");
        let headers = [("Content-Length", "007"), ("X-a", ""), ("x-A", "1 \t2??")];
        let expected = ResponseHead {
            status: 404,
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            framing: ResponseFraming::Length(7),
            close: false,
        };
        assert_eq!(head, expected);
        assert_eq!((head.header("X-A"), head.header("x")), (Some(""), None));
    }

    #[test]
    fn status_lines_are_strict() {
        let line = "status line ";
        let rows: [(&str, &[u8], Result<u16, &str>); 30] = [
            ("reason", b"HTTP/1.1 200 OK", Ok(200)),
            ("no reason", b"HTTP/1.1 200 ", Ok(200)),
            ("no space either", b"HTTP/1.1 200", Ok(200)),
            ("reason that is not ASCII", b"HTTP/1.1 200 \xe9", Ok(200)),
            ("reason with a tab", b"HTTP/1.1 200 a\tb", Ok(200)),
            ("old", b"HTTP/1.0 599 x", Ok(599)),
            ("interim", b"HTTP/1.1 103 Early Hints", Ok(103)),
            ("unknown", b"HTTP/1.1 299 x", Ok(299)),
            ("empty", b"", Err("status line '': expected")),
            ("cut", b"HTTP/1.1", Err(line)),
            ("two digits", b"HTTP/1.1 20 OK", Err(line)),
            ("four digits", b"HTTP/1.1 2000 OK", Err(line)),
            ("sign", b"HTTP/1.1 +20 OK", Err(line)),
            ("letter", b"HTTP/1.1 2x0 OK", Err(line)),
            ("two spaces", b"HTTP/1.1  200 OK", Err(line)),
            ("space before", b" HTTP/1.1 200 OK", Err(line)),
            ("tab", b"HTTP/1.1\t200 OK", Err(line)),
            ("tab behind", b"HTTP/1.1 200\tOK", Err(line)),
            ("bare CR", b"HTTP/1.1 200 O\rK", Err(line)),
            ("bare LF", b"HTTP/1.1 200 O\nK", Err(line)),
            ("DEL", b"HTTP/1.1 200 \x7f", Err(line)),
            ("other protocol", b"ICY 200 OK", Err(line)),
            ("lower case", b"http/1.1 200 OK", Err(line)),
            ("long version", b"HTTP/1.10 200 OK", Err(line)),
            ("short version", b"HTTP/1 200 OK", Err(line)),
            ("version 2", b"HTTP/2.0 200 OK", Err("version 'HTTP/2.0': only")),
            ("version 1.2", b"HTTP/1.2 200 OK", Err("version 'HTTP/1.2': only")),
            ("below 100", b"HTTP/1.1 099 x", Err("status '099': expected 100 to 599")),
            ("above 599", b"HTTP/1.1 600 x", Err("status '600': expected 100 to 599")),
            ("switched", b"HTTP/1.1 101 x", Err("status '101': no other protocol was")),
        ];
        for (name, line, expected) in rows {
            let read = parse_response(&[line, b"\r\n\r\n"].concat()).map(|head| head.status);
            match (read, expected) {
                (Err(message), Err(begin)) => {
                    assert!(message.starts_with(begin), "{name}: {message}");
                }
                (read, expected) => {
                    assert_eq!(read, expected.map_err(str::to_owned), "{name}");
                }
            }
        }
        let long = [b"HTTP/1.1 ", &[b'9'; 9999][..], b"\r\n\r\n"].concat();
        assert!(parse_response(&long).expect_err("no status").len() < 200);
    }

    #[test]
    fn bodies_end_in_one_way_or_the_response_is_refused() {
        use ResponseFraming::{Chunked, Length, None, UntilClose};
        let rows = [
            ("neither", "200", "X: y", Ok(UntilClose)),
            ("length", "200", "content-LENGTH: \t5 ", Ok(Length(5))),
            ("zero", "500", "Content-Length: 0", Ok(Length(0))),
            ("largest", "200", "Content-Length: 18446744073709551615", Ok(Length(u64::MAX))),
            ("one more", "200", "Content-Length: 18446744073709551616", Err("'184467440737095516")),
            ("plus", "200", "Content-Length: +5", Err("'+5'")),
            ("list", "200", "Content-Length: 5, 5", Err("'5, 5'")),
            ("empty", "200", "Content-Length:", Err("''")),
            ("two", "200", "Content-Length: 5\r\nContent-Length: 6", Err("second")),
            ("twice", "200", "Content-Length: 5\r\nContent-Length: 5", Err("'5'")),
            ("chunked", "200", "Transfer-Encoding: Chunked", Ok(Chunked)),
            ("both", "200", "Transfer-Encoding: chunked\r\nContent-Length: 5", Err("not both")),
            ("coded", "200", "Transfer-Encoding: gzip, chunked", Err("'gzip, chunked'")),
            ("only coded", "200", "Transfer-Encoding: gzip", Err("'gzip'")),
            ("chunked first", "200", "Transfer-Encoding: chunked, gzip", Err("'chunked, gzip'")),
            ("chunked twice", "200", "Transfer-Encoding: chunked, chunked", Err("'chunked, chun")),
            ("no coding", "200", "Transfer-Encoding:", Err("''")),
            ("folded", "200", "Content-Length: 5\r\n 6", Err("begins with ' '")),
            ("bare LF", "200", "Content-Length: 5\nX: y", Err("'Content-Length'")),
            ("NUL", "200", "X: y\0", Err("'X'")),
            ("interim", "100", "X: y", Ok(None)),
            ("interim with a body", "100", "Content-Length: 5", Err("'100'")),
            ("no content", "204", "X: y", Ok(None)),
            ("no content, none", "204", "Content-Length: 0", Ok(None)),
            ("no content, some", "204", "Content-Length: 1", Err("'204'")),
            ("no content in chunks", "204", "Transfer-Encoding: chunked", Err("'204'")),
            ("not modified", "304", "X: y", Ok(None)),
            ("not modified, length", "304", "Content-Length: 5", Ok(None)),
            ("not modified, chunked", "304", "Transfer-Encoding: chunked", Ok(None)),
            ("not modified, two", "304", "Content-Length: 5\r\nContent-Length: 5", Err("second")),
            ("moved", "302", "Location: /a", Ok(UntilClose)),
        ];
        for (name, status, headers, expected) in rows {
            let head = format!("HTTP/1.1 {status} x\r\n{headers}\r\n\r\n");
            match (parse_response(head.as_bytes()), expected) {
                (Err(message), Err(part)) => assert!(message.contains(part), "{name}: {message}"),
                (read, expected) => {
                    let read = read.map(|head| head.framing);
                    assert_eq!(read, expected.map_err(str::to_owned), "{name}");
                }
            }
        }
        let old = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(parse_response(old).expect_err("no chunks").contains("HTTP/1.0 has none"));
    }

    #[test]
    fn the_connection_closes_where_the_server_says_so_or_must() {
        let rows = [
            ("kept", "1.1", "Content-Length: 0", false),
            ("closed", "1.1", "Content-Length: 0\r\nConnection: a,\tClose", true),
            ("until close", "1.1", "X: close", true),
            ("old", "1.0", "Content-Length: 0\r\nConnection: keep-alive", true),
        ];
        for (name, version, headers, expected) in rows {
            let head = format!("HTTP/{version} 200 OK\r\n{headers}\r\n\r\n");
            let close = parse_response(head.as_bytes()).map(|head| head.close);
            assert_eq!(close, Ok(expected), "{name}");
        }
        for head in ["", "\r\n\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\nX: y\r\n\r\n"] {
            assert!(parse_response(head.as_bytes()).is_err(), "{head:?}");
        }
    }
}
