//! How do bytes become text, and text the body of a JSON string, and back?

use std::fmt;
use std::io::{self, Write};

/// Bytes validated at a time: large enough that the cost of a call vanishes, small enough that the
/// block is still in the cache when what is emitted is read again.
const BLOCK_BYTES: usize = 16 * 1024;

/// What stands for bytes that are not UTF-8, repeated so that a run of them is few calls.
const REPLACEMENTS: &str = "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}";
const REPLACEMENT_BYTES: usize = 3;

/// Bytes of a JSON string looked at in one step.
const WORD_BYTES: usize = 8;

/// Bytes of escaped text gathered before they are written.
const PIECE_BYTES: usize = 1024;

/// Decodes a stream of UTF-8 that arrives in pieces, cut anywhere.
///
/// The text is that of `String::from_utf8_lossy` over the whole stream, however it was cut. At
/// most three bytes are held between two calls. Once `emit` has failed, the decoder is of no more
/// use: part of the piece may have been emitted.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    held: [u8; 3],
    held_bytes: usize,
    replaced: bool,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub const fn new() -> Self {
        Self {
            held: [0; 3],
            held_bytes: 0,
            replaced: false,
        }
    }

    /// Emits the text of `bytes` in pieces of at most 16 KiB, each invalid sequence as U+FFFD, and
    /// holds an incomplete character at the end until the next call.
    ///
    /// # Errors
    /// What `emit` returned; this function has no errors of its own.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        emit: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = self.complete_held(bytes, emit)?;
        // Nothing left can also mean that more is held now than before.
        if bytes.is_empty() {
            return Ok(());
        }
        let (mut rest, held) = bytes.split_at(bytes.len() - incomplete_suffix(bytes));
        self.held[..held.len()].copy_from_slice(held);
        self.held_bytes = held.len();
        while rest.len() > BLOCK_BYTES {
            let block_bytes = BLOCK_BYTES - incomplete_suffix(&rest[..BLOCK_BYTES]);
            let (block, after) = rest.split_at(block_bytes);
            self.decode(block, emit)?;
            rest = after;
        }
        self.decode(rest, emit)
    }

    /// Ends the stream: a character still incomplete becomes one U+FFFD.
    ///
    /// # Errors
    /// What `emit` returned; this function has no errors of its own.
    pub fn finish(&mut self, emit: &mut impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        if self.held_bytes > 0 {
            self.held_bytes = 0;
            self.replace(1, emit)?;
        }
        Ok(())
    }

    /// Whether a U+FFFD was emitted in place of bytes that were not UTF-8; a U+FFFD of the stream
    /// itself does not count.
    pub fn replaced(&self) -> bool {
        self.replaced
    }

    /// Bytes held back because their character is incomplete: 0 to 3.
    pub fn held(&self) -> usize {
        self.held_bytes
    }

    /// Joins what is held with the start of `bytes`; returns what it did not take.
    fn complete_held<'a>(
        &mut self,
        mut bytes: &'a [u8],
        emit: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> io::Result<&'a [u8]> {
        while self.held_bytes > 0 {
            let [next, after @ ..] = bytes else { break };
            let mut character = [0; 4];
            character[..self.held_bytes].copy_from_slice(&self.held[..self.held_bytes]);
            character[self.held_bytes] = *next;
            match str::from_utf8(&character[..=self.held_bytes]) {
                Ok(text) => {
                    self.held_bytes = 0;
                    emit(text)?;
                    bytes = after;
                }
                Err(error) if error.error_len().is_none() => {
                    self.held[self.held_bytes] = *next;
                    self.held_bytes += 1;
                    bytes = after;
                }
                // What is held was right so far, so the next byte is the one that does not fit:
                // it is not part of the invalid sequence, and may begin a character itself.
                Err(_) => {
                    self.held_bytes = 0;
                    self.replace(1, emit)?;
                }
            }
        }
        Ok(bytes)
    }

    /// Decodes a block in which a character cut at the end is invalid, not incomplete.
    ///
    /// `from_utf8` is many times as fast as `utf8_chunks` on ASCII, so it goes first; but to call
    /// it again after every error would read the text twice, and cost a call a byte in binary.
    fn decode(
        &mut self,
        block: &[u8],
        emit: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        if let Ok(text) = str::from_utf8(block) {
            return emit(text);
        }
        let mut invalid = 0;
        for chunk in block.utf8_chunks() {
            if !chunk.valid().is_empty() {
                self.replace(invalid, emit)?;
                invalid = 0;
                emit(chunk.valid())?;
            }
            invalid += usize::from(!chunk.invalid().is_empty());
        }
        self.replace(invalid, emit)
    }

    fn replace(
        &mut self,
        mut count: usize,
        emit: &mut impl FnMut(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        self.replaced |= count > 0;
        while count > 0 {
            let run = count.min(REPLACEMENTS.len() / REPLACEMENT_BYTES);
            emit(&REPLACEMENTS[..run * REPLACEMENT_BYTES])?;
            count -= run;
        }
        Ok(())
    }
}

/// Length (0 to 3) of the character at the end of `bytes` that is right so far, but incomplete.
pub fn incomplete_suffix(bytes: &[u8]) -> usize {
    let is_incomplete = |&length: &usize| match str::from_utf8(&bytes[bytes.len() - length..]) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    };
    (1..=bytes.len().min(3)).find(is_incomplete).unwrap_or(0)
}

/// How many continuation bytes (0x80 to 0xBF) stand at the start, counting at most 3: what is
/// left of a character whose beginning was dropped.
pub fn continuation_prefix(bytes: impl Iterator<Item = u8>) -> usize {
    bytes
        .take(3)
        .take_while(|byte| matches!(byte, 0x80..=0xBF))
        .count()
}

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
/// escaped in one, the rest at most 1 KiB at a time.
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
                let run = plain_run(rest);
                if run > 0 {
                    out.write_all(&piece[..filled])?;
                    filled = 0;
                    out.write_all(&rest[..run])?;
                    rest = &rest[run..];
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
                write!(
                    f,
                    "invalid string: bad escape or bare control character at byte {offset}"
                )
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
    let (mut read, mut length) = (0, 0);
    loop {
        let at = find_syntax(bytes, read);
        if length < read {
            bytes.copy_within(read..at, length);
        }
        length += at - read;
        let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else {
            return Ok(length);
        };
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

    /// Feeds `bytes` cut into pieces of `piece_bytes`.
    fn decode(bytes: &[u8], piece_bytes: usize) -> (String, bool) {
        let mut text = String::new();
        let mut emit = |piece: &str| {
            assert!(!piece.is_empty() && piece.len() <= BLOCK_BYTES);
            text.push_str(piece);
            Ok(())
        };
        let mut decoder = Decoder::new();
        for piece in bytes.chunks(piece_bytes) {
            decoder.feed(piece, &mut emit).expect("emit never fails");
            assert!(decoder.held() <= 3);
        }
        decoder.finish(&mut emit).expect("emit never fails");
        (text, decoder.replaced())
    }

    #[test]
    fn decoding_in_pieces_is_decoding_the_whole() {
        let long = "aé€😀".repeat(BLOCK_BYTES / 5);
        let rows: [(&str, &[u8]); 12] = [
            ("empty", b""),
            ("ascii", b"hello"),
            ("all widths", "aé€😀z".as_bytes()),
            ("a real U+FFFD", "\u{FFFD}".as_bytes()),
            ("cut at the end", b"a\xF0\x9F\x98"),
            ("cut twice", b"\xE2\x82\xE2\x82"),
            ("cut, then ascii", b"\xE2\x82a"),
            ("surrogate", b"\xED\xA0\x80"),
            ("overlong", b"\xC0\x80\xE0\x80\x80\xF0\x80\x80\x80"),
            ("above U+10FFFF", b"\xF4\x90\x80\x80\xF8\x88\x80\x80\x80"),
            ("run of invalid bytes", &[0xFF; 100]),
            ("several blocks", long.as_bytes()),
        ];
        for (name, bytes) in rows {
            let expected = String::from_utf8_lossy(bytes);
            for piece_bytes in [1, 2, 3, 4, 5, 7, BLOCK_BYTES + 1, usize::MAX] {
                let (text, replaced) = decode(bytes, piece_bytes);
                assert_eq!(text, expected, "{name} in pieces of {piece_bytes}");
                assert_eq!(replaced, str::from_utf8(bytes).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn ends_of_a_cut_are_measured() {
        let rows: [(&str, &[u8], usize, usize); 8] = [
            ("empty", b"", 0, 0),
            ("ascii", b"abc", 0, 0),
            ("whole character", "€".as_bytes(), 0, 0),
            ("two of three", b"a\xE2\x82", 2, 0),
            ("three of four", b"\xF0\x9F\x98", 3, 0),
            ("never valid", b"\xE0\x80", 0, 0),
            ("rest of a character", b"\x82\xACa", 0, 2),
            ("too many continuations", b"\x80\x80\x80\x80", 0, 3),
        ];
        for (name, bytes, suffix, prefix) in rows {
            assert_eq!(incomplete_suffix(bytes), suffix, "{name}");
            assert_eq!(continuation_prefix(bytes.iter().copied()), prefix, "{name}");
        }
    }

    #[test]
    fn escaping_is_serde_jsons_and_no_line_end_is_left() {
        let every_ascii: String = (0..=0x7F_u8).map(char::from).collect();
        let rows = [
            ("empty", "", r#""""#),
            (
                "short escapes",
                "\"\\\u{8}\u{c}\n\r\t/",
                r#""\"\\\b\f\n\r\t/""#,
            ),
            (
                "other controls",
                "\0\u{1b}\u{1f}\u{7f}",
                "\"\\u0000\\u001b\\u001f\u{7f}\"",
            ),
            (
                "line ends",
                "\u{85}\u{2028}\u{2029}",
                r#""\u0085\u2028\u2029""#,
            ),
            (
                "neighbours",
                "\u{84}\u{86}\u{2027}\u{202a}é€",
                "\"\u{84}\u{86}\u{2027}\u{202a}é€\"",
            ),
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
            (
                "runs",
                r"0123456789\n012345678",
                Ok("0123456789\n012345678"),
            ),
            ("hexadecimal", r"\u0000\u00e9\u20AC", Ok("\0é€")),
            ("pair", r"a\ud83d\ude00b", Ok("a😀b")),
            (
                "line ends",
                "\u{85}\u{2028}\u{7f}",
                Ok("\u{85}\u{2028}\u{7f}"),
            ),
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
