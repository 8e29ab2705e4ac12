//! Bytes to types and back, pure: nothing in here reads or writes a descriptor of its own.

pub mod base64;
pub mod http;
pub mod json_string;
pub mod native;
pub mod size;
pub mod text;
pub mod time;
