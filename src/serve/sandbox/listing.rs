//! The sandbox dialect's lists: a page of a directory.

use super::Refusal;
use crate::serve::State;
use crate::serve::transport::{Head, Reply};

/// GET /v1/files/list: tells what is in a directory, a page at a time.
pub(in crate::serve) fn list<'a>(_state: &'a State, _head: &Head<'_>) -> Reply<'a> {
    Refusal::new(404, "").answer().into()
}
