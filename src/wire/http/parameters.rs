//! What do the parameters of a header's value say: `form-data; name="a b"; filename*=UTF-8''c`?

/// Bytes of a token, RFC 9110 section 5.6.2.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Cuts a value into what stands before its parameters, trimmed, and the parameters with their
/// semicolons.
pub(super) fn cut(value: &str) -> (&str, &str) {
    let (kind, parameters) = value.split_at(value.find(';').unwrap_or(value.len()));
    (kind.trim_matches(BLANKS), parameters)
}

const BLANKS: [char; 2] = [' ', '\t'];

/// Takes the name and the value of the next parameter, RFC 9110 section 5.6.6; none at the end.
///
/// In a quoted text a backslash escapes only a quote and a backslash. RFC 9110 lets it escape
/// everything, but browsers write a backslash of a file's name as it is.
///
/// # Errors
/// Anything but `; name=token` and `; name="text"`, with white space around the semicolon only.
pub(super) fn parameter<'a>(rest: &mut &'a str) -> Result<Option<(&'a str, String)>, &'static str> {
    let text = rest.trim_start_matches([' ', '\t', ';']);
    if text.is_empty() {
        return Ok(None);
    }
    let (name, text) = token(text);
    let value = text.strip_prefix('=').filter(|_| !name.is_empty());
    let taken = value.and_then(|value| match value.strip_prefix('"') {
        Some(quoted) => unquote(quoted),
        None => Some(token(value))
            .filter(|(value, _)| !value.is_empty())
            .map(|(value, after)| (value.to_owned(), after)),
    });
    let ended = taken.map(|(value, after)| (value, after.trim_start_matches(BLANKS)));
    match ended {
        Some((value, after)) if after.is_empty() || after.starts_with(';') => {
            *rest = after;
            Ok(Some((name, value)))
        }
        _ => Err("expected parameters ; name=token or ; name=\"text\""),
    }
}

/// The token a text begins with, maybe an empty one, and what follows.
fn token(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(|byte| is_token(*byte)).count())
}

/// The text up to the closing quote, without its backslashes, and what follows the quote.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut rest = quoted;
    loop {
        let (plain, special) = rest.split_at(rest.find(['"', '\\'])?);
        text.push_str(plain);
        let is_escape = special.starts_with("\\\"") || special.starts_with("\\\\");
        let (character, after) = special[usize::from(is_escape)..].split_at(1);
        if character == "\"" && !is_escape {
            return Some((text, after));
        }
        text.push_str(character);
        rest = after;
    }
}

/// Replaces `%22`, `%0D` and `%0A`, which stand for a quote, CR and LF in the names of a form (HTML
/// standard, multipart/form-data encoding). Every other percent sign stands for itself there.
pub(super) fn decode_form(text: &str) -> String {
    let decoded = decode_percent(text, |byte| matches!(byte, b'"' | b'\r' | b'\n'));
    // Whole characters were replaced by whole characters.
    String::from_utf8(decoded).expect("ASCII for ASCII keeps it UTF-8")
}

/// Decodes an extended value, RFC 8187: `UTF-8'language'percent-encoded`. None if it is none.
pub(super) fn decode_extended(text: &str) -> Option<String> {
    let mut fields = text.splitn(3, '\'');
    let charset = fields.next().filter(|charset| charset.eq_ignore_ascii_case("UTF-8"));
    let (_, _language, encoded) = (charset?, fields.next()?, fields.next()?);
    let decoded = decode_percent(encoded, |_| true);
    let is_whole =
        encoded.bytes().filter(|byte| *byte == b'%').count() * 2 == encoded.len() - decoded.len();
    String::from_utf8(decoded).ok().filter(|_| is_whole)
}

/// Replaces `%` and two hex digits by the byte they stand for, where that is `wanted`.
fn decode_percent(text: &str, wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let value = match rest {
            [b'%', high, low, ..] => {
                digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low)
            }
            _ => None,
        };
        match value.filter(|value| wanted(*value)) {
            Some(value) => {
                decoded.push(value);
                rest = &rest[3..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    decoded
}
