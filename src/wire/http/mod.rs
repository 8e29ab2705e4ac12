//! HTTP/1.1 (RFC 9112), bytes to types and back.

pub mod head;
pub mod target;
