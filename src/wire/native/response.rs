//! The native answer: written straight to its destination, never built in memory.

use std::io::{self, Write};
use std::time::Duration;

use crate::capture::Capture;
use crate::outcome::{Cancel, End, Exit, Outcome, Stage, StartError, Stream, signal_name};
use crate::spec::{Keep, Spec};
use crate::wire::base64;
use crate::wire::json_string::{write_escaped, write_string};
use crate::wire::text::{Decoder, continuation_prefix, incomplete_suffix};
use crate::wire::time::{HumanDuration, Rfc3339, Seconds};

use super::request::{Encoding, Refusal};

/// What an answer says of one stream, beyond what the outcome says.
pub enum Output<'a> {
    /// What was kept of it.
    Kept(&'a Capture),
    /// It was sent as it came, or only counted.
    Sent {
        /// Bytes received.
        received: u64,
        /// Bytes of those that were sent.
        sent: u64,
        /// Whether U+FFFD was sent in place of bytes that were not UTF-8.
        replaced: bool,
    },
}

/// Everything that an answer is written from.
pub struct Answer<'a> {
    /// What was run.
    pub spec: &'a Spec,
    /// How it ended.
    pub outcome: &'a Outcome,
    /// Standard output.
    pub stdout: Output<'a>,
    /// Standard error.
    pub stderr: Output<'a>,
    /// How kept bytes are written.
    pub encoding: Encoding,
    /// Bytes a stream to which the cap was lowered.
    pub cap_lowered_to: Option<usize>,
    /// The request's tag.
    pub tag: Option<&'a str>,
    /// The answer is the last event of a live stream.
    pub event: bool,
}

/// Writes the answer of a command that was started, one line.
///
/// # Errors
/// As the writer.
pub fn write_answer(out: &mut dyn Write, answer: &Answer<'_>) -> io::Result<()> {
    let Answer { spec, outcome, .. } = answer;
    begin(out, answer.event, outcome.status_name())?;
    match (outcome.end, outcome.leader) {
        (End::Finished, Some(Exit::Code(code))) => write!(out, r#","exit_code":{code}"#)?,
        _ => out.write_all(br#","exit_code":null"#)?,
    }
    if let Some(Exit::Signal(signal)) = outcome.leader {
        write!(out, r#","signal":{signal},"signal_name":"{}""#, signal_name(signal))?;
    }
    if let Some(reason) = reason(spec, outcome) {
        out.write_all(br#","reason":"#)?;
        write_string(out, &reason)?;
    }
    write_output(out, Stream::Stdout, &answer.stdout, outcome.stdout_incomplete, answer.encoding)?;
    write_output(out, Stream::Stderr, &answer.stderr, outcome.stderr_incomplete, answer.encoding)?;
    if outcome.left_running {
        out.write_all(br#","left_running":true"#)?;
    }
    if outcome.killed_processes > 0 {
        write!(out, r#","killed_processes":{}"#, outcome.killed_processes)?;
    }
    if let Some(cap) = answer.cap_lowered_to {
        write!(out, r#","cap_lowered_to":{cap}"#)?;
    }
    let end_time = outcome.start_time.checked_add(outcome.duration).unwrap_or(outcome.start_time);
    write!(
        out,
        r#","start_time":"{}","end_time":"{}","duration":{},"cpu_seconds":{},"max_rss_bytes":{}"#,
        Rfc3339(outcome.start_time),
        Rfc3339(end_time),
        Seconds(outcome.duration),
        Seconds(outcome.cpu),
        outcome.max_rss_bytes,
    )?;
    end(out, answer.tag)
}

/// Writes the answer of a command that could not be started, one line.
///
/// # Errors
/// As the writer.
pub fn write_start_error(
    out: &mut dyn Write,
    error: &StartError,
    encoding: Encoding,
    tag: Option<&str>,
    event: bool,
) -> io::Result<()> {
    begin(out, event, "failed_to_start")?;
    let code = match error.stage {
        Stage::Cwd => "bad_cwd",
        Stage::NotFound => "not_found",
        Stage::NotExecutable | Stage::Interpreter => "not_executable",
        Stage::Arguments | Stage::Resources => "spawn_failed",
    };
    write_nothing(out, encoding)?;
    write!(out, r#","error":{{"code":"{code}","message":"#)?;
    write_string(out, &error.to_string())?;
    out.write_all(b"}")?;
    end(out, tag)
}

/// Writes the answer of a request that was refused, one line.
///
/// # Errors
/// As the writer.
pub fn write_refusal(out: &mut dyn Write, refusal: &Refusal) -> io::Result<()> {
    begin(out, false, "bad_request")?;
    write_nothing(out, Encoding::Utf8)?;
    write!(out, r#","error":{{"code":"{}","message":"#, refusal.code)?;
    write_string(out, &refusal.message)?;
    if let Some(field) = &refusal.field {
        out.write_all(br#","field":"#)?;
        write_string(out, field)?;
    }
    if let Some(offset) = refusal.offset {
        write!(out, r#","offset":{offset}"#)?;
    }
    out.write_all(b"}")?;
    end(out, refusal.tag.as_deref())
}

fn begin(out: &mut dyn Write, event: bool, status: &str) -> io::Result<()> {
    let event = if event { r#""event":"exit","# } else { "" };
    write!(out, r#"{{{event}"status":"{status}""#)
}

fn end(out: &mut dyn Write, tag: Option<&str>) -> io::Result<()> {
    if let Some(tag) = tag {
        out.write_all(br#","tag":"#)?;
        write_string(out, tag)?;
    }
    out.write_all(b"}\n")
}

/// What stands where there is no outcome: a client may rely on these keys.
fn write_nothing(out: &mut dyn Write, encoding: Encoding) -> io::Result<()> {
    let suffix = suffix(encoding);
    out.write_all(br#","exit_code":null"#)?;
    write!(out, r#","stdout{suffix}":"","stdout_bytes":0"#)?;
    write!(out, r#","stderr{suffix}":"","stderr_bytes":0"#)
}

fn suffix(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Utf8 => "",
        Encoding::Base64 => "_base64",
    }
}

/// Why a command did not end by itself, in one sentence that names the field and the value that
/// decided; `None` when it did.
pub fn reason(spec: &Spec, outcome: &Outcome) -> Option<String> {
    let mut reason = match outcome.end {
        End::Finished => return None,
        End::TimedOut => {
            let timeout = HumanDuration(spec.timeout.unwrap_or(Duration::MAX));
            format!("the command was still running at its timeout of {timeout}")
        }
        End::OutputLimit(stream) => {
            let limit = if stream == Stream::Stdout { spec.stdout } else { spec.stderr };
            let (name, cap) = (stream.name(), limit.cap);
            format!("{name} went past its max_output_size of {cap} bytes with overflow stop")
        }
        End::Canceled(Cancel::ReaderGone) => "the reader of the answer is gone".to_owned(),
        End::Canceled(Cancel::Requested) => "runcap was told to stop".to_owned(),
    };
    if outcome.leader.is_none() {
        reason.push_str("; it could not be killed");
    } else if outcome.left_running {
        reason.push_str("; a process of it could not be killed");
    }
    Some(reason)
}

/// Writes the keys of one stream.
fn write_output(
    out: &mut dyn Write,
    stream: Stream,
    output: &Output<'_>,
    incomplete: bool,
    encoding: Encoding,
) -> io::Result<()> {
    let name = stream.name();
    let shown = Shown::new(output, encoding);
    write!(out, r#","{name}_bytes":{}"#, shown.received)?;
    if shown.dropped > 0 {
        let Shown { dropped, gap_at, .. } = shown;
        write!(out, r#","{name}_truncated":true,"{name}_dropped_bytes":{dropped}"#)?;
        write!(out, r#","{name}_gap_at":{gap_at}"#)?;
    }
    if incomplete {
        write!(out, r#","{name}_incomplete":true"#)?;
    }
    write!(out, r#","{name}{}":""#, suffix(encoding))?;
    let replaced = match encoding {
        Encoding::Utf8 => shown.write_text(out)?,
        Encoding::Base64 => shown.write_base64(out)?,
    };
    out.write_all(b"\"")?;
    if replaced {
        write!(out, r#","{name}_replaced":true"#)?;
    }
    Ok(())
}

/// What of a stream stands in the answer.
struct Shown<'a> {
    received: u64,
    dropped: u64,
    gap_at: u64,
    /// Before the gap.
    head: &'a [u8],
    /// After it, in two pieces.
    tail: [&'a [u8]; 2],
    /// Whether the gap is marked in the text.
    marked: bool,
    replaced: bool,
}

impl<'a> Shown<'a> {
    fn new(output: &Output<'a>, encoding: Encoding) -> Shown<'a> {
        let capture = match output {
            Output::Kept(capture) => capture,
            Output::Sent { received, sent, replaced } => {
                return Shown {
                    received: *received,
                    dropped: received - sent,
                    gap_at: *sent,
                    head: &[],
                    tail: [&[], &[]],
                    marked: false,
                    replaced: *replaced,
                };
            }
        };
        let (mut head, mut tail) = (capture.head(), <[_; 2]>::from(capture.tail()));
        let mut dropped = capture.dropped();
        if dropped > 0 && encoding == Encoding::Utf8 {
            // A character that the gap cut is left out and counted as dropped, never replaced.
            let cut = incomplete_suffix(head);
            head = &head[..head.len() - cut];
            let torn = continuation_prefix(tail.iter().flat_map(|piece| piece.iter().copied()));
            let first = torn.min(tail[0].len());
            tail = [&tail[0][first..], &tail[1][torn - first..]];
            dropped += (cut + torn) as u64;
        }
        Shown {
            received: capture.received(),
            dropped,
            gap_at: head.len() as u64,
            head,
            tail,
            marked: dropped > 0 && capture.keep() == Keep::HeadTail,
            replaced: false,
        }
    }

    /// Writes the text; true when U+FFFD stands for bytes that were not UTF-8.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<bool> {
        let mut decoder = Decoder::new();
        let mut emit = |text: &str| write_escaped(out, text);
        decoder.feed(self.head, &mut emit)?;
        if self.dropped > 0 {
            decoder.finish(&mut emit)?;
        }
        if self.marked {
            emit(&format!("\n[runcap: {} bytes dropped]\n", self.dropped))?;
        }
        for piece in self.tail {
            decoder.feed(piece, &mut emit)?;
        }
        decoder.finish(&mut emit)?;
        Ok(decoder.replaced() || self.replaced)
    }

    fn write_base64(&self, out: &mut dyn Write) -> io::Result<bool> {
        let mut encoder = base64::Encoder::new();
        for piece in [self.head, self.tail[0], self.tail[1]] {
            encoder.feed(piece, out)?;
        }
        encoder.finish(out)?;
        Ok(false)
    }
}
