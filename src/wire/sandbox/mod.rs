//! The sandbox dialect (Hugging Face's sandbox-server, protocol 3): the bodies of `/v1/*`.
//!
//! [`exec`] is a command to run, [`process`] what is told of one, [`files`] what is told of files;
//! [`client`] is the other side of all three, and [`ranges`] how a file is cut to be moved.
//! As in that server, an optional field of a wrong type is ignored, like one that nobody knows.

pub mod client;
pub mod exec;
pub mod files;
pub mod process;
pub mod ranges;
