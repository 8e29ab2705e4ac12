//! Which ranges of a file are moved, so that every byte is moved exactly once?

use std::num::NonZeroU64;

/// One range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Bytes before it.
    pub offset: u64,
    /// Bytes in it, at least one.
    pub length: u64,
    /// On the range that ends the file, and on no other: the file's size in bytes. Whoever writes
    /// this range cuts the file there, so that a longer old file leaves no tail.
    pub total: Option<u64>,
}

/// The ranges of one file in order; see [`ranges`].
#[derive(Debug, Clone)]
pub struct Ranges {
    offset: u64,
    size: u64,
    chunk: NonZeroU64,
}

/// Cuts a file of `size` bytes into ranges of `chunk` bytes, of which the last may be shorter.
///
/// There is none in an empty file: it is moved as a whole, which for a write means without an
/// offset. One empty range was the loser: it would be written into the old file, where a whole
/// file replaces it.
pub fn ranges(size: u64, chunk: NonZeroU64) -> Ranges {
    Ranges { offset: 0, size, chunk }
}

impl Iterator for Ranges {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        let left = self.size - self.offset;
        if left == 0 {
            return None;
        }
        let length = self.chunk.get().min(left);
        let range =
            Range { offset: self.offset, length, total: (length == left).then_some(self.size) };
        self.offset += length;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(size: u64, chunk: u64) -> Ranges {
        ranges(size, NonZeroU64::new(chunk).expect("the test says more than zero"))
    }

    #[test]
    fn ranges_are_as_long_as_a_chunk_but_for_the_last() {
        let rows = [
            ("empty", 0, 4, &[][..]),
            ("one byte", 1, 4, &[(0, 1)]),
            ("one chunk", 4, 4, &[(0, 4)]),
            ("one more", 5, 4, &[(0, 4), (4, 1)]),
            ("two chunks", 8, 4, &[(0, 4), (4, 4)]),
            ("bytes", 3, 1, &[(0, 1), (1, 1), (2, 1)]),
            ("largest at once", u64::MAX, u64::MAX, &[(0, u64::MAX)]),
            ("largest in two", u64::MAX, 1 << 63, &[(0, 1 << 63), (1 << 63, (1 << 63) - 1)]),
        ];
        for (name, size, chunk, expected) in rows {
            let found: Vec<_> =
                cut(size, chunk).map(|range| (range.offset, range.length)).collect();
            assert_eq!(found, expected, "{name}");
            let last = cut(size, chunk).last().and_then(|range| range.total);
            assert_eq!(last, (size > 0).then_some(size), "{name}");
        }
    }

    /// Random sizes and chunks of all magnitudes: the ranges are a partition of the file in order.
    #[test]
    fn every_byte_is_in_exactly_one_range_and_only_the_last_says_the_size() {
        // xorshift64: the same numbers each time, so that a failure comes again.
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..10_000 {
            let size = random() >> (random() % 64);
            let count_max = 1 + random() % 64;
            // At least as long as keeps the count small, and sometimes longer than the file.
            let chunk = (size / count_max).saturating_add(1 + random() % 3).max(1);
            let mut end = 0;
            let mut found = cut(size, chunk).peekable();
            while let Some(range) = found.next() {
                let name = format!("{size} in {chunk}: {range:?}");
                assert_eq!(range.offset, end, "{name}");
                assert!((1..=chunk).contains(&range.length), "{name}");
                let is_last = found.peek().is_none();
                assert!(is_last || range.length == chunk, "{name}");
                assert_eq!(range.total, is_last.then_some(size), "{name}");
                end += range.length;
            }
            assert_eq!(end, size, "{size} in {chunk}");
        }
    }
}
