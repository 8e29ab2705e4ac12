//! Memory that commands and requests share: a fixed number of bytes, given out and taken back.
//!
//! Nobody waits for a share: who gets none goes on with what is free of charge, and says so.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::capture::Capture;
use crate::run::Sink;

/// Bytes of a stream that are kept without asking.
pub const FREE_BYTES: usize = 64 << 10;

/// Bytes that are still to be had.
#[derive(Debug)]
pub struct Budget(AtomicU64);

/// Bytes of a budget; dropped, they go back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: u64) -> Arc<Budget> {
        Arc::new(Budget(AtomicU64::new(bytes)))
    }

    /// Takes so many bytes, or none.
    pub fn take(self: &Arc<Budget>, bytes: u64) -> Option<Share> {
        let rest = |left: u64| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()?;
        Some(Share { budget: Arc::clone(self), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Keeps the head of a stream: its first [`FREE_BYTES`], and as soon as it passes them all of its
/// cap, if the budget has that much. Refused, it stays at what it has, and only counts.
#[derive(Debug)]
pub struct BudgetedCapture {
    capture: Capture,
    cap: usize,
    budget: Arc<Budget>,
    asked: Asked,
}

#[derive(Debug)]
enum Asked {
    NotYet,
    Granted(#[expect(dead_code, reason = "it is held")] Share),
    Refused,
}

impl BudgetedCapture {
    /// A capture that keeps at most `cap` bytes.
    ///
    /// # Errors
    /// When the allocator has no room for `cap` bytes.
    pub fn new(cap: usize, budget: &Arc<Budget>) -> io::Result<BudgetedCapture> {
        let capture = Capture::new(cap, crate::spec::Keep::Head)?;
        Ok(BudgetedCapture { capture, cap, budget: Arc::clone(budget), asked: Asked::NotYet })
    }

    /// What was kept.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// Whether the budget, and not its cap, decided how much was kept.
    pub fn is_refused(&self) -> bool {
        matches!(self.asked, Asked::Refused)
    }

    /// Bytes that are free of charge and not used.
    fn free(&self) -> usize {
        FREE_BYTES.min(self.cap).saturating_sub(self.capture.kept())
    }
}

impl Write for BudgetedCapture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = self.free();
        let is_capped = self.cap <= FREE_BYTES;
        if matches!(self.asked, Asked::NotYet) && bytes.len() > free && !is_capped {
            self.asked = match self.budget.take((self.cap - FREE_BYTES) as u64) {
                Some(share) => Asked::Granted(share),
                None => {
                    self.capture.write_all(&bytes[..free])?;
                    self.capture.stop_keeping();
                    self.capture.write_all(&bytes[free..])?;
                    self.asked = Asked::Refused;
                    return Ok(bytes.len());
                }
            };
        }
        self.capture.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for BudgetedCapture {
    fn room(&self) -> Option<usize> {
        self.capture.room()
    }

    fn discard(&mut self, count: u64) {
        self.capture.discard(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: usize = 1 << 20;

    fn written(budget: &Arc<Budget>, cap: usize, pieces: &[usize]) -> (usize, u64, bool) {
        let mut capture = BudgetedCapture::new(cap, budget).unwrap();
        for piece in pieces {
            capture.write_all(&vec![b'x'; *piece]).unwrap();
        }
        let kept = capture.capture().kept();
        (kept, capture.capture().received(), capture.is_refused())
    }

    #[test]
    fn a_stream_asks_once_and_stays_at_what_it_has() {
        let (free, rest) = (FREE_BYTES, (CAP - FREE_BYTES) as u64);
        let rows: [(&str, u64, usize, &[usize], _); 8] = [
            ("small, no budget", 0, CAP, &[100], (100, 100, false)),
            ("all that is free", 0, CAP, &[free - 1, 1], (free, free as u64, false)),
            ("one more, refused", 0, CAP, &[free, 1], (free, free as u64 + 1, true)),
            ("in one piece, refused", rest - 1, CAP, &[CAP], (free, CAP as u64, true)),
            ("in pieces, refused", 0, CAP, &[free - 3, 7, 9], (free, free as u64 + 13, true)),
            ("granted", rest, CAP, &[CAP / 2, CAP / 2], (CAP, CAP as u64, false)),
            ("granted and passed", rest, CAP, &[CAP, 5], (CAP, CAP as u64 + 5, false)),
            ("a small cap asks for nothing", 0, 10, &[20], (10, 20, false)),
        ];
        for (name, bytes, cap, pieces, expected) in rows {
            let budget = Budget::new(bytes);
            assert_eq!(written(&budget, cap, pieces), expected, "{name}");
            assert!(budget.take(bytes).is_some(), "{name}: all of it came back");
        }
    }
}
