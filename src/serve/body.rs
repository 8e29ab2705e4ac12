//! Bodies that are held: a request that must be there as a whole before it can be read.

use std::io::{self, Read};

use super::State;
use super::budget::Share;
use super::transport::Head;
use crate::sys::alloc::BUFFER_BYTES;

/// Bytes of a body that are held free of charge, and by which a longer one asks for more.
const STEP_BYTES: u64 = 64 << 10;

/// A whole body, and the memory that it was given.
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    shares: Vec<Share>,
}

impl Held {
    /// Lets go of the bytes, and keeps the memory for what was made of them.
    pub(super) fn into_shares(self) -> Vec<Share> {
        self.shares
    }
}

/// What is said, with 503, when a body cannot be held.
pub(super) const NO_MEMORY: &str = "no memory to hold another body of this size now";

/// Bodies that are poured through a large buffer at once; others get a small one.
pub(super) const LARGE_BUFFERS_MAX: usize = 48;

/// Bytes of a small buffer.
const SMALL_BUFFER_BYTES: usize = 8 << 10;

/// Why a body was not poured to its end.
pub(super) enum Unpoured<E> {
    /// It broke off, or was too long or too slow: no answer of a handler is sent.
    Body(io::Error),
    /// Where it goes did not take it.
    Taker(E),
}

/// Gives a body to `take`, piece by piece, to its end.
pub(super) fn pour<E>(
    state: &State,
    body: &mut dyn Read,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), Unpoured<E>> {
    let place = state.large_buffers.take(LARGE_BUFFERS_MAX);
    let mut buffer = vec![0; if place.is_some() { BUFFER_BYTES } else { SMALL_BUFFER_BYTES }];
    let mut have = 0;
    loop {
        let count = body.read(&mut buffer[have..]).map_err(Unpoured::Body)?;
        have += count;
        // Pieces of whole pages, wherever the first read ended: a file takes those faster.
        if count == 0 || have == buffer.len() {
            take(&buffer[..have]).map_err(Unpoured::Taker)?;
            have = 0;
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// Reads a body to its end; `None` when there is no memory for it. How long it may be is the
/// transport's to enforce, and what is made of a body that failed is never sent; how many long ones
/// are held at once is decided here.
pub(super) fn read_whole(state: &State, head: &Head<'_>, body: &mut dyn Read) -> Option<Held> {
    let mut held = Held { bytes: Vec::new(), shares: Vec::new() };
    let first = head.length.unwrap_or(STEP_BYTES).min(STEP_BYTES);
    held.bytes.reserve_exact(usize::try_from(first).expect("a small number"));
    let mut step = STEP_BYTES;
    loop {
        let before = held.bytes.len();
        let read = body.take(step).read_to_end(&mut held.bytes);
        if read.is_err() || ((held.bytes.len() - before) as u64) < step {
            return Some(held);
        }
        // As much again as there is, so that few shares do.
        step = held.bytes.len() as u64;
        // Decoded it is there once more for a moment.
        held.shares.push(state.body_budget.take(2 * step)?);
    }
}
