//! One live event: a JSON object on a line of its own.

use std::io::{self, Write};

use crate::outcome::Stream;
use crate::wire::base64;
use crate::wire::json_string::write_escaped;
use crate::wire::text::Decoder;

/// Writes `{"event":"start","pid":…}`: the first event of a command.
///
/// # Errors
/// As the writer.
pub fn write_start(out: &mut dyn Write, pid: u32) -> io::Result<()> {
    writeln!(out, r#"{{"event":"start","pid":{pid}}}"#)
}

/// Writes `{"event":"ping"}`: nothing happened for a while, the connection lives.
///
/// # Errors
/// As the writer.
pub fn write_ping(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"event\":\"ping\"}\n")
}

/// Writes that what `stream` gives from here on is counted and not sent.
///
/// # Errors
/// As the writer.
pub fn write_truncated(out: &mut dyn Write, stream: Stream) -> io::Result<()> {
    writeln!(out, r#"{{"event":"truncated","stream":"{}"}}"#, stream.name())
}

/// Writes bytes of `stream` as text in `data`. The decoder holds what is no whole character yet;
/// where that is all there is, nothing is written. `last` says that nothing follows.
///
/// # Errors
/// As the writer.
pub fn write_text(
    out: &mut dyn Write,
    stream: Stream,
    decoder: &mut Decoder,
    bytes: &[u8],
    last: bool,
) -> io::Result<()> {
    let mut begun = false;
    let mut emit = |text: &str| {
        if !std::mem::replace(&mut begun, true) {
            write!(out, r#"{{"event":"{}","data":""#, stream.name())?;
        }
        write_escaped(out, text)
    };
    decoder.feed(bytes, &mut emit)?;
    if last {
        decoder.finish(&mut emit)?;
    }
    if begun { out.write_all(b"\"}\n") } else { Ok(()) }
}

/// Writes bytes of `stream` exactly, in `data_base64`.
///
/// # Errors
/// As the writer.
pub fn write_base64(out: &mut dyn Write, stream: Stream, bytes: &[u8]) -> io::Result<()> {
    write!(out, r#"{{"event":"{}","data_base64":""#, stream.name())?;
    let mut encoder = base64::Encoder::new();
    encoder.feed(bytes, out)?;
    encoder.finish(out)?;
    out.write_all(b"\"}\n")
}
