//! Bytes to types and back, pure: nothing in here reads or writes a descriptor of its own.

mod arguments;
pub mod base64;
pub mod event;
mod fields;
pub mod http;
pub mod json_string;
mod kinds;
pub mod native;
pub mod picod;
pub mod sandbox;
pub mod size;
mod syntax;
pub mod text;
pub mod time;
mod value;
