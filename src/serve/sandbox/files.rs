//! The sandbox dialect's files, but for lists.

use std::io::Read;

use tiny_http::ResponseBox;

use super::Refusal;
use crate::serve::State;
use crate::serve::transport::Head;

/// GET /v1/files/read: sends a file or a range of it.
pub(in crate::serve) fn read(_state: &State, _head: &Head<'_>) -> ResponseBox {
    Refusal::new(404, "").answer()
}

/// PUT /v1/files/write: stores a file, or a range of one.
pub(in crate::serve) fn write(_: &State, _: &Head<'_>, _: &mut dyn Read) -> ResponseBox {
    Refusal::new(404, "").answer()
}

/// GET /v1/files/stat: says what stands at a path.
pub(in crate::serve) fn stat(_state: &State, _head: &Head<'_>) -> ResponseBox {
    Refusal::new(404, "").answer()
}

/// DELETE /v1/files/delete: removes what stands at a path.
pub(in crate::serve) fn delete(_state: &State, _head: &Head<'_>) -> ResponseBox {
    Refusal::new(404, "").answer()
}

/// POST /v1/files/mkdir: makes a directory and its parents.
pub(in crate::serve) fn make_directory(_state: &State, _head: &Head<'_>) -> ResponseBox {
    Refusal::new(404, "").answer()
}
