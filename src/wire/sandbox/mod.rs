//! The sandbox dialect (Hugging Face's sandbox-server, protocol 3): the bodies of `/v1/*`.

pub mod files;
