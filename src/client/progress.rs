//! How far a transfer has come, for a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_millis(200);

/// Counts bytes, and says so on stderr while that is a terminal.
#[derive(Debug)]
pub struct Progress {
    bytes: AtomicU64,
    /// Of the whole; none where nobody knows.
    total: Option<u64>,
    start: Instant,
    is_shown: bool,
    last: Mutex<Option<Instant>>,
}

impl Progress {
    /// Of `total` bytes, if that is known; silent where it is not wanted or nobody could see it.
    pub fn new(total: Option<u64>, is_wanted: bool) -> Progress {
        let is_shown = is_wanted && io::stderr().is_terminal();
        let (bytes, start) = (AtomicU64::new(0), Instant::now());
        Progress { bytes, total, start, is_shown, last: Mutex::new(None) }
    }

    /// So many more were moved.
    pub fn add(&self, bytes: u64) {
        let sum = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if !self.is_shown {
            return;
        }
        // Whoever else is writing a line says as much.
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            *last = Some(Instant::now());
            self.line(sum);
        }
    }

    /// Bytes that were moved.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn line(&self, sum: u64) {
        const MIB: f64 = (1 << 20) as f64;
        let seconds = self.start.elapsed().as_secs_f64().max(0.001);
        let (moved, rate) = (sum as f64 / MIB, sum as f64 / MIB / seconds);
        let of = self.total.map(|total| format!(" of {:.1}", total as f64 / MIB));
        let of = of.unwrap_or_default();
        // Nobody may be there to read it.
        let _ = write!(io::stderr(), "\r\x1b[K{moved:.1}{of} MiB, {rate:.1} MiB/s");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            self.line(self.bytes());
            let _ = writeln!(io::stderr());
        }
    }
}
