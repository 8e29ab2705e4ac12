//! Where does a chunked body (RFC 9112 section 7.1) end, and which of its bytes are data?
//!
//! Strict, because two readers that understand the same bytes differently are how one request's
//! body becomes another's head: line ends are CRLF, sizes are digits and nothing else, and after
//! the data of a chunk comes exactly CRLF. Extensions and trailers are checked and dropped.
//!
//! The machine looks at single bytes and remembers numbers only. The loser was to wait for whole
//! lines: it needs a buffer, and one that a size line of a million zeros must not fill.

use std::fmt;

use super::parameters::is_token;

/// Longest size line of one chunk: size, extensions and CRLF.
pub const SIZE_LINE_MAX_BYTES: usize = 256;

/// Longest trailers of one body: all lines with their CRLF, without the empty line that ends them.
pub const TRAILERS_MAX_BYTES: usize = 8 << 10;

/// Digits of a size at most, leading zeros included; as many as a `u64` holds.
const DIGITS_MAX: usize = 16;

/// Why bytes are not a chunked body. The message names the byte that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkError {
    what: &'static str,
    /// The first byte that cannot be; none where it is one too many.
    found: Option<u8>,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid chunked body: {}", self.what)?;
        match self.found {
            // Escaped as a byte: what it would be as a character, nobody can say.
            Some(byte) => write!(f, ", found '{}'", byte.escape_ascii()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ChunkError {}

/// What stands at the begin of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes of framing, at least one, that are done with: consume them and step again.
    Framing(usize),
    /// As many bytes, at least one, are data. Consume all of them or a part, and say how many by
    /// [`Chunks::took`].
    Data(usize),
    /// Nothing can be told without more bytes: the input is empty. If no more will come, the body
    /// was cut.
    More,
    /// The body ended; the next byte of the input is the next request's.
    End,
}

/// The state between two bytes of one chunked body.
#[derive(Clone, Debug)]
pub struct Chunks {
    place: Place,
    /// The size read so far, then the data bytes left, of the current chunk.
    left: u64,
    digits: usize,
    /// Bytes of the current size line, or of all trailers.
    line_bytes: usize,
    /// What was wrong: said again, should anybody go on after it.
    broken: Option<ChunkError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Size,
    /// In white space after the size: only an extension may follow.
    Padding,
    Extension,
    /// After the CR of a size line.
    SizeLineEnd,
    Data,
    /// Before the CR, and before the LF, after the data of a chunk.
    DataCr,
    DataLf,
    /// Before the first byte of a trailer line or of the empty line.
    Line,
    TrailerName,
    TrailerValue,
    /// After the CR of a trailer line.
    TrailerEnd,
    /// After the CR of the empty line.
    LastLf,
    Ended,
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks::new()
    }
}

impl Chunks {
    /// The state before the first byte of a body.
    pub fn new() -> Chunks {
        Chunks { place: Place::Size, left: 0, digits: 0, line_bytes: 0, broken: None }
    }

    /// Says what `input` begins with: the bytes after all that were consumed so far.
    ///
    /// Sizes up to sixteen times `f` are taken: a limit on the data is the caller's.
    ///
    /// # Errors
    /// The first byte that cannot stand where it stands, a size line over [`SIZE_LINE_MAX_BYTES`]
    /// and trailers over [`TRAILERS_MAX_BYTES`]. Every later step fails the same way.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, ChunkError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        for (at, byte) in input.iter().enumerate() {
            match self.place {
                Place::Data | Place::Ended if at > 0 => return Ok(Step::Framing(at)),
                Place::Data => {
                    let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                    return Ok(Step::Data(left.min(input.len())));
                }
                Place::Ended => return Ok(Step::End),
                _ => {}
            }
            self.place = self.advance(*byte).inspect_err(|error| self.broken = Some(*error))?;
        }
        Ok(match (input.len(), self.place) {
            (0, Place::Ended) => Step::End,
            (0, _) => Step::More,
            (count, _) => Step::Framing(count),
        })
    }

    /// Counts data bytes as consumed, from the input or from wherever the caller read them.
    ///
    /// # Panics
    /// If there are more than [`data_left`](Chunks::data_left): framing was consumed as data, and
    /// what follows would be misread.
    pub fn took(&mut self, count: usize) {
        assert!(count as u64 <= self.data_left(), "no more is taken than the chunk holds");
        if count > 0 {
            self.left -= count as u64;
            if self.left == 0 {
                self.place = Place::DataCr;
            }
        }
    }

    /// Data bytes left in the current chunk, which a reader may read straight into its caller's
    /// buffer; 0 outside of data.
    pub fn data_left(&self) -> u64 {
        if self.place == Place::Data { self.left } else { 0 }
    }

    /// The place after one byte of framing.
    fn advance(&mut self, byte: u8) -> Result<Place, ChunkError> {
        self.count(byte)?;
        let what = match (self.place, byte) {
            (Place::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => return self.digit(byte),
            (Place::Size, _) if self.digits == 0 => "expected the size of a chunk in hex digits",
            (Place::Size, b' ' | b'\t') => return Ok(Place::Padding),
            (Place::Padding, b' ' | b'\t') => return Ok(Place::Padding),
            (Place::Size | Place::Padding, b';') => return Ok(Place::Extension),
            (Place::Size | Place::Extension, b'\r') => return Ok(Place::SizeLineEnd),
            (Place::Size, _) => "expected a hex digit, ';' or CRLF in the size of a chunk",
            (Place::Padding, _) => "expected ';' after the size of a chunk and white space",
            (Place::Extension, _) if is_text(byte) => return Ok(Place::Extension),
            (Place::Extension, _) => "expected text or CRLF in an extension of a chunk",
            (Place::SizeLineEnd, b'\n') => return Ok(self.begin()),
            (Place::DataCr, b'\r') => return Ok(Place::DataLf),
            (Place::DataLf, b'\n') => return Ok(Place::Size),
            (Place::DataCr | Place::DataLf, _) => "expected CRLF after the data of a chunk",
            (Place::Line, b'\r') => return Ok(Place::LastLf),
            (Place::Line | Place::TrailerName, _) if is_token(byte) => {
                return Ok(Place::TrailerName);
            }
            (Place::TrailerName, b':') => return Ok(Place::TrailerValue),
            (Place::Line, _) => "expected a trailer, unfolded, or an empty line",
            (Place::TrailerName, _) => "expected ':' after the name of a trailer",
            (Place::TrailerValue, b'\r') => return Ok(Place::TrailerEnd),
            (Place::TrailerValue, _) if is_text(byte) => return Ok(Place::TrailerValue),
            (Place::TrailerValue, _) => "expected text or CRLF in the value of a trailer",
            (Place::TrailerEnd, b'\n') => return Ok(Place::Line),
            (Place::LastLf, b'\n') => return Ok(Place::Ended),
            (Place::SizeLineEnd | Place::TrailerEnd | Place::LastLf, _) => "expected LF after CR",
            (Place::Data | Place::Ended, _) => unreachable!("is no framing"),
        };
        Err(ChunkError { what, found: Some(byte) })
    }

    /// Counts one more byte of what has a limit.
    fn count(&mut self, byte: u8) -> Result<(), ChunkError> {
        let (max, what) = match self.place {
            Place::Size | Place::Padding | Place::Extension | Place::SizeLineEnd => {
                (SIZE_LINE_MAX_BYTES, "a size line longer than 256 bytes")
            }
            // The empty line is no trailer.
            Place::Line if byte == b'\r' => return Ok(()),
            Place::Line | Place::TrailerName | Place::TrailerValue | Place::TrailerEnd => {
                (TRAILERS_MAX_BYTES, "trailers longer than 8192 bytes")
            }
            _ => return Ok(()),
        };
        self.line_bytes += 1;
        if self.line_bytes > max {
            return Err(ChunkError { what, found: None });
        }
        Ok(())
    }

    fn digit(&mut self, byte: u8) -> Result<Place, ChunkError> {
        self.digits += 1;
        if self.digits > DIGITS_MAX {
            let what = "a size of a chunk longer than 16 hex digits";
            return Err(ChunkError { what, found: None });
        }
        let value = char::from(byte).to_digit(16).expect("the caller saw a hex digit");
        self.left = self.left << 4 | u64::from(value);
        Ok(Place::Size)
    }

    /// What follows a size line.
    fn begin(&mut self) -> Place {
        (self.digits, self.line_bytes) = (0, 0);
        if self.left > 0 { Place::Data } else { Place::Line }
    }
}

/// Bytes of a field value, RFC 9110 section 5.5: visible, obs-text and white space.
fn is_text(byte: u8) -> bool {
    !matches!(byte, 0..=0x08 | 0x0A..=0x1F | 0x7F)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of a body was consumed, its data, and how it ended: `More` where it was cut.
    fn decode(pieces: &[&[u8]], take_max: usize) -> (usize, Vec<u8>, Result<Step, String>) {
        let mut chunks = Chunks::new();
        let (mut consumed, mut data) = (0, Vec::new());
        for piece in pieces {
            let mut input = *piece;
            loop {
                let count = match chunks.step(input) {
                    Ok(Step::Framing(count)) => count,
                    Ok(Step::Data(count)) => {
                        assert!(count > 0 && chunks.data_left() >= count as u64);
                        let count = count.min(take_max);
                        data.extend_from_slice(&input[..count]);
                        chunks.took(count);
                        count
                    }
                    Ok(Step::More) => break,
                    Ok(Step::End) => return (consumed, data, Ok(Step::End)),
                    Err(error) => {
                        assert_eq!(chunks.step(b"0"), Err(error));
                        return (consumed, data, Err(error.to_string()));
                    }
                };
                assert!((1..=input.len()).contains(&count));
                consumed += count;
                input = &input[count..];
            }
            assert!(input.is_empty(), "more is only asked for when all was used");
        }
        let end = chunks.step(b"").expect("it did not fail before");
        (consumed, data, Ok(end))
    }

    /// The data and the end of a body, which no cut may change.
    fn decode_cut(name: &str, body: &[u8]) -> (usize, Vec<u8>, Result<Step, String>) {
        let whole = decode(&[body], usize::MAX);
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        for (other, how) in [(decode(&bytes, 1), "bytes"), (decode(&[body], 2), "taking two")] {
            assert_eq!((&other.1, &other.2), (&whole.1, &whole.2), "{name} as {how}");
            assert!(whole.2.is_err() || other.0 == whole.0, "{name} as {how}");
        }
        whole
    }

    #[test]
    fn hs5_data_is_exactly_what_the_sizes_say() {
        let ext_max = [b"1;", &[b'x'; SIZE_LINE_MAX_BYTES - 4][..], b"\r\na\r\n0\r\n\r\n"].concat();
        let trailer = [b"x:", &[b' '; TRAILERS_MAX_BYTES - 4][..], b"\r\n"].concat();
        let trailers_max = [b"0\r\n", &trailer[..], b"\r\n"].concat();
        let rows: [(&str, &[u8], &[u8]); 15] = [
            ("empty", b"0\r\n\r\n", b""),
            ("one chunk", b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
            ("two chunks", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
            ("an end inside of data", b"7\r\nA0\r\n\r\nB\r\n0\r\n\r\n", b"A0\r\n\r\nB"),
            ("upper case", b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
            ("lower case", b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
            ("leading zeros", b"0000000000000001\r\na\r\n0000000000000000\r\n\r\n", b"a"),
            ("extensions", b"1;a;b=\"c\xFF d\"\t\r\na\r\n0;e\r\n\r\n", b"a"),
            ("white space before an extension", b"1 \t; a=b\r\na\r\n0\r\n\r\n", b"a"),
            ("empty extension", b"1;\r\na\r\n0\r\n\r\n", b"a"),
            ("longest size line", &ext_max, b"a"),
            ("trailers", b"1\r\na\r\n0\r\nX-A: \xE9 b\r\ny:\r\n\r\n", b"a"),
            ("a trailer like a chunk", b"0\r\n5:\r\n\r\n", b""),
            ("longest trailers", &trailers_max, b""),
            ("data of line ends", b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
        ];
        for (name, body, data) in rows {
            let expected = (body.len(), data.to_vec(), Ok(Step::End));
            assert_eq!(decode_cut(name, body), expected, "{name}");
            let more = [body, b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(decode_cut(name, &more), expected, "{name}, and the next request");
            for end in 0..body.len() {
                assert_eq!(decode(&[&body[..end]], 9).2, Ok(Step::More), "{name} cut at {end}");
            }
        }
    }

    #[test]
    fn what_is_not_strictly_chunked_is_refused() {
        let ext = [b"1;", &[b'x'; SIZE_LINE_MAX_BYTES - 3][..], b"\r\n"].concat();
        let trailer = [b"0\r\nx:", &[b' '; TRAILERS_MAX_BYTES - 3][..], b"\r\n\r\n"].concat();
        let lines =
            [b"0\r\n", &b"a:\r\n".repeat(TRAILERS_MAX_BYTES / 4)[..], b"a:\r\n\r\n"].concat();
        let size = "expected the size of a chunk in hex digits, found";
        let digit = "expected a hex digit, ';' or CRLF in the size of a chunk, found";
        let data = "expected CRLF after the data of a chunk, found";
        let rows: [(&str, &[u8], String); 27] = [
            ("no size", b"\r\n", format!(r"{size} '\r'")),
            ("plus", b"+5\r\nhello\r\n", format!("{size} '+'")),
            ("minus", b"-5\r\nhello\r\n", format!("{size} '-'")),
            ("space before", b" 5\r\nhello\r\n", format!("{size} ' '")),
            ("no digits", b";a\r\n", format!("{size} ';'")),
            ("not ascii", b"\xFF\r\n", format!(r"{size} '\xff'")),
            ("prefix", b"0x5\r\nhello\r\n", format!("{digit} 'x'")),
            ("underscore", b"1_0\r\n", format!("{digit} '_'")),
            ("size and LF alone", b"5\nhello\r\n", format!(r"{digit} '\n'")),
            ("size and CR alone", b"5\rhello", r"expected LF after CR, found 'h'".into()),
            (
                "white space without an extension",
                b"5 \r\nhello\r\n",
                r"expected ';' after the size of a chunk and white space, found '\r'".into(),
            ),
            ("17 digits", &[b'0'; 17], "a size of a chunk longer than 16 hex digits".into()),
            (
                "control byte in an extension",
                b"1;a\0\r\n",
                r"expected text or CRLF in an extension of a chunk, found '\x00'".into(),
            ),
            (
                "LF alone after an extension",
                b"1;a\n",
                r"expected text or CRLF in an extension of a chunk, found '\n'".into(),
            ),
            ("CR alone after an extension", b"1;a\rb", "expected LF after CR, found 'b'".into()),
            ("size line too long", &ext, "a size line longer than 256 bytes".into()),
            ("data too long", b"4\r\nhello\r\n", format!("{data} 'o'")),
            ("data too short", b"6\r\nhello\r\n0\r\n", format!(r"{data} '\n'")),
            ("data and LF", b"5\r\nhello\n", format!(r"{data} '\n'")),
            ("data and CR", b"5\r\nhello\r0", format!("{data} '0'")),
            (
                "fold",
                b"0\r\nx:\r\n y\r\n\r\n",
                "expected a trailer, unfolded, or an empty line, found ' '".into(),
            ),
            (
                "trailer without a name",
                b"0\r\n: y\r\n\r\n",
                "expected a trailer, unfolded, or an empty line, found ':'".into(),
            ),
            (
                "trailer without a colon",
                b"0\r\nGET / HTTP/1.1\r\n",
                "expected ':' after the name of a trailer, found ' '".into(),
            ),
            (
                "control byte in a trailer",
                b"0\r\nx: \x7F",
                r"expected text or CRLF in the value of a trailer, found '\x7f'".into(),
            ),
            ("end and LF", b"0\r\n\rX", "expected LF after CR, found 'X'".into()),
            ("a trailer too long", &trailer, "trailers longer than 8192 bytes".into()),
            ("a trailer too many", &lines, "trailers longer than 8192 bytes".into()),
        ];
        for (name, body, expected) in rows {
            let (_, _, end) = decode_cut(name, body);
            assert_eq!(end, Err(format!("invalid chunked body: {expected}")), "{name}");
        }
    }

    #[test]
    fn the_largest_size_is_a_number() {
        let mut chunks = Chunks::new();
        assert_eq!(chunks.step(b"fFffFFFFffffffff\r\nab"), Ok(Step::Framing(18)));
        assert_eq!(chunks.data_left(), u64::MAX);
        assert_eq!(chunks.step(b"ab"), Ok(Step::Data(2)));
        chunks.took(1);
        assert_eq!((chunks.data_left(), chunks.step(b"")), (u64::MAX - 1, Ok(Step::More)));
    }

    #[test]
    #[should_panic(expected = "no more is taken than the chunk holds")]
    fn framing_is_not_taken_for_data() {
        let mut chunks = Chunks::new();
        assert_eq!(chunks.step(b"1\r\n"), Ok(Step::Framing(3)));
        chunks.took(2);
    }
}
