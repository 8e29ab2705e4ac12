//! The native dialect: JSON requests in, JSON answers and events out.
//!
//! [`frame`] finds one value in a stream of bytes, [`request`] decodes it into a `Spec` and what
//! the answer needs, [`response`] writes the answer, [`event`](super::event) one live event.

mod fields;
pub mod frame;
pub mod request;
pub mod response;

/// Deepest nesting of a request; serde_json's own limit is the same.
pub const DEPTH_MAX: usize = 127;
