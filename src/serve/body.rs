//! Bodies that are held: a request that must be there as a whole before it can be read.

use std::io::Read;

use super::State;
use super::budget::Share;
use super::transport::Head;

/// Bytes of a body that are held free of charge, and by which a longer one asks for more.
const STEP_BYTES: u64 = 64 << 10;

/// A whole body, and the memory that it was given.
pub(super) struct Held<'a> {
    pub(super) bytes: Vec<u8>,
    _shares: Vec<Share<'a>>,
}

/// What is said, with 503, when a body cannot be held.
pub(super) const NO_MEMORY: &str = "no memory to hold another body of this size now";

/// Reads a body to its end; `None` when there is no memory for it. How long it may be is the
/// transport's to enforce, and what is made of a body that failed is never sent; how many long ones
/// are held at once is decided here.
pub(super) fn read_whole<'a>(
    state: &'a State,
    head: &Head<'_>,
    body: &mut dyn Read,
) -> Option<Held<'a>> {
    let mut held = Held { bytes: Vec::new(), _shares: Vec::new() };
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
        held._shares.push(state.body_budget.take(2 * step)?);
    }
}
