//! How do bytes become base64 (standard alphabet, padded) and back?

use std::fmt;
use std::io::{self, Write};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Marks a byte that is not of the alphabet; every value of a symbol is below.
const NOT_A_SYMBOL: u8 = 0x80;

/// The six bits a symbol stands for.
const VALUES: [u8; 256] = {
    let mut values = [NOT_A_SYMBOL; 256];
    let mut value = 0;
    while value < 64 {
        values[ALPHABET[value as usize] as usize] = value;
        value += 1;
    }
    values
};

/// Bytes encoded at a time, a multiple of 3, and the symbols they become.
const BLOCK_BYTES: usize = 3 * 1024;
const BLOCK_SYMBOLS: usize = 4 * 1024;

/// Why a text is not base64. Says where, never what stood there: it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Bytes from the start of the text.
    pub offset: usize,
    /// What is wrong there.
    pub kind: DecodeErrorKind,
}

/// What is wrong with a text that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// A byte that is not of the standard alphabet: whitespace, the URL alphabet and so on.
    Symbol,
    /// A `=` anywhere but as the last byte, or the last two, of the last four.
    Padding,
    /// Bits that no byte needs are set in the last symbol: another text was meant.
    TrailingBits,
    /// The text ends inside four symbols, so some of it, or its padding, is missing.
    Length,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DecodeErrorKind::Symbol => "not a symbol of the standard alphabet",
            DecodeErrorKind::Padding => "padding in the wrong place",
            DecodeErrorKind::TrailingBits => "unused bits are not zero",
            DecodeErrorKind::Length => "length is not a multiple of 4, padding included",
        };
        write!(f, "invalid base64 at byte {}: {kind}", self.offset)
    }
}

impl std::error::Error for DecodeError {}

/// Replaces base64 text by the bytes it stands for, without a second buffer.
///
/// Strict, so that each content has exactly one text: padding is required, whitespace and unused
/// bits are refused. An empty text is no bytes.
///
/// # Errors
/// The first thing that is wrong; `bytes` is then partly decoded and of no more use.
pub fn decode_in_place(bytes: &mut Vec<u8>) -> Result<(), DecodeError> {
    let whole = bytes.len() / 4 * 4;
    let (mut read, mut length) = (0, 0);
    while read < whole {
        let quad = [bytes[read], bytes[read + 1], bytes[read + 2], bytes[read + 3]];
        let values = quad.map(|symbol| VALUES[usize::from(symbol)]);
        let triple = if values.iter().fold(0, |all, value| all | value) < NOT_A_SYMBOL {
            join(values)
        } else {
            let is_last = read + 4 == bytes.len();
            let (triple, used) = decode_irregular(quad, is_last, read)?;
            bytes[length..length + used].copy_from_slice(&triple[..used]);
            bytes.truncate(length + used);
            return Ok(());
        };
        bytes[length..length + 3].copy_from_slice(&triple);
        read += 4;
        length += 3;
    }
    // A stray byte is the better answer than the length it spoils: a final newline, for one.
    let rest = bytes[whole..].iter();
    for (offset, symbol) in (whole..).zip(rest) {
        if let Some(kind) = not_a_symbol(*symbol) {
            return Err(DecodeError { offset, kind });
        }
    }
    if whole < bytes.len() {
        return Err(DecodeError { offset: bytes.len(), kind: DecodeErrorKind::Length });
    }
    bytes.truncate(length);
    Ok(())
}

/// Decodes four bytes that are not all symbols: the padded end of a text, or an error. Returns
/// three bytes and how many of them count.
fn decode_irregular(
    quad: [u8; 4],
    is_last: bool,
    offset: usize,
) -> Result<([u8; 3], usize), DecodeError> {
    let symbols = match quad {
        [_, _, b'=', b'='] if is_last => 2,
        [_, _, _, b'='] if is_last => 3,
        _ => 4,
    };
    for (position, symbol) in quad[..symbols].iter().enumerate() {
        if let Some(kind) = not_a_symbol(*symbol) {
            return Err(DecodeError { offset: offset + position, kind });
        }
    }
    let mut values = quad.map(|symbol| VALUES[usize::from(symbol)]);
    values[symbols..].fill(0);
    let used = symbols - 1;
    let triple = join(values);
    if triple[used..].iter().any(|byte| *byte != 0) {
        let kind = DecodeErrorKind::TrailingBits;
        return Err(DecodeError { offset: offset + used, kind });
    }
    Ok((triple, used))
}

fn not_a_symbol(byte: u8) -> Option<DecodeErrorKind> {
    match byte {
        b'=' => Some(DecodeErrorKind::Padding),
        _ if VALUES[usize::from(byte)] == NOT_A_SYMBOL => Some(DecodeErrorKind::Symbol),
        _ => None,
    }
}

fn join(values: [u8; 4]) -> [u8; 3] {
    let [a, b, c, d] = values;
    [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]
}

/// Encodes a stream that arrives in pieces, cut anywhere, as one base64 text.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    carried: [u8; 2],
    carried_bytes: usize,
}

impl Encoder {
    /// An encoder at the start of a stream.
    pub const fn new() -> Self {
        Self { carried: [0; 2], carried_bytes: 0 }
    }

    /// Writes the symbols of `bytes` in pieces of at most 4 KiB; one or two bytes that do not fill
    /// four symbols are carried over to the next call.
    ///
    /// # Errors
    /// What `out` returned; the encoder is then of no more use.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        while self.carried_bytes > 0 {
            let [next, after @ ..] = bytes else {
                return Ok(());
            };
            bytes = after;
            if self.carried_bytes == 2 {
                let [first, second] = self.carried;
                self.carried_bytes = 0;
                out.write_all(&split([first, second, *next]))?;
            } else {
                self.carried[1] = *next;
                self.carried_bytes = 2;
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / 3 * 3);
        let mut symbols = [0; BLOCK_SYMBOLS];
        for block in whole.chunks(BLOCK_BYTES) {
            let (triples, _) = block.as_chunks::<3>();
            for (quad, triple) in symbols.as_chunks_mut::<4>().0.iter_mut().zip(triples) {
                *quad = split(*triple);
            }
            out.write_all(&symbols[..triples.len() * 4])?;
        }
        self.carried[..rest.len()].copy_from_slice(rest);
        self.carried_bytes = rest.len();
        Ok(())
    }

    /// Ends the text: writes what is carried, with its padding.
    ///
    /// # Errors
    /// What `out` returned.
    pub fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let [first, second] = self.carried;
        let quad = match self.carried_bytes {
            0 => return Ok(()),
            1 => {
                let [a, b, ..] = split([first, 0, 0]);
                [a, b, b'=', b'=']
            }
            _ => {
                let [a, b, c, _] = split([first, second, 0]);
                [a, b, c, b'=']
            }
        };
        self.carried_bytes = 0;
        out.write_all(&quad)
    }
}

fn split(triple: [u8; 3]) -> [u8; 4] {
    let [a, b, c] = triple;
    [a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63]
        .map(|value| ALPHABET[usize::from(value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(bytes: &[u8], piece_bytes: usize) -> Vec<u8> {
        let mut text = Vec::new();
        let mut encoder = Encoder::new();
        for piece in bytes.chunks(piece_bytes) {
            encoder.feed(piece, &mut text).expect("a vector takes everything");
        }
        encoder.finish(&mut text).expect("a vector takes everything");
        text
    }

    #[test]
    fn encoding_and_decoding_are_inverse() {
        let long: Vec<u8> = (0..10_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let rows: [(&str, &[u8], Option<&str>); 9] = [
            ("empty", b"", Some("")),
            ("one", b"f", Some("Zg==")),
            ("two", b"fo", Some("Zm8=")),
            ("three", b"foo", Some("Zm9v")),
            ("four", b"foob", Some("Zm9vYg==")),
            ("five", b"fooba", Some("Zm9vYmE=")),
            ("six", b"foobar", Some("Zm9vYmFy")),
            ("end of the alphabet", b"\xFB\xEF\xBF", Some("+++/")),
            ("several blocks", &long, None),
        ];
        for (name, bytes, expected) in rows {
            for piece_bytes in [1, 2, 3, 4, 5, 3073, usize::MAX] {
                let mut text = encode(bytes, piece_bytes);
                if let Some(expected) = expected {
                    assert_eq!(text, expected.as_bytes(), "{name}");
                }
                assert_eq!(text.len(), bytes.len().div_ceil(3) * 4, "{name}");
                decode_in_place(&mut text).expect(name);
                assert_eq!(text, bytes, "{name} in pieces of {piece_bytes}");
            }
        }
    }

    #[test]
    fn what_is_not_strict_base64_is_refused() {
        use DecodeErrorKind::*;
        let rows = [
            ("one symbol", "A", 1, Length),
            ("no padding", "Zm8", 3, Length),
            ("half the padding", "Zg=", 2, Padding),
            ("newline at the end", "Zm9v\n", 4, Symbol),
            ("newline inside", "Zm\n9", 2, Symbol),
            ("url alphabet", "Zm9vZm-_", 6, Symbol),
            ("only padding", "====", 0, Padding),
            ("three of padding", "Z===", 1, Padding),
            ("padding before a symbol", "Zg=v", 2, Padding),
            ("text after padding", "Zg==Zm9v", 2, Padding),
            ("unused bits of one byte", "Zh==", 1, TrailingBits),
            ("unused bits of two bytes", "Zm9=", 2, TrailingBits),
            ("not ascii", "Zm9vZ\u{e9}v", 5, Symbol),
        ];
        for (name, text, offset, kind) in rows {
            let mut bytes = text.as_bytes().to_vec();
            assert_eq!(decode_in_place(&mut bytes), Err(DecodeError { offset, kind }), "{name}");
        }
        let error = DecodeError { offset: 7, kind: Symbol };
        assert_eq!(
            error.to_string(),
            "invalid base64 at byte 7: not a symbol of the standard alphabet"
        );
    }
}
