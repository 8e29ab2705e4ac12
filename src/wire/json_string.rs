//! How does text become the body of a JSON string, and back?

use std::fmt;
use std::io::{self, Write};

/// Bytes of a JSON string looked at in one step.
const WORD_BYTES: usize = 8;

/// Bytes of escaped text gathered before they are written.
const PIECE_BYTES: usize = 2048;

/// Bytes of a run that is written as it is: to gather a shorter one costs less than a call.
const RUN_MIN_BYTES: usize = 512;

/// Writes `text` as a JSON string, with its quotes; see [`write_escaped`].
///
/// # Errors
/// What `out` returned.
pub fn write_string(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(b"\"")?;
    write_escaped(out, text)?;
    out.write_all(b"\"")
}

/// Writes `text` as the body of a JSON string, without the quotes.
///
/// The body is `serde_json`'s but for U+0085, U+2028 and U+2029, which are written as `\u` escapes
/// because some line readers split there. It goes out in pieces: a run in which nothing has to be
/// escaped in one if it is long, the rest at most 2 KiB at a time.
///
/// To write each escape and each run between two as they are found costs a call and a copy of
/// unforeseeable length for every few bytes of a log. Copying eight bytes before it is known how
/// many of them count has neither.
///
/// # Errors
/// What `out` returned.
pub fn write_escaped(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    let mut piece = [0; PIECE_BYTES];
    let mut filled = 0;
    loop {
        if filled > PIECE_BYTES - 2 * WORD_BYTES {
            out.write_all(&piece[..filled])?;
            filled = 0;
        }
        if let Some(word) = rest.first_chunk::<WORD_BYTES>() {
            piece[filled..filled + WORD_BYTES].copy_from_slice(word);
            let word = u64::from_le_bytes(*word);
            let marks = syntax_mask(word) | lead_mask(word);
            if marks == 0 {
                filled += WORD_BYTES;
                rest = &rest[WORD_BYTES..];
                let (run, after) = rest.split_at(plain_run(rest));
                rest = after;
                if run.len() >= RUN_MIN_BYTES || run.len() > PIECE_BYTES - filled {
                    out.write_all(&piece[..filled])?;
                    filled = 0;
                    out.write_all(run)?;
                } else {
                    piece[filled..filled + run.len()].copy_from_slice(run);
                    filled += run.len();
                }
                continue;
            }
            filled += first_marked(marks);
            rest = &rest[first_marked(marks)..];
        }
        let (escape, taken) = match rest {
            [] => return out.write_all(&piece[..filled]),
            [0xC2, 0x85, ..] => (b"\\u0085\0\x06", 2),
            [0xE2, 0x80, 0xA8, ..] => (b"\\u2028\0\x06", 3),
            [0xE2, 0x80, 0xA9, ..] => (b"\\u2029\0\x06", 3),
            [byte, ..] => (&ESCAPES[usize::from(*byte)], 1),
        };
        piece[filled..filled + WORD_BYTES].copy_from_slice(escape);
        filled += usize::from(escape[WORD_BYTES - 1]);
        rest = &rest[taken..];
    }
}

/// Why the body of a JSON string cannot be text. Offsets are bytes from the body's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnescapeError {
    /// A `\u` escape names half of a surrogate pair, and the other half does not follow.
    LoneSurrogate {
        /// Where the escape's backslash stands.
        offset: usize,
    },
    /// Not the body of a JSON string: a bad or cut escape, a bare quote or a control character.
    Malformed {
        /// Where it stands; for an escape, its backslash.
        offset: usize,
    },
}

impl fmt::Display for UnescapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoneSurrogate { offset } => {
                write!(f, "invalid string: lone surrogate escape at byte {offset}")
            }
            Self::Malformed { offset } => {
                write!(f, "invalid string: bad escape or bare control character at byte {offset}")
            }
        }
    }
}

impl std::error::Error for UnescapeError {}

/// Decodes the escapes of a JSON string's body (what stands between the quotes) in place, and
/// returns the length of the text; the bytes after it are of no use.
///
/// Bytes that are not UTF-8 pass through unchanged, so text in is text out.
///
/// # Errors
/// The first escape that names a lone surrogate, or the first byte no JSON string may hold there.
/// `bytes` is then decoded up to it only.
pub fn unescape_in_place(bytes: &mut [u8]) -> Result<usize, UnescapeError> {
    let (length, offset) = unescape_to_quote(bytes)?;
    if offset < bytes.len() { Err(UnescapeError::Malformed { offset }) } else { Ok(length) }
}

/// As [`unescape_in_place`], up to the bare quote that ends the string: the length of the text,
/// and where the quote stands. That is the length of `bytes` where there is none.
///
/// # Errors
/// As there, but for the quote; what stands behind it is not looked at and stays as it is.
pub(super) fn unescape_to_quote(bytes: &mut [u8]) -> Result<(usize, usize), UnescapeError> {
    let (mut read, mut length) = (0, 0);
    loop {
        let at = find_syntax(bytes, read);
        if length < read {
            bytes.copy_within(read..at, length);
        }
        length += at - read;
        let rest = &bytes[at..];
        if matches!(rest, [] | [b'"', ..]) {
            return Ok((length, at));
        }
        let (character, taken) = unescape(rest, at)?;
        // An escape is never shorter than its character, so nothing unread is overwritten.
        length += character.encode_utf8(&mut bytes[length..at + taken]).len();
        read = at + taken;
    }
}

/// The character of the escape that `rest` begins with, and the escape's length.
fn unescape(rest: &[u8], offset: usize) -> Result<(char, usize), UnescapeError> {
    let character = match rest {
        [b'\\', letter @ (b'"' | b'\\' | b'/'), ..] => char::from(*letter),
        [b'\\', b'b', ..] => '\u{8}',
        [b'\\', b'f', ..] => '\u{c}',
        [b'\\', b'n', ..] => '\n',
        [b'\\', b'r', ..] => '\r',
        [b'\\', b't', ..] => '\t',
        [b'\\', b'u', ..] => {
            let unit = code_unit(rest).ok_or(UnescapeError::Malformed { offset })?;
            let units = [unit, code_unit(&rest[6..]).unwrap_or(0)];
            return match char::decode_utf16(units).next() {
                Some(Ok(character)) => Ok((character, 6 * character.len_utf16())),
                _ => Err(UnescapeError::LoneSurrogate { offset }),
            };
        }
        _ => return Err(UnescapeError::Malformed { offset }),
    };
    Ok((character, 2))
}

/// The number of the `\uXXXX` that `rest` begins with, if it does.
fn code_unit(rest: &[u8]) -> Option<u16> {
    let [b'\\', b'u', digits @ ..] = rest else {
        return None;
    };
    digits.get(..4)?.iter().try_fold(0, |unit, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).expect("a hexadecimal digit is below 16"))
    })
}

/// What each byte becomes in a JSON string, and in the last place how many bytes of it count: one,
/// itself, unless it has an escape.
const ESCAPES: [[u8; WORD_BYTES]; 256] = {
    let hexadecimal = b"0123456789abcdef";
    let mut escapes = [[0, 0, 0, 0, 0, 0, 0, 1]; 256];
    let mut byte = 0;
    while byte < 256 {
        escapes[byte][0] = byte as u8;
        if byte < 0x20 {
            let (high, low) = (hexadecimal[byte >> 4], hexadecimal[byte & 15]);
            escapes[byte] = [b'\\', b'u', b'0', b'0', high, low, 0, 6];
        }
        byte += 1;
    }
    let mut short = 0;
    while short < SHORT_ESCAPES.len() {
        let (byte, letter) = SHORT_ESCAPES[short];
        escapes[byte as usize] = [b'\\', letter, 0, 0, 0, 0, 0, 2];
        short += 1;
    }
    escapes
};

/// The bytes that have an escape of one letter, and the letter.
const SHORT_ESCAPES: [(u8, u8); 7] = [
    (0x08, b'b'),
    (0x09, b't'),
    (0x0A, b'n'),
    (0x0C, b'f'),
    (0x0D, b'r'),
    (b'"', b'"'),
    (b'\\', b'\\'),
];

/// Length of the blocks of 32 bytes at the start of `bytes` that hold nothing to be escaped.
fn plain_run(bytes: &[u8]) -> usize {
    // Without a branch inside, so that the compiler compares all bytes of a block at once.
    let is_special = |byte: u8| {
        u8::from(byte < 0x20)
            | u8::from(byte == b'"')
            | u8::from(byte == b'\\')
            | u8::from(byte == 0xC2)
            | u8::from(byte == 0xE2)
    };
    let is_plain =
        |block: &&[u8; 32]| block.iter().fold(0, |any, &byte| any | is_special(byte)) == 0;
    let (blocks, _) = bytes.as_chunks::<32>();
    32 * blocks.iter().take_while(is_plain).count()
}

/// Index of the first byte from `at` on that no JSON string may hold as it is, or the length.
fn find_syntax(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = bytes[at..].first_chunk::<WORD_BYTES>() {
        let marks = syntax_mask(u64::from_le_bytes(*word));
        if marks != 0 {
            return at + first_marked(marks);
        }
        at += WORD_BYTES;
    }
    let is_plain = |byte: &&u8| **byte >= 0x20 && !matches!(**byte, b'"' | b'\\');
    at + bytes[at..].iter().take_while(is_plain).count()
}

const ONES: u64 = u64::from_ne_bytes([0x01; WORD_BYTES]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; WORD_BYTES]);

/// Index of the first byte that is marked by its high bit.
fn first_marked(mask: u64) -> usize {
    mask.trailing_zeros() as usize / 8
}

/// Marks the bytes that no JSON string may hold as they are: quote, backslash, below 0x20.
///
/// A borrow can mark a byte wrongly, but only above one that is marked rightly: the lowest mark,
/// the only one looked at, is always right.
fn syntax_mask(word: u64) -> u64 {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    below_space | equal_mask(word, b'"') | equal_mask(word, b'\\')
}

/// Marks the bytes that U+0085, U+2028 and U+2029 begin with.
fn lead_mask(word: u64) -> u64 {
    equal_mask(word, 0xC2) | equal_mask(word, 0xE2)
}

fn equal_mask(word: u64, byte: u8) -> u64 {
    let zero_where_equal = word ^ (ONES * u64::from(byte));
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_is_serde_jsons_and_no_line_end_is_left() {
        let every_ascii: String = (0..=0x7F_u8).map(char::from).collect();
        let rows = [
            ("empty", "", r#""""#),
            ("short escapes", "\"\\\u{8}\u{c}\n\r\t/", r#""\"\\\b\f\n\r\t/""#),
            ("other controls", "\0\u{1b}\u{1f}\u{7f}", "\"\\u0000\\u001b\\u001f\u{7f}\""),
            ("line ends", "\u{85}\u{2028}\u{2029}", r#""\u0085\u2028\u2029""#),
            ("neighbours", "\u{84}\u{86}\u{2027}\u{202a}é€", "\"\u{84}\u{86}\u{2027}\u{202a}é€\""),
            ("quote in a word", "1234567\"abcdef", r#""1234567\"abcdef""#),
        ];
        for (name, text, expected) in rows {
            let mut out = Vec::new();
            write_string(&mut out, text).expect("a vector takes everything");
            assert_eq!(String::from_utf8_lossy(&out), expected, "{name}");
        }
        // Several pieces, some of them ending inside a word, and runs long enough to go out alone.
        let long = format!("{}{}", "ab\"€\0“".repeat(999), "0123456789\n".repeat(9));
        for text in [every_ascii, long, "x".repeat(9_999) + "\n"] {
            let mut out = Vec::new();
            write_string(&mut out, &text).expect("a vector takes everything");
            let expected = serde_json::to_vec(&text).expect("text is JSON");
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn unescaping_is_serde_jsons() {
        let lone = |offset| Err(UnescapeError::LoneSurrogate { offset });
        let bad = |offset| Err(UnescapeError::Malformed { offset });
        let rows = [
            ("empty", "", Ok("")),
            ("plain", "hello, wörld", Ok("hello, wörld")),
            ("short", r#"\"\\\/\b\f\n\r\t"#, Ok("\"\\/\u{8}\u{c}\n\r\t")),
            ("runs", r"0123456789\n012345678", Ok("0123456789\n012345678")),
            ("hexadecimal", r"\u0000\u00e9\u20AC", Ok("\0é€")),
            ("pair", r"a\ud83d\ude00b", Ok("a😀b")),
            ("line ends", "\u{85}\u{2028}\u{7f}", Ok("\u{85}\u{2028}\u{7f}")),
            ("high alone", r"ab\ud800", lone(2)),
            ("high, then text", r"\ud800abcdef", lone(0)),
            ("high, then bmp", r"\ud800\u0041", lone(0)),
            ("two high", r"\ud800\ud800", lone(0)),
            ("low alone", r"\n\udc00", lone(2)),
            ("cut escape", r"abc\", bad(3)),
            ("cut hexadecimal", r"\u12", bad(0)),
            ("sign in hexadecimal", r"\u+123", bad(0)),
            ("unknown escape", r"\x41", bad(0)),
            ("bare quote", r#"a"b"#, bad(1)),
            ("bare control", "a\nb", bad(1)),
            ("late control", "0123456789\0", bad(10)),
        ];
        for (name, body, expected) in rows {
            let mut bytes = body.as_bytes().to_vec();
            let result = unescape_in_place(&mut bytes);
            let text = result.map(|length| str::from_utf8(&bytes[..length]).expect("text"));
            assert_eq!(text, expected, "{name}");
            let theirs = serde_json::from_str::<String>(&format!("\"{body}\"")).ok();
            assert_eq!(theirs.as_deref(), expected.ok(), "{name}: serde_json");
        }
        let mut not_utf8 = *b"\xFF\\n\xE2\\\xE2";
        assert_eq!(unescape_in_place(&mut not_utf8), bad(4).map(str::len));
    }
}
