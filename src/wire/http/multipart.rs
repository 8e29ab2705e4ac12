//! Which parts does a `multipart/form-data` body (RFC 7578, RFC 2046 section 5.1) hold?
//!
//! A push parser: it is fed pieces of any length and passes on the data of a part as it comes, so
//! an upload of any size needs no more memory than the head of a part.
//!
//! A delimiter is CRLF, two dashes and the boundary, and after them a white space, CRLF or the two
//! dashes of the closing one; whatever only begins like it is data. The loser was to take every
//! CRLF, two dashes and boundary for one, as RFC 2046 has it: Go and most servers do not, and a
//! file that two readers understand differently is worse than one that is refused.

use std::fmt;

use super::parameters::{cut, parameter};
pub use super::part::Part;
use super::part::part;
use crate::quote::quoted;

/// Longest boundary, RFC 2046 section 5.1.1.
pub const BOUNDARY_MAX_BYTES: usize = 70;

/// Longest head of one part: all its lines and the empty one, with their CRLF.
pub const PART_HEAD_MAX_BYTES: usize = 16 << 10;

/// Parts of one body at most.
pub const PARTS_MAX: usize = 100;

/// Bytes at most that may stand before the first delimiter; nobody sees them.
pub const PREAMBLE_MAX_BYTES: usize = 8 << 10;

/// Why a content type or a body is not that of a form. The message names the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipartError {
    subject: &'static str,
    /// Quoted for a message.
    value: Option<String>,
    why: &'static str,
}

impl MultipartError {
    pub(super) fn body(why: &'static str) -> MultipartError {
        MultipartError { subject: "multipart body", value: None, why }
    }

    pub(super) fn header(subject: &'static str, value: &[u8], why: &'static str) -> MultipartError {
        let value = Some(quoted(&String::from_utf8_lossy(value)));
        MultipartError { subject, value, why }
    }
}

impl fmt::Display for MultipartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {}", self.subject)?;
        if let Some(value) = &self.value {
            write!(f, " {value}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for MultipartError {}

/// The boundary of a Content-Type value such as `multipart/form-data; boundary=...`, 1 to
/// [`BOUNDARY_MAX_BYTES`] bytes. Other parameters are ignored.
///
/// # Errors
/// Another type, a parameter that is not `name=token` or `name="text"`, no boundary or two of them,
/// and one that RFC 2046 does not allow.
pub fn boundary(content_type: &str) -> Result<Vec<u8>, MultipartError> {
    let error =
        |why| MultipartError::header("content type of a form", content_type.as_bytes(), why);
    let (kind, mut rest) = cut(content_type);
    if !kind.eq_ignore_ascii_case("multipart/form-data") {
        return Err(error("expected multipart/form-data; boundary=TEXT"));
    }
    let mut boundary = None;
    while let Some((name, value)) = parameter(&mut rest).map_err(error)? {
        if name.eq_ignore_ascii_case("boundary") && boundary.replace(value).is_some() {
            return Err(error("boundary is given twice"));
        }
    }
    let boundary = boundary.ok_or_else(|| error("boundary is missing"))?.into_bytes();
    if !is_boundary(&boundary) {
        return Err(error(
            "boundary is not 1 to 70 letters, digits, inner spaces and any of '()+_,-./:=?",
        ));
    }
    Ok(boundary)
}

/// What a body holds, in the order Begin, any count of Data, End, for each part.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A part begins.
    Begin(Part),
    /// The next bytes, at least one, of the part that began.
    Data(&'a [u8]),
    /// The part that began ends: its delimiter was seen.
    End,
}

/// The state between two bytes of one body.
#[derive(Clone, Debug)]
pub struct Parser {
    /// The closing delimiter with its CRLF; without its last two dashes it is every other's.
    delimiter: Vec<u8>,
    place: Place,
    /// Bytes of the delimiter that the input so far ends with. They are held back, not copied.
    matched: usize,
    /// So many of those never stood in the input: the CRLF before a delimiter that begins the body
    /// or directly follows a head.
    implied: usize,
    preamble_bytes: usize,
    head: Vec<u8>,
    parts: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Preamble,
    /// After a delimiter, before the CRLF of its line.
    Padding,
    /// Before the LF of that line.
    PaddingEnd,
    Head,
    Data,
    Epilogue,
}

/// Ends every line.
pub(super) const CRLF: &[u8] = b"\r\n";

impl Parser {
    /// The state before the first byte of a body.
    ///
    /// # Panics
    /// If [`boundary`] would have refused this one: with a CR in it, data would be lost.
    pub fn new(boundary: &[u8]) -> Parser {
        assert!(is_boundary(boundary), "a boundary is parsed before its body");
        Parser {
            delimiter: [b"\r\n--", boundary, b"--"].concat(),
            place: Place::Preamble,
            matched: CRLF.len(),
            implied: CRLF.len(),
            preamble_bytes: 0,
            head: Vec::new(),
            parts: 0,
        }
    }

    /// Goes on with `bytes`, which follow those of the last call, and tells `sink` what they hold.
    /// What follows the closing delimiter is ignored.
    ///
    /// # Errors
    /// Those of `sink`; a line of a delimiter that holds more than it and white space; a head
    /// without one right `Content-Disposition: form-data; name=...`, with folded lines, control
    /// bytes or line ends other than CRLF; and what exceeds [`PREAMBLE_MAX_BYTES`],
    /// [`PART_HEAD_MAX_BYTES`] or [`PARTS_MAX`]. After an error the parser is of no more use.
    pub fn feed<E: From<MultipartError>>(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = bytes;
        while let [byte, after @ ..] = rest {
            rest = match self.place {
                Place::Preamble | Place::Data => &rest[self.search(rest, sink)?..],
                Place::Padding | Place::PaddingEnd => {
                    self.padding(*byte)?;
                    after
                }
                Place::Head => {
                    if let Some(part) = self.head(*byte)? {
                        sink(Event::Begin(part))?;
                    }
                    after
                }
                Place::Epilogue => break,
            };
        }
        Ok(())
    }

    /// Says whether the body was whole, when no more will come.
    ///
    /// # Errors
    /// The closing delimiter was not seen: the last part, if one began, was cut.
    pub fn finish(self) -> Result<(), MultipartError> {
        match self.place {
            Place::Epilogue => Ok(()),
            Place::Preamble => {
                Err(MultipartError::body("no delimiter in it: is it the boundary's?"))
            }
            _ => Err(MultipartError::body("it ends before its closing delimiter")),
        }
    }

    /// Looks for the next delimiter and passes on what stands before; gives how many bytes are
    /// done with.
    fn search<E: From<MultipartError>>(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let whole = self.delimiter.len();
        // What of the match stands before `bytes`.
        let mut earlier = self.matched;
        let (mut at, mut found) = (0, None);
        while at < bytes.len() {
            if self.matched == 0 {
                // The only CR of a delimiter is its first byte.
                at +=
                    bytes[at..].iter().position(|byte| *byte == b'\r').unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            let byte = bytes[at];
            if byte == self.delimiter[self.matched] {
                (self.matched, at) = (self.matched + 1, at + 1);
                if self.matched == whole {
                    found = Some(Place::Epilogue);
                    break;
                }
            } else if self.matched == whole - 2 && matches!(byte, b' ' | b'\t' | b'\r') {
                found = Some(Place::Padding);
                break;
            } else {
                let held = &self.delimiter[self.implied..earlier.max(self.implied)];
                pass(self.place, &mut self.preamble_bytes, held, sink)?;
                (self.matched, self.implied, earlier) = (0, 0, 0);
            }
        }
        let before = at - (self.matched - earlier);
        pass(self.place, &mut self.preamble_bytes, &bytes[..before], sink)?;
        if let Some(next) = found {
            let ended = std::mem::replace(&mut self.place, next);
            (self.matched, self.implied) = (0, 0);
            if ended == Place::Data {
                sink(Event::End)?;
            }
        }
        Ok(at)
    }

    fn padding(&mut self, byte: u8) -> Result<(), MultipartError> {
        self.place = match (self.place, byte) {
            (Place::Padding, b' ' | b'\t') => Place::Padding,
            (Place::Padding, b'\r') => Place::PaddingEnd,
            (Place::PaddingEnd, b'\n') => Place::Head,
            _ => return Err(MultipartError::body("expected CRLF after a delimiter")),
        };
        Ok(())
    }

    /// Takes one more byte of a head; gives the part when it was the last.
    fn head(&mut self, byte: u8) -> Result<Option<Part>, MultipartError> {
        if self.head.len() == PART_HEAD_MAX_BYTES {
            return Err(MultipartError::body("the head of a part is longer than 16384 bytes"));
        }
        self.head.push(byte);
        if byte != b'\n' {
            return Ok(None);
        }
        let Some(line) = self.head.strip_suffix(CRLF) else {
            return Err(MultipartError::body("expected CRLF at the end of a part's header"));
        };
        if !line.is_empty() && !line.ends_with(CRLF) {
            return Ok(None);
        }
        if self.parts == PARTS_MAX {
            return Err(MultipartError::body("more than 100 parts"));
        }
        let part = part(line)?;
        self.parts += 1;
        self.head.clear();
        self.place = Place::Data;
        (self.matched, self.implied) = (CRLF.len(), CRLF.len());
        Ok(Some(part))
    }
}

/// Passes on bytes that are of no delimiter, or counts them where nobody wants them.
fn pass<E: From<MultipartError>>(
    place: Place,
    preamble_bytes: &mut usize,
    bytes: &[u8],
    sink: &mut dyn FnMut(Event<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if place == Place::Preamble {
        *preamble_bytes += bytes.len();
        if *preamble_bytes > PREAMBLE_MAX_BYTES {
            let why = "more than 8192 bytes before the first delimiter: is it the boundary's?";
            return Err(MultipartError::body(why).into());
        }
    } else if !bytes.is_empty() {
        sink(Event::Data(bytes))?;
    }
    Ok(())
}

fn is_boundary(boundary: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=BOUNDARY_MAX_BYTES).contains(&boundary.len())
        && boundary.iter().all(is_allowed)
        && !boundary.ends_with(b" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, file name and data of each part that began; unfinished ones end with `…`.
    type Parts = Vec<(String, Option<String>, Vec<u8>)>;

    fn parse(boundary: &[u8], pieces: &[&[u8]]) -> (Parts, Result<(), String>) {
        let mut parts = Parts::new();
        let mut is_open = false;
        let mut sink = |event: Event<'_>| -> Result<(), MultipartError> {
            assert_eq!(is_open, !matches!(event, Event::Begin(_)));
            match event {
                Event::Begin(Part { name, filename }) => {
                    is_open = true;
                    parts.push((name, filename, Vec::new()));
                }
                Event::Data(bytes) => {
                    assert!(!bytes.is_empty());
                    parts.last_mut().expect("one began").2.extend_from_slice(bytes);
                }
                Event::End => is_open = false,
            }
            Ok(())
        };
        let mut parser = Parser::new(boundary);
        let fed = pieces.iter().try_for_each(|piece| parser.feed(piece, &mut sink));
        let end = fed.and_then(|()| parser.finish()).map_err(|error| error.to_string());
        if is_open {
            parts.last_mut().expect("one began").2.extend_from_slice("…".as_bytes());
        }
        (parts, end)
    }

    /// As [`parse`], after a check that no cut changes anything.
    fn parse_cut(name: &str, boundary: &[u8], body: &[u8]) -> (Parts, Result<(), String>) {
        let whole = parse(boundary, &[body]);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(parse(boundary, &bytes), whole, "{name} in bytes");
        for at in 0..=body.len().min(200) {
            let (head, tail) = body.split_at(at);
            assert_eq!(parse(boundary, &[head, tail]), whole, "{name} cut at {at}");
        }
        whole
    }

    fn form(name: &str, data: &[u8]) -> Vec<u8> {
        let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        [head.as_bytes(), data, b"\r\n"].concat()
    }

    #[test]
    fn parts_hold_exactly_their_bytes() {
        let rows: [(&str, &[u8]); 17] = [
            ("plain", b"hello"),
            ("empty", b""),
            ("line ends", b"\r\n\r\n"),
            ("a CR at the end", b"a\r"),
            ("CRs at the end", b"a\r\r"),
            ("LF and delimiter", b"a\n--b\n--b--"),
            ("CR and delimiter", b"a\r--b\r--b--\r"),
            ("a delimiter's begin", b"\r\n-"),
            ("a delimiter's begin, then one", b"\r\n--\r\n--"),
            ("dashes", b"\r\n-----b\r\n-b"),
            ("a longer boundary", b"\r\n--bb\r\n--bb--"),
            ("one dash after it", b"\r\n--b-\r\n--b-x"),
            ("a delimiter and LF", b"\r\n--b\n"),
            ("other boundary", b"\r\n--a\r\n\r\n--a--"),
            ("begins like a longer delimiter", b"--bb"),
            ("a head's begin", b"Content-Disposition: form-data\r\n"),
            ("not text", b"\0\xFF\x80"),
        ];
        let named = |name: &str, data: &[u8]| (name.to_owned(), None, data.to_vec());
        for (name, data) in rows {
            let body = [form("x", data), form("y", b"z"), b"--b--\r\n".to_vec()].concat();
            let expected = vec![named("x", data), named("y", b"z")];
            assert_eq!(parse_cut(name, b"b", &body), (expected, Ok(())), "{name}");
        }
    }

    #[test]
    fn what_stands_around_parts_is_ignored() {
        let part = form("x", b"1");
        let preamble = [&[b'p'; PREAMBLE_MAX_BYTES][..], b"\r\n", &part, b"--b--"].concat();
        let header = [b"X: ", &[b'h'; PART_HEAD_MAX_BYTES - 52][..]].concat();
        let head = [b"--b\r\n", &header[..], b"\r\nContent-Disposition:form-data;name=x\r\n\r\n1"]
            .concat();
        let rows: [(&str, Vec<u8>, usize); 10] = [
            ("no part", b"--b--".to_vec(), 0),
            ("no part, as browsers send it", b"--b--\r\n".to_vec(), 0),
            ("white space", b"--b \t \r\n".iter().chain(&part[5..]).copied().collect(), 1),
            ("an epilogue", [&part[..], b"--b--\r\n--b\r\n\r\n--b--"].concat(), 1),
            ("an epilogue at once", [&part[..], b"--b--x"].concat(), 1),
            ("a preamble", [b"--bb\r\n--\r\n", &part[..]].concat(), 1),
            ("CRLF first", [b"\r\n", &part[..]].concat(), 1),
            ("longest preamble", preamble, 1),
            ("longest head", head, 1),
            ("most parts", part.repeat(PARTS_MAX), PARTS_MAX),
        ];
        for (name, mut body, count) in rows {
            body.extend_from_slice(b"\r\n--b--\r\n");
            let (parts, end) = parse_cut(name, b"b", &body);
            assert_eq!((parts.len(), end), (count, Ok(())), "{name}");
            assert!(parts.iter().all(|part| part.2.starts_with(b"1")), "{name}");
        }
    }

    #[test]
    fn a_part_without_data_may_end_at_its_head() {
        let body = b"--b\r\nContent-Disposition: form-data; name=x\r\n\r\n--b--";
        assert_eq!(parse_cut("", b"b", body), (vec![("x".into(), None, vec![])], Ok(())));
    }

    #[test]
    fn a_body_that_is_none_is_refused() {
        let part = form("x", b"1");
        let cut = "it ends before its closing delimiter";
        let none = "no delimiter in it: is it the boundary's?";
        let long = [&[b'p'; PREAMBLE_MAX_BYTES + 1][..], b"\r\n", &part].concat();
        let head = [b"--b\r\nX: ", &[b'h'; PART_HEAD_MAX_BYTES][..], b"\r\n\r\n"].concat();
        let missing = "a part without Content-Disposition: form-data; name=\"TEXT\"";
        let rows: [(&str, Vec<u8>, &str); 13] = [
            ("empty", vec![], none),
            ("other boundary", b"--a\r\n\r\n--a--".to_vec(), none),
            ("cut in a delimiter", b"--b".to_vec(), none),
            ("cut after it", b"--b\r\n".to_vec(), cut),
            ("cut in a head", part[..20].to_vec(), cut),
            ("cut in data", part.clone(), cut),
            ("cut in the closing delimiter", [&part[..], b"--b-"].concat(), cut),
            ("text after a delimiter", b"--b x\r\n".to_vec(), "expected CRLF after a delimiter"),
            ("CR after a delimiter", b"--b\rx".to_vec(), "expected CRLF after a delimiter"),
            (
                "LF in a head",
                b"--b\r\na: b\n".to_vec(),
                "expected CRLF at the end of a part's header",
            ),
            ("no head", b"--b\r\n\r\nx\r\n--b--".to_vec(), missing),
            (
                "long preamble",
                long,
                "more than 8192 bytes before the first delimiter: is it the boundary's?",
            ),
            ("long head", head, "the head of a part is longer than 16384 bytes"),
        ];
        for (name, body, why) in rows {
            let (_, end) = parse_cut(name, b"b", &body);
            assert_eq!(end, Err(format!("invalid multipart body: {why}")), "{name}");
        }
        let (parts, end) = parse(b"b", &[&part.repeat(PARTS_MAX + 1)]);
        let expected = "invalid multipart body: more than 100 parts".to_owned();
        assert_eq!((parts.len(), end), (PARTS_MAX, Err(expected)));
    }

    #[test]
    fn a_sink_ends_it() {
        let mut parser = Parser::new(b"b");
        let body = form("x", b"1");
        let mut count = 0;
        let fed = parser.feed(&body, &mut |_| {
            count += 1;
            Err(MultipartError::body("enough"))
        });
        assert_eq!((fed, count), (Err(MultipartError::body("enough")), 1));
    }

    #[test]
    fn boundaries_are_found_in_content_types() {
        let rows = [
            ("curl", "multipart/form-data; boundary=------------------------d74496d66958873e"),
            (
                "any case",
                "Multipart/Form-Data;BOUNDARY=\"------------------------d74496d66958873e\"",
            ),
            (
                "others",
                "multipart/form-data ; a=\"x;\";boundary=------------------------d74496d66958873e;",
            ),
        ];
        for (name, value) in rows {
            assert_eq!(
                boundary(value).unwrap(),
                b"------------------------d74496d66958873e",
                "{name}"
            );
        }
        assert_eq!(boundary("multipart/form-data; boundary=\"a b:?\"").unwrap(), b"a b:?");
        let long = "x".repeat(BOUNDARY_MAX_BYTES + 1);
        assert!(boundary(&format!("multipart/form-data; boundary={}", &long[1..])).is_ok());
        let parameter = "expected parameters ; name=token or ; name=\"text\"";
        let allowed =
            "boundary is not 1 to 70 letters, digits, inner spaces and any of '()+_,-./:=?";
        let kind = "expected multipart/form-data; boundary=TEXT";
        let rows = [
            ("", kind),
            ("application/json", kind),
            ("multipart/mixed; boundary=a", kind),
            ("multipart/form-data", "boundary is missing"),
            ("multipart/form-data; boundary=a; boundary=a", "boundary is given twice"),
            ("multipart/form-data; boundary=a b", parameter),
            ("multipart/form-data boundary=a", kind),
            ("multipart/form-data; boundary=\"\"", allowed),
            ("multipart/form-data; boundary=\"a \"", allowed),
            ("multipart/form-data; boundary=a*", allowed),
            ("multipart/form-data; boundary=\"a\r\n\"", allowed),
            (&format!("multipart/form-data; boundary={long}"), allowed),
        ];
        for (value, why) in rows {
            let expected = format!("invalid content type of a form {}: {why}", quoted(value));
            assert_eq!(boundary(value).unwrap_err().to_string(), expected);
        }
    }
}
