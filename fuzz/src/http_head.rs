//! Heads of requests and their targets, against a model that reads them in another way: as whole
//! text, cut and compared, where the library goes through bytes.

use runcap::wire::http::head::{
    Framing, HEAD_MAX_BYTES, HEADERS_MAX, RequestHead, Scan, Version, parse_request,
};
use runcap::wire::http::target::{Component, Plus, Target, decode, encode};

use super::{is_a_message, pieces};

const ALPHANUMERIC: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const TOKEN_MARKS: &str = "!#$%&'*+-.^_`|~";
const HOST_MARKS: &str = "-._~!$&'()*+;=%:[]";

/// Which byte comes after this request?
pub fn head(data: &[u8]) {
    let single: Vec<&[u8]> = data.chunks(1).collect();
    let found = scan(&[data]);
    assert_eq!(scan(&pieces(data)), found);
    assert_eq!(scan(&single), found);
    let expected = model(data);
    let Ok(end) = found else {
        assert_eq!(expected, None);
        let _ =
            parse_request(data).map_err(|refusal| is_a_refusal(refusal.status, &refusal.reason));
        return;
    };
    let bytes = end.map_or(data, |end| &data[..end]);
    let read = match parse_request(bytes) {
        Ok(head) => {
            let end = end.expect("a head that is read has an end");
            assert!(end <= HEAD_MAX_BYTES && head.headers.len() <= HEADERS_MAX);
            is_read_again(&head);
            Some((end, head))
        }
        Err(refusal) => {
            is_a_refusal(refusal.status, &refusal.reason);
            None
        }
    };
    assert_eq!(read, expected);
}

/// What a scan finds, or the status of its refusal.
fn scan(pieces: &[&[u8]]) -> Result<Option<usize>, u16> {
    let mut scan = Scan::new();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        match scan.look(&buffer) {
            Ok(None) => {}
            Ok(end) => return Ok(end),
            Err(refusal) => {
                is_a_refusal(refusal.status, &refusal.reason);
                return Err(refusal.status);
            }
        }
    }
    Ok(None)
}

fn is_a_refusal(status: u16, reason: &str) {
    assert!([400, 413, 417, 431, 501, 505].contains(&status), "{status}");
    is_a_message(reason);
}

/// The head in one canonical form is the same head.
fn is_read_again(head: &RequestHead) {
    let Target { path, query } = &head.target;
    let query = query.as_ref().map_or(String::new(), |query| format!("?{query}"));
    let authority = match &head.host {
        Some(host) if head.header("host") != Some(host) => format!("http://{host}"),
        _ => String::new(),
    };
    let version = if head.version == Version::Http10 { "1.0" } else { "1.1" };
    let mut text = format!("{} {authority}{path}{query} HTTP/{version}\r\n", head.method);
    for (name, value) in &head.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    assert!(text.is_ascii());
    assert_eq!(parse_request(text.as_bytes()).as_ref(), Ok(head));
}

/// The end of the first head and what it says, if it is right.
fn model(data: &[u8]) -> Option<(usize, RequestHead)> {
    // One character for each byte, so that positions are the same.
    let text: Vec<char> = data.iter().map(|byte| char::from(*byte)).collect();
    let text = String::from_iter(text);
    let mut rest = text.as_str();
    while let Some(after) = rest.strip_prefix("\r\n") {
        rest = after;
    }
    let (lines, body) = rest.split_once("\r\n\r\n")?;
    let end = data.len() - body.chars().count();
    let lines: Vec<&str> = lines.split("\r\n").collect();
    let is_bad = |character: char| character.is_ascii_control() && character != '\t';
    if end > 32_768 || lines.len() > 101 || lines.iter().any(|line| line.contains(is_bad)) {
        return None;
    }
    let words: Vec<&str> = lines[0].split(' ').collect();
    let &[method, target, "HTTP/1.0" | "HTTP/1.1"] = words.as_slice() else { return None };
    let is_old = words[2].ends_with('0');
    let mut headers = Vec::new();
    for line in &lines[1..] {
        let (name, value) = line.split_once(':')?;
        let value = value.trim_matches([' ', '\t']);
        let value = value.chars().map(|shown| if shown.is_ascii() { shown } else { '?' });
        headers.push((name.to_owned(), value.collect::<String>()));
    }
    let is_right = is_token(method) && headers.iter().all(|(name, _)| is_token(name));
    let (authority, target) = model_of_target(method, target)?;
    let all = |name: &str| -> Vec<String> {
        let named = headers.iter().filter(|(other, _)| other.to_ascii_lowercase() == name);
        named.map(|(_, value)| value.to_ascii_lowercase()).collect()
    };
    let hosts = all("host").len();
    let expectations = all("expect");
    let is_right = is_right
        && (hosts == 1 || (hosts == 0 && is_old))
        && all("host").iter().all(|host| is_made_of(host, HOST_MARKS))
        && expectations.iter().all(|value| value == "100-continue");
    if !is_right {
        return None;
    }
    let framing = model_of_framing(is_old, &all("content-length"), &all("transfer-encoding"))?;
    let options = all("connection").join(",");
    let host = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let head = RequestHead {
        method: method.to_owned(),
        target,
        version: if is_old { Version::Http10 } else { Version::Http11 },
        host: authority.or(host.map(|(_, value)| value.clone())),
        framing,
        close: is_old || options.split(',').any(|option| option.trim() == "close"),
        expects_continue: !is_old && !expectations.is_empty(),
        headers,
    };
    Some((end, head))
}

pub(super) fn model_of_framing(
    is_old: bool,
    lengths: &[String],
    codings: &[String],
) -> Option<Framing> {
    match (lengths, codings) {
        ([], []) => Some(Framing::None),
        ([length], []) => {
            let significant = length.trim_start_matches('0');
            let is_digit = |character| "0123456789".contains(character);
            let is_right = !length.is_empty() && length.trim_matches(is_digit).is_empty();
            // Twenty digits fit in 128 bits, so that nothing wraps.
            let number: u128 = match significant.len() {
                1..=20 if is_right => significant.parse().ok()?,
                0 if is_right => 0,
                _ => return None,
            };
            u64::try_from(number).ok().map(Framing::Length)
        }
        ([], [coding]) if coding == "chunked" && !is_old => Some(Framing::Chunked),
        _ => None,
    }
}

/// The authority that a target names, if it does, path and query; characters stand for bytes.
fn model_of_target(method: &str, target: &str) -> Option<(Option<String>, Target)> {
    let is_bad = |character: char| "\t #\u{7f}".contains(character);
    if method == "CONNECT" || target.contains(is_bad) {
        return None;
    }
    let escape = |text: &str| -> String {
        let escape = |character: char| match character {
            ..='\u{7f}' => character.to_string(),
            _ => format!("%{:02X}", u32::from(character)),
        };
        text.chars().map(escape).collect()
    };
    let is_absolute = target.to_ascii_lowercase().starts_with("http://");
    if !is_absolute && !target.starts_with('/') && (target, method) != ("*", "OPTIONS") {
        return None;
    }
    let (authority, rest) = if is_absolute {
        let rest = &target[7..];
        let authority = rest.split(['/', '?']).next()?;
        if authority.is_empty() || !is_made_of(authority, HOST_MARKS) {
            return None;
        }
        (Some(authority.to_owned()), &rest[authority.len()..])
    } else {
        (None, target)
    };
    let mut halves = rest.splitn(2, '?');
    let path = halves.next().filter(|path| !path.is_empty()).unwrap_or("/");
    Some((authority, Target { path: escape(path), query: halves.next().map(escape) }))
}

pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && is_made_of(text, TOKEN_MARKS)
}

fn is_made_of(text: &str, marks: &str) -> bool {
    text.trim_matches(|character| ALPHANUMERIC.contains(character) || marks.contains(character))
        .is_empty()
}

/// Percent-encoding, and what targets say.
pub fn target(data: &[u8]) {
    encoded_bytes_read_back(data);
    let text = String::from_utf8_lossy(data);
    for plus in [Plus::Stays, Plus::IsSpace] {
        match decode(&text, plus) {
            Ok(decoded) => {
                assert!(decoded.len() <= text.len());
                assert_eq!(Some(decoded), model_of_decoding(&text, plus));
            }
            Err(error) => {
                is_a_message(&error.to_string());
                assert_eq!(model_of_decoding(&text, plus), None);
            }
        }
    }
    says_what_the_model_says(&Target { path: text.to_string(), query: Some(text.to_string()) });
    for method in ["GET", "OPTIONS"] {
        let head = [method.as_bytes(), b" ", data, b" HTTP/1.1\r\nHost:\r\n\r\n"].concat();
        if let Ok(head) = parse_request(&head) {
            let Target { path, query } = &head.target;
            let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(is_visible(path) && query.as_deref().is_none_or(is_visible));
            assert!(path.starts_with('/') || (path, method) == (&"*".to_owned(), "OPTIONS"));
            assert!(!path.contains('?'));
            says_what_the_model_says(&head.target);
        }
    }
}

fn encoded_bytes_read_back(data: &[u8]) {
    for plus in [Plus::Stays, Plus::IsSpace] {
        for component in [Component::Path, Component::Query] {
            let encoded = encode(data, component);
            assert!(data.len() <= encoded.len() && encoded.len() <= 3 * data.len());
            assert!(is_made_of(&encoded, "-._~%/"));
            assert_eq!(decode(&encoded, plus).as_deref(), Ok(data));
        }
    }
    let key = String::from_utf8_lossy(data);
    if !key.is_empty() {
        let encoded = encode(key.as_bytes(), Component::Query);
        let query = Some(format!("{encoded}={}&{encoded}=no", encode(data, Component::Query)));
        let target = Target { path: format!("/{}", encode(data, Component::Query)), query };
        assert_eq!(target.query_value(&key), Ok(Some(data.to_vec())));
        assert_eq!(target.segments(), Ok(vec![data.to_vec()]));
    }
}

fn says_what_the_model_says(target: &Target) {
    let path = target.path.trim_start_matches('/');
    let slashes = target.path.len() - path.len();
    let mut expected = vec![Some(Vec::new()); slashes.saturating_sub(1)];
    expected.extend(path.split('/').map(|segment| model_of_decoding(segment, Plus::Stays)));
    let expected: Option<Vec<_>> = expected.into_iter().collect();
    assert_eq!(target.segments().ok(), expected);

    let mut known: Vec<Vec<u8>> = Vec::new();
    let mut ends_well = true;
    for pair in target.query.as_deref().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let end = pair.find('=').unwrap_or(pair.len());
        // A bad key ends every search that comes to it, a bad value only that for its key.
        let Some(key) = model_of_decoding(&pair[..end], Plus::IsSpace) else {
            ends_well = false;
            break;
        };
        let is_new = known.len() < 20 && !known.contains(&key);
        if let (true, Ok(text)) = (is_new, std::str::from_utf8(&key)) {
            let value = pair[end..].strip_prefix('=').unwrap_or("");
            let expected = model_of_decoding(value, Plus::IsSpace).map(Some);
            assert_eq!(target.query_value(text).ok(), expected, "{text:?}");
        }
        known.push(key);
    }
    let unknown = "no such key";
    if !known.iter().any(|key| key == unknown.as_bytes()) {
        assert_eq!(target.query_value(unknown).ok(), ends_well.then_some(None));
    }
}

/// Every piece after a `%` begins with two hexadecimal digits, or there is no result.
fn model_of_decoding(text: &str, plus: Plus) -> Option<Vec<u8>> {
    let text = if plus == Plus::IsSpace { text.replace('+', " ") } else { text.to_owned() };
    let mut pieces = text.split('%');
    let mut decoded = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2)?;
        if !is_made_of(digits, "") {
            return None;
        }
        decoded.push(u8::from_str_radix(digits, 16).ok()?);
        decoded.extend_from_slice(&piece.as_bytes()[2..]);
    }
    Some(decoded)
}
