//! What do a server's short answers say, and how is its text shown on a terminal?

use crate::wire::fields::{fields, value};
use crate::wire::value::{Reader, Scalar, wrong};

/// Bytes of a server's message that are shown, as they are shown.
pub const ERROR_MAX_BYTES: usize = 1024;

/// Text of a server for a terminal: everything that a terminal would act on or hide is written as
/// an escape, a line end too. Quotes and backslashes stay, so the text is for eyes, not to be read
/// back. A character becomes at most ten.
pub fn shown(text: &str) -> String {
    const PLAIN: [char; 3] = ['"', '\'', '\\'];
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PLAIN) {
        let (piece, after) = rest.split_at(at);
        // On a whole piece: alone, a combining mark would be escaped too.
        shown.extend(piece.escape_debug());
        shown.push_str(&after[..1]);
        rest = &after[1..];
    }
    shown.extend(rest.escape_debug());
    shown
}

/// The message of an answer that is an error: the text of `error`, or else the body itself. On one
/// line as [`shown`], without white space around it and at most [`ERROR_MAX_BYTES`], then `…`;
/// empty where the server has nothing to say.
pub fn read_error(body: &[u8]) -> String {
    let text = match error(body) {
        Some(text) => text,
        // More than is shown, but not all of it.
        None => String::from_utf8_lossy(&body[..body.len().min(2 * ERROR_MAX_BYTES)]).into_owned(),
    };
    let text = text.trim();
    let head = &text[..text.floor_char_boundary(ERROR_MAX_BYTES)];
    let mut message = shown(head);
    let end = message.floor_char_boundary(ERROR_MAX_BYTES);
    if end < message.len() || head.len() < text.len() {
        message.truncate(end);
        message.push('…');
    }
    message
}

fn error(body: &[u8]) -> Option<String> {
    let [error] = fields(body, ["error"]).ok()?;
    match value(error?, Reader::default()) {
        Ok(Scalar::Text(text)) => Some(text),
        _ => None,
    }
}

/// The protocol that the body of `/health` names; 1 where it names none, as the first servers did.
///
/// # Errors
/// One line, bounded and without a control character: not a JSON object, or a protocol that is no
/// whole number.
pub fn read_protocol(body: &[u8]) -> Result<u64, String> {
    let [protocol] = fields(body, ["protocol"]).map_err(invalid)?;
    let Some(protocol) = protocol else { return Ok(1) };
    match value(protocol, Reader::default()) {
        Ok(Scalar::Unsigned(protocol)) => Ok(protocol),
        Ok(other) => Err(wrong(&other, "a whole number")),
        Err(message) => Err(message),
    }
    .map_err(|message| invalid(format!("field 'protocol': {message}")))
}

fn invalid(message: String) -> String {
    format!("invalid answer of /health: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_acts_on_nothing_that_is_shown() {
        let rows = [
            ("plain", "a b-é€😀", "a b-é€😀"),
            ("quotes", r#"a'b"c\d"#, r#"a'b"c\d"#),
            ("combining mark", "e\u{301}", "e\u{301}"),
            ("line ends", "a\nb\r\n\u{2028}\u{85}", r"a\nb\r\n\u{2028}\u{85}"),
            ("colours", "\u{1b}[31m\u{9b}2J\0", r"\u{1b}[31m\u{9b}2J\0"),
            ("bidirectional override", "\u{202e}x\u{2066}", r"\u{202e}x\u{2066}"),
            ("hidden", "a\u{200b}\u{feff}b", r"a\u{200b}\u{feff}b"),
        ];
        for (name, text, expected) in rows {
            assert_eq!(shown(text), expected, "{name}");
        }
    }

    #[test]
    fn errors_are_one_bounded_line() {
        let longest = "a".repeat(ERROR_MAX_BYTES);
        let cut = longest.clone() + "…";
        let escapes = format!(r#"{{"error":"{}"}}"#, r"\u001b".repeat(ERROR_MAX_BYTES));
        let rows: [(&str, &[u8], &str); 14] = [
            ("error", br#"{"error":"no route: GET /x"}"#, "no route: GET /x"),
            ("more keys", br#"{"code":404,"error":"a\nb ","x":[]}"#, r"a\nb"),
            ("empty error", br#"{"error":""}"#, ""),
            ("empty", b"", ""),
            ("text", b"404 page not found\n", "404 page not found"),
            ("lines", b" a\r\nb\x1b\n", r"a\r\nb\u{1b}"),
            ("not UTF-8", b"a\xff", "a\u{fffd}"),
            ("another type", br#"{"error":1}"#, r#"{"error":1}"#),
            ("null", br#"{"error":null}"#, r#"{"error":null}"#),
            ("twice", br#"{"error":"a","error":"b"}"#, r#"{"error":"a","error":"b"}"#),
            ("list", br#"["a"]"#, r#"["a"]"#),
            ("longest", longest.as_bytes(), &longest),
            ("cut", &[b'a'; ERROR_MAX_BYTES + 1], &cut),
            ("much", &[b'a'; 99_999], &cut),
        ];
        for (name, body, expected) in rows {
            assert_eq!(read_error(body), expected, "{name}");
        }
        let message = read_error(escapes.as_bytes());
        assert!(message.len() <= ERROR_MAX_BYTES + "…".len() && message.ends_with('…'));
    }

    #[test]
    fn the_protocol_is_a_whole_number_or_one() {
        let rows = [
            ("named", r#"{"status":"ok","protocol":3}"#, Ok(3)),
            ("largest", r#"{"protocol":18446744073709551615}"#, Ok(u64::MAX)),
            ("absent", r#"{"status":"ok"}"#, Ok(1)),
            ("null", r#"{"protocol":null}"#, Ok(1)),
            ("text", r#"{"protocol":"3\n"}"#, Err(r"field 'protocol': invalid value '3\n'")),
            ("bool", r#"{"protocol":true}"#, Err("invalid value true")),
            ("float", r#"{"protocol":3.0}"#, Err("invalid value 3.0")),
            ("minus", r#"{"protocol":-3}"#, Err("invalid value -3")),
            ("too much", r#"{"protocol":1e999}"#, Err("number out of range")),
            ("twice", r#"{"protocol":3,"protocol":3}"#, Err("'protocol' is given twice")),
            ("page", "<html>", Err("invalid answer of /health: expected a JSON object")),
        ];
        for (name, body, expected) in rows {
            match (read_protocol(body.as_bytes()), expected) {
                (Err(message), Err(part)) => assert!(message.contains(part), "{name}: {message}"),
                (read, expected) => assert_eq!(read, expected.map_err(str::to_owned), "{name}"),
            }
        }
    }
}
