//! The bounded byte sink: what of a stream is kept, and how much was seen.
//!
//! [`Capture`] is the one door to kept bytes. It takes whatever it is given, always reports the
//! full length, keeps at most its cap and counts the rest, so nobody who writes into it can block,
//! fail or grow it. It has no descriptor and no `read_from`: a copy loop that found a shortcut past
//! `write` (as Go's `io.Copy` does for a buffer with `ReadFrom`) would also get past the cap.
//!
//! The loser was a ring of one shape for every policy. A head that is a plain vector costs no
//! second copy and no wrap; only the tail needs a ring.

use std::collections::TryReserveError;
use std::io::{self, Write};

use crate::spec::Keep;

/// Keeps the head, the tail, or both, of everything written to it.
///
/// ```
/// use runcap::capture::Capture;
/// use runcap::spec::Keep;
/// use std::io::Write;
///
/// let mut capture = Capture::new(4, Keep::Head)?;
/// capture.write_all(b"abcdef").unwrap();
/// assert_eq!(capture.head(), b"abcd");
/// assert_eq!((capture.received(), capture.kept(), capture.dropped()), (6, 4, 2));
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Debug)]
pub struct Capture {
    keep: Keep,
    head: Vec<u8>,
    head_cap: usize,
    tail: Vec<u8>,
    tail_cap: usize,
    /// Where the oldest byte of a full ring stands.
    tail_start: usize,
    received: u64,
}

impl Capture {
    /// A capture that keeps at most `cap` bytes; 0 keeps nothing and still counts.
    ///
    /// The whole capacity is reserved here, so that no later write allocates. Untouched pages of a
    /// large reservation cost no memory.
    ///
    /// # Errors
    /// When the allocator has no room for `cap` bytes.
    pub fn new(cap: usize, keep: Keep) -> Result<Capture, TryReserveError> {
        let tail_cap = match keep {
            Keep::Head => 0,
            Keep::Tail => cap,
            Keep::HeadTail => cap / 5,
        };
        let head_cap = cap - tail_cap;
        let mut head = Vec::new();
        head.try_reserve_exact(head_cap)?;
        let mut tail = Vec::new();
        tail.try_reserve_exact(tail_cap)?;
        Ok(Capture { keep, head, head_cap, tail, tail_cap, tail_start: 0, received: 0 })
    }

    /// Which part is kept.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// Bytes seen, kept or not.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes kept.
    pub fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Bytes seen and not kept.
    pub fn dropped(&self) -> u64 {
        self.received - self.kept() as u64
    }

    /// The first bytes of the stream.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The last bytes of the stream, oldest first, in two pieces. They follow the head directly
    /// when nothing was dropped.
    pub fn tail(&self) -> (&[u8], &[u8]) {
        let (newer, older) = self.tail.split_at(self.tail_start);
        (older, newer)
    }

    /// Bytes that can still change what is kept: `None` is any number of them (a tail), `Some(0)`
    /// says that everything to come is only counted.
    pub fn room(&self) -> Option<usize> {
        (self.tail_cap == 0).then(|| self.head_cap - self.head.len())
    }

    /// Keeps what it has and only counts from now on, as if its cap had been that. Only a capture
    /// of the head can: a tail is the stream's last bytes or nothing.
    ///
    /// # Panics
    /// When a tail is kept.
    pub fn stop_keeping(&mut self) {
        assert_eq!(self.tail_cap, 0, "only a head can stop");
        self.head_cap = self.head.len();
    }

    /// Counts `count` bytes that were thrown away before they got here.
    ///
    /// Call it only when [`Capture::room`] is `Some(0)`: a tail would no longer be the stream's.
    pub fn discard(&mut self, count: u64) {
        debug_assert_eq!(self.room(), Some(0), "bytes that would be kept cannot be discarded");
        self.received = self.received.saturating_add(count);
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.tail_cap)..];
        let growth = bytes.len().min(self.tail_cap - self.tail.len());
        let (grow, wrap) = bytes.split_at(growth);
        self.tail.extend_from_slice(grow);
        if wrap.is_empty() {
            return;
        }
        let until_end = wrap.len().min(self.tail_cap - self.tail_start);
        let (first, second) = wrap.split_at(until_end);
        self.tail[self.tail_start..self.tail_start + first.len()].copy_from_slice(first);
        self.tail[..second.len()].copy_from_slice(second);
        self.tail_start = (self.tail_start + wrap.len()) % self.tail_cap;
    }
}

impl Write for Capture {
    /// Takes all of `bytes`; never fails, never blocks, never grows past the cap.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received = self.received.saturating_add(bytes.len() as u64);
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_cap - self.head.len()));
        self.head.extend_from_slice(head);
        if self.tail_cap > 0 && !rest.is_empty() {
            self.push_tail(rest);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(capture: &Capture) -> Vec<u8> {
        let (older, newer) = capture.tail();
        [capture.head(), older, newer].concat()
    }

    /// Every policy, cap and chunking of small streams against slices of the whole.
    #[test]
    fn oc6_kept_and_dropped_add_up_at_every_boundary() {
        let stream: Vec<u8> = (0..=250).collect();
        for keep in [Keep::Head, Keep::Tail, Keep::HeadTail] {
            for cap in [0, 1, 2, 3, 4, 5, 9, 10, 100] {
                for len in [cap.max(1) - 1, cap, cap + 1, 2 * cap, 2 * cap + 1] {
                    for chunk in [1, 2, 3, 7, 250] {
                        let mut capture = Capture::new(cap, keep).unwrap();
                        for piece in stream[..len].chunks(chunk) {
                            assert_eq!(capture.write(piece).unwrap(), piece.len());
                        }
                        check(&capture, &stream[..len], cap, keep);
                    }
                }
            }
        }
    }

    fn check(capture: &Capture, stream: &[u8], cap: usize, keep: Keep) {
        let tail_cap = match keep {
            Keep::Head => 0,
            Keep::Tail => cap,
            Keep::HeadTail => cap / 5,
        };
        let head = &stream[..stream.len().min(cap - tail_cap)];
        let rest = &stream[head.len()..];
        let tail = &rest[rest.len().saturating_sub(tail_cap)..];
        assert_eq!(text(capture), [head, tail].concat(), "cap {cap} keep {keep:?}");
        assert_eq!(capture.received(), stream.len() as u64);
        assert_eq!(capture.dropped(), stream.len().saturating_sub(cap) as u64);
        assert_eq!(capture.head(), head);
    }

    #[test]
    fn a_full_head_only_counts_what_is_discarded() {
        let mut capture = Capture::new(3, Keep::Head).unwrap();
        assert_eq!(capture.room(), Some(3));
        capture.write_all(b"abcd").unwrap();
        assert_eq!(capture.room(), Some(0));
        capture.discard(u64::MAX);
        assert_eq!((capture.received(), capture.kept()), (u64::MAX, 3));
    }

    #[test]
    fn oc10_a_cap_no_allocator_has_room_for_is_an_error() {
        assert!(Capture::new(usize::MAX / 2, Keep::Head).is_err());
        assert!(Capture::new(usize::MAX, Keep::Tail).is_err());
    }
}
