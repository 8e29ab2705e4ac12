//! Answers in the shape of the dialect that was spoken.

use tiny_http::{Header, Response, ResponseBox, StatusCode};

use crate::wire::json_string::write_string;

/// Which API a path belongs to, and so what its errors look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// PicoD's: `/api/*`, `/health`, and whatever no other claims.
    Picod,
    /// Hugging Face's sandbox-server: `/v1/*`.
    Sandbox,
}

impl Dialect {
    /// The dialect of a path as it was sent.
    pub fn of(path: &str) -> Dialect {
        match path == "/v1" || path.starts_with("/v1/") {
            true => Dialect::Sandbox,
            false => Dialect::Picod,
        }
    }
}

/// A JSON answer; `text` is JSON already.
pub fn json(status: u16, text: String) -> ResponseBox {
    json_bytes(status, text.into_bytes())
}

/// A JSON answer of bytes that are JSON already.
pub fn json_bytes(status: u16, text: Vec<u8>) -> ResponseBox {
    with_type(status, "application/json", text)
}

/// A plain text answer.
pub fn text(status: u16, text: &str) -> ResponseBox {
    with_type(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
}

fn with_type(status: u16, content_type: &str, text: Vec<u8>) -> ResponseBox {
    Response::from_data(text)
        .with_status_code(StatusCode(status))
        .with_header(header("Content-Type", content_type))
        .boxed()
}

/// A header that the program itself spells.
///
/// # Panics
/// When it is not ASCII.
pub fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("the program's own headers are ASCII")
}

/// An error in the shape of `dialect`.
pub fn error(dialect: Dialect, status: u16, message: &str) -> ResponseBox {
    let code = match dialect {
        Dialect::Picod => format!(",\"code\":{status}"),
        Dialect::Sandbox => String::new(),
    };
    json(status, format!("{{\"error\":{}{code}}}", string(message)))
}

/// PicoD's 401, the one error that has a second sentence beside its code.
pub fn unauthorized(message: &str, detail: &str) -> ResponseBox {
    let (message, detail) = (string(message), string(detail));
    json(401, format!("{{\"error\":{message},\"code\":401,\"detail\":{detail}}}"))
}

/// PicoD's 413, which has a second sentence in place of its code.
pub fn too_large(max_bytes: u64) -> ResponseBox {
    let detail = format!("maximum allowed size is {max_bytes} bytes");
    json(413, format!("{{\"error\":\"request body too large\",\"detail\":{}}}", string(&detail)))
}

/// `text` as a JSON string.
pub fn string(text: &str) -> String {
    let mut json = Vec::new();
    write_string(&mut json, text).expect("a vector takes everything");
    String::from_utf8(json).expect("JSON is text")
}
