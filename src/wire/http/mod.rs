//! HTTP/1.1 as bytes: what a head says, and what frames the body behind it.

pub mod chunks;
pub mod head;
pub mod multipart;
mod parameters;
mod part;
pub mod response;
pub mod target;
