//! How do bytes become text, however they are cut?

use std::io;

/// Bytes validated at a time: large enough that the cost of a call vanishes, small enough that the
/// block is still in the cache when what is emitted is read again.
const BLOCK_BYTES: usize = 16 * 1024;

/// What stands for bytes that are not UTF-8, repeated so that a run of them is few calls.
const REPLACEMENTS: &str = "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}";
const REPLACEMENT_BYTES: usize = 3;

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
        Self { held: [0; 3], held_bytes: 0, replaced: false }
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
    bytes.take(3).take_while(|byte| matches!(byte, 0x80..=0xBF)).count()
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
}
