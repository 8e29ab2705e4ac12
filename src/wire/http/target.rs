//! What does a request target ask for?
//!
//! A target is kept percent-encoded and decoded where it is used: a `/` that was sent as `%2F` is
//! a byte of a name and not a separator, which can only be told before decoding.

use std::fmt;

use super::head::{Refused, refused};
use crate::quote::quoted;

/// Path and query of a request target (RFC 9112, section 3.2), both ASCII and still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Begins with `/`, or is `*`. Bytes that are not ASCII were turned into `%XX`.
    pub path: String,
    /// What follows the first `?`, if there is one; encoded like the path.
    pub query: Option<String>,
}

/// Text in which a `%` is not followed by two hexadecimal digits. The message shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadEncoding {
    /// The `%` and up to two characters after it, quoted for a message.
    escape: String,
}

/// What a `+` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plus {
    /// For itself, as in a path.
    Stays,
    /// For a space, as in a query (`application/x-www-form-urlencoded`).
    IsSpace,
}

/// The part of a target that bytes are encoded for (RFC 3986, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// A path of several segments: `/` separates them and stays.
    Path,
    /// A key or a value of a query.
    Query,
}

impl fmt::Display for BadEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = &self.escape;
        write!(
            f,
            "invalid percent-encoding {escape}: expected two hexadecimal digits after '%', \
             and '%25' for a '%' itself"
        )
    }
}

impl std::error::Error for BadEncoding {}

impl Target {
    /// The decoded segments of the path: as many as it has slashes, since the leading one opens
    /// the first. `/` has one empty segment, `/a//b` an empty one in the middle, `/a/` one at the
    /// end; `*` is a segment. A `+` stays.
    ///
    /// A segment is any bytes: it may hold `/` and NUL, and may be `.` or `..`.
    ///
    /// # Errors
    /// A `%` without two hexadecimal digits.
    pub fn segments(&self) -> Result<Vec<Vec<u8>>, BadEncoding> {
        let path = self.path.strip_prefix('/').unwrap_or(&self.path);
        path.split('/').map(|segment| decode(segment, Plus::Stays)).collect()
    }

    /// The decoded value of the first pair with this key in the query, which is read as
    /// `application/x-www-form-urlencoded`: pairs end at `&` (and not at `;`), `+` is a space, and
    /// a key without `=` has an empty value.
    ///
    /// # Errors
    /// A `%` without two hexadecimal digits, in the value or in a key up to it. Other values and
    /// later pairs are not looked at.
    pub fn query_value(&self, key: &str) -> Result<Option<Vec<u8>>, BadEncoding> {
        let query = self.query.as_deref().unwrap_or("");
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if decode(name, Plus::IsSpace)? == key.as_bytes() {
                return decode(value, Plus::IsSpace).map(Some);
            }
        }
        Ok(None)
    }
}

/// Decodes `%XX` once (RFC 3986, section 2.1), digits in either case. What is not encoded stands
/// for itself, characters that are not ASCII for their UTF-8. `%00` becomes NUL.
///
/// # Errors
/// A `%` without two hexadecimal digits.
pub fn decode(text: &str, plus: Plus) -> Result<Vec<u8>, BadEncoding> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'%' => {
                let (value, after) = escaped(rest).ok_or_else(|| {
                    let at = text.len() - rest.len() - 1;
                    let escape: String = text[at..].chars().take(3).collect();
                    BadEncoding { escape: quoted(&escape) }
                })?;
                decoded.push(value);
                rest = after;
            }
            b'+' if plus == Plus::IsSpace => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
    }
    Ok(decoded)
}

/// Encodes bytes for one part of a target: letters, digits, `-`, `.`, `_` and `~` stay (RFC 3986,
/// section 2.3), and `/` in a path; everything else becomes `%XX`, in upper case. A space becomes
/// `%20`, which decodes to it whatever a `+` stands for.
pub fn encode(bytes: &[u8], component: Component) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(*byte));
            }
            b'/' if component == Component::Path => encoded.push('/'),
            _ => push_escape(&mut encoded, *byte),
        }
    }
    encoded
}

/// Reads a request target into path and query, and the authority that an absolute one names.
///
/// # Errors
/// 400 for bytes that have no place in a target and for a form that the method does not take, 501
/// for CONNECT.
pub(super) fn parse(method: &str, target: &[u8]) -> Result<(Target, Option<String>), Refused> {
    let refuse = |status, way_out| Err(refused(status, "request target", target, way_out));
    if target.iter().any(|byte| matches!(byte, 0..=b' ' | b'#' | 0x7f)) {
        return refuse(400, "percent-encode '#', white space and control bytes");
    }
    if method == "CONNECT" {
        return refuse(501, "this server is no proxy and opens no tunnels for CONNECT");
    }
    let (authority, rest) = match target {
        [b'/', ..] => (None, target),
        b"*" if method == "OPTIONS" => (None, target),
        b"*" => return refuse(400, "'*' is for OPTIONS only"),
        _ => match absolute(target) {
            Some((authority, rest)) => (Some(authority), rest),
            None => return refuse(400, "expected '/PATH' or 'http://HOST/PATH'"),
        },
    };
    let (path, query) = match rest.iter().position(|byte| *byte == b'?') {
        Some(at) => (&rest[..at], Some(to_ascii(&rest[at + 1..]))),
        None => (rest, None),
    };
    let path = if path.is_empty() { "/".to_owned() } else { to_ascii(path) };
    Ok((Target { path, query }, authority.map(to_ascii)))
}

/// Whether bytes may name a host and a port: characters of RFC 3986, section 3.2.2, without the
/// comma, which would let two hosts pass for one. User information has no place in a request.
pub(super) fn is_authority(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%:[]".contains(byte))
}

/// Authority of a target in absolute form, and what follows it.
fn absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let (scheme, rest) = target.split_at_checked("http://".len())?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let is_right =
        scheme.eq_ignore_ascii_case(b"http://") && !authority.is_empty() && is_authority(authority);
    is_right.then_some((authority, rest))
}

/// Clients send raw UTF-8 in a target: it is encoded for them.
fn to_ascii(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii() {
            text.push(char::from(*byte));
        } else {
            push_escape(&mut text, *byte);
        }
    }
    text
}

fn push_escape(text: &mut String, byte: u8) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

/// The byte that two hexadecimal digits stand for, and what follows them.
fn escaped(rest: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let [high, low, rest @ ..] = rest else {
        return None;
    };
    let value = digit(*high)? << 4 | digit(*low)?;
    Some((u8::try_from(value).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str, query: Option<&str>) -> Target {
        Target { path: path.to_owned(), query: query.map(str::to_owned) }
    }

    #[test]
    fn each_form_of_a_target_is_read() {
        let rows = [
            ("root", "GET", "/", "/", None, None),
            ("path and query", "GET", "/a/b?c=d", "/a/b", Some("c=d"), None),
            ("empty query", "GET", "/?", "/", Some(""), None),
            ("second question mark", "GET", "/a?b?c", "/a", Some("b?c"), None),
            ("still encoded", "GET", "/%2f%", "/%2f%", None, None),
            ("raw UTF-8", "GET", "/é?ü", "/%C3%A9", Some("%C3%BC"), None),
            ("two slashes are no host", "GET", "//a/b", "//a/b", None, None),
            ("unusual characters", "GET", "/\"<>\\^`{|}@:,", "/\"<>\\^`{|}@:,", None, None),
            ("asterisk", "OPTIONS", "*", "*", None, None),
            ("absolute", "GET", "http://a:1/b?c", "/b", Some("c"), Some("a:1")),
            ("absolute, any case", "GET", "hTTp://[::1]:80/", "/", None, Some("[::1]:80")),
            ("absolute, no path", "GET", "http://a", "/", None, Some("a")),
            ("absolute, only a query", "GET", "http://a?b/c", "/", Some("b/c"), Some("a")),
            ("absolute, for OPTIONS", "OPTIONS", "http://a", "/", None, Some("a")),
        ];
        for (name, method, text, path, query, authority) in rows {
            let expected = (target(path, query), authority.map(str::to_owned));
            assert_eq!(parse(method, text.as_bytes()), Ok(expected), "{name}");
        }
        assert_eq!(parse("GET", b"/\xff?\x80"), Ok((target("/%FF", Some("%80")), None)));
    }

    #[test]
    fn what_is_no_target_is_refused() {
        let bytes = "percent-encode '#', white space and control bytes";
        let form = "expected '/PATH' or 'http://HOST/PATH'";
        let tunnel = "this server is no proxy and opens no tunnels for CONNECT";
        let rows = [
            ("fragment", "GET", "/a#b", 400, "/a#b", bytes),
            ("tab", "GET", "/a\tb", 400, "/a\\tb", bytes),
            ("delete", "GET", "/\x7f", 400, "/\\u{7f}", bytes),
            ("nul", "GET", "/\0", 400, "/\\0", bytes),
            ("empty", "GET", "", 400, "", form),
            ("asterisk", "GET", "*", 400, "*", "'*' is for OPTIONS only"),
            ("asterisk and query", "OPTIONS", "*?a", 400, "*?a", form),
            ("no slash", "GET", "a/b", 400, "a/b", form),
            ("other scheme", "GET", "https://a/", 400, "https://a/", form),
            ("no host", "GET", "http:///a", 400, "http:///a", form),
            ("user", "GET", "http://u@a/", 400, "http://u@a/", form),
            ("raw UTF-8 host", "GET", "http://é/", 400, "http://é/", form),
            ("two hosts", "GET", "http://a,b/", 400, "http://a,b/", form),
            ("authority", "GET", "a:80", 400, "a:80", form),
            ("tunnel", "CONNECT", "a:80", 501, "a:80", tunnel),
        ];
        for (name, method, target, status, shown, way_out) in rows {
            let refusal = parse(method, target.as_bytes()).expect_err(name);
            let reason = format!("request target '{shown}': {way_out}");
            assert_eq!(refusal, Refused { status, reason }, "{name}");
        }
    }

    #[test]
    fn a_path_has_as_many_segments_as_slashes() {
        let rows: [(&str, &str, &[&[u8]]); 8] = [
            ("root", "/", &[b""]),
            ("two", "/a/b", &[b"a", b"b"]),
            ("empty one inside", "/a//b", &[b"a", b"", b"b"]),
            ("empty one at the end", "/a/", &[b"a", b""]),
            ("only empty ones", "//", &[b"", b""]),
            ("asterisk", "*", &[b"*"]),
            ("decoded after the split, once", "/%2e%2E/a%2Fb/%252F", &[b"..", b"a/b", b"%2F"]),
            ("plus and any byte", "/a+b/%00%ff", &[b"a+b", b"\0\xff"]),
        ];
        for (name, path, expected) in rows {
            let segments = target(path, None).segments().expect(name);
            assert_eq!(segments, expected, "{name}");
        }
        assert!(target("/a/%", None).segments().is_err());
    }

    #[test]
    fn the_first_pair_with_the_key_is_the_value() {
        let rows = [
            ("no query", None, None),
            ("empty", Some(""), None),
            ("alone", Some("key=value"), Some("value")),
            ("first of two", Some("key=1&key=2"), Some("1")),
            ("after others", Some("a=b&&=c&key=1"), Some("1")),
            ("without equals", Some("key"), Some("")),
            ("empty value", Some("key="), Some("")),
            ("second equals", Some("key=a=b"), Some("a=b")),
            ("encoded key", Some("%6bey=1"), Some("1")),
            ("decoded once", Some("key=+%2B%2526%00"), Some(" +%26\0")),
            ("semicolon", Some("a;key=1"), None),
            ("semicolon in the value", Some("key=1;b"), Some("1;b")),
            ("other case", Some("Key=1"), None),
            ("bad escapes elsewhere", Some("a=%&key=1&%"), Some("1")),
        ];
        for (name, query, expected) in rows {
            let value = target("/", query).query_value("key").expect(name);
            assert_eq!(value.as_deref(), expected.map(str::as_bytes), "{name}");
        }
        let unnamed = target("/", Some("&=v")).query_value("");
        assert_eq!(unnamed, Ok(Some(b"v".to_vec())), "nothing between two '&' is no pair");
        for query in ["key=%", "%=1&key=1"] {
            assert!(target("/", Some(query)).query_value("key").is_err(), "{query}");
        }
    }

    #[test]
    fn bad_escapes_are_shown() {
        for (text, shown) in
            [("a%", "%"), ("%4", "%4"), ("%zzz", "%zz"), ("%+1", "%+1"), ("%é1", "%é1")]
        {
            let error = decode(text, Plus::Stays).expect_err(text);
            let expected = format!(
                "invalid percent-encoding '{shown}': expected two hexadecimal digits after '%', \
                 and '%25' for a '%' itself"
            );
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn encoded_bytes_are_unreserved_or_escaped() {
        let bytes = b"aZ09-._~/ +%?#&=\0\xff";
        let escaped = "%20%2B%25%3F%23%26%3D%00%FF";
        assert_eq!(encode(bytes, Component::Path), format!("aZ09-._~/{escaped}"));
        assert_eq!(encode(bytes, Component::Query), format!("aZ09-._~%2F{escaped}"));
    }
}
