//! What there is a fixed number of over all connections.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many of one kind are taken.
#[derive(Debug, Default)]
pub(in crate::serve) struct Places(AtomicUsize);

/// One of them; dropped, it is free again.
#[derive(Debug)]
pub(in crate::serve) struct Place<'a>(&'a Places);

impl Places {
    /// Takes one, unless `max` are taken.
    pub(in crate::serve) fn take(&self, max: usize) -> Option<Place<'_>> {
        let more = |taken| (taken < max).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place(self))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
