//! What `/v1/exec` and `/v1/processes` tell of commands: how one ended, which ones run on.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use crate::wire::json_string::write_string;

/// Bytes that a command takes as it is remembered for listings, where hundreds of ended ones stand;
/// what was sent may be megabytes.
pub const SHOWN_MAX_BYTES: usize = 4096;

/// Bytes of a tag as it is remembered, as long as its command.
pub const TAG_MAX_BYTES: usize = 1024;

/// A command as it was sent, cut to [`SHOWN_MAX_BYTES`] with each string's header in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// What the shell reads; where it was cut it ends in ` … (N bytes)`, N of the whole.
    Text(String),
    /// Program and arguments; where they were cut the last one is `… (N items)`, N of the whole.
    List(Vec<String>),
}

impl Shown {
    pub(super) fn text(text: &str) -> Shown {
        Shown::Text(cut(text, SHOWN_MAX_BYTES))
    }

    pub(super) fn list(argv: &[OsString]) -> Shown {
        let taken = |bytes: usize| size_of::<String>() + bytes;
        let text = |item: &OsString| item.to_string_lossy().into_owned();
        let whole: usize = argv.iter().map(|item| taken(item.len())).sum();
        if whole <= SHOWN_MAX_BYTES {
            return Shown::List(argv.iter().map(text).collect());
        }
        let note = format!("… ({} items)", argv.len());
        let mut room = SHOWN_MAX_BYTES - taken(note.len());
        let fits = |item: &&OsString| {
            let left = room.checked_sub(taken(item.len()));
            room = left.unwrap_or(room);
            left.is_some()
        };
        let mut shown: Vec<_> = argv.iter().take_while(fits).map(text).collect();
        shown.push(note);
        shown.shrink_to_fit();
        Shown::List(shown)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let items = match self {
            Shown::Text(text) => return write_string(out, text),
            Shown::List(items) => items,
        };
        out.write_all(b"[")?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.write_all(b",")?;
            }
            write_string(out, item)?;
        }
        out.write_all(b"]")
    }
}

/// The text in at most `bytes_max`, which leave room for a note: cut at a character, and the note
/// says how long it was.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let note = format!(" … ({} bytes)", text.len());
    let head = &text[..text.floor_char_boundary(bytes_max - note.len())];
    [head, &note].concat()
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit<'a> {
    /// The leader's, where it exited.
    pub exit_code: Option<i32>,
    /// The signal that the leader died of.
    pub signal: Option<i32>,
    /// It ran into its timeout.
    pub timed_out: bool,
    /// How long it ran, by the monotonic clock; written in whole milliseconds.
    pub duration: Duration,
    /// How it ended, in one word.
    pub status: &'static str,
    /// What decided, where that was not the command: one sentence.
    pub reason: Option<&'a str>,
    /// Processes of it were alive when this was written.
    pub left_running: bool,
    /// How many besides the leader were killed.
    pub killed_processes: u64,
}

/// Writes the last event of a command, one line. What is not so is left out behind `status`.
///
/// # Errors
/// As the writer.
pub fn write_exit(out: &mut dyn Write, exit: &Exit<'_>) -> io::Result<()> {
    out.write_all(b"{\"event\":\"exit\",\"exit_code\":")?;
    write_number(out, exit.exit_code)?;
    out.write_all(b",\"signal\":")?;
    write_number(out, exit.signal)?;
    let Exit { timed_out, status, .. } = exit;
    let duration_ms = exit.duration.as_millis();
    write!(out, r#","timed_out":{timed_out},"duration_ms":{duration_ms},"status":"{status}""#)?;
    if let Some(reason) = exit.reason {
        out.write_all(b",\"reason\":")?;
        write_string(out, reason)?;
    }
    if exit.left_running {
        out.write_all(b",\"left_running\":true")?;
    }
    if exit.killed_processes > 0 {
        write!(out, ",\"killed_processes\":{}", exit.killed_processes)?;
    }
    out.write_all(b"}\n")
}

/// A command that was started in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process<'a> {
    /// `p-N`.
    pub id: &'a str,
    /// The leader's.
    pub pid: u32,
    /// What was asked for.
    pub cmd: &'a Shown,
    /// The client's word for it.
    pub tag: Option<&'a str>,
    /// When it began, milliseconds since 1970.
    pub started_at_ms: u64,
    /// It has not ended yet.
    pub running: bool,
    /// The leader's, where it exited.
    pub exit_code: Option<i32>,
}

/// Writes the answer to a command that was started in the background.
///
/// # Errors
/// As the writer.
pub fn write_started(
    out: &mut dyn Write,
    id: &str,
    pid: u32,
    cmd: &Shown,
    tag: Option<&str>,
) -> io::Result<()> {
    write_identity(out, id, pid, cmd, tag)?;
    out.write_all(b"}")
}

/// Writes one process of a listing.
///
/// # Errors
/// As the writer.
pub fn write_process(out: &mut dyn Write, process: &Process<'_>) -> io::Result<()> {
    let Process { id, pid, cmd, tag, started_at_ms, running, exit_code } = *process;
    write_identity(out, id, pid, cmd, tag)?;
    write!(out, r#","started_at_ms":{started_at_ms},"running":{running},"exit_code":"#)?;
    write_number(out, exit_code)?;
    out.write_all(b"}")
}

/// Writes the answer to a process that was told to end, `killed` if it was running.
///
/// # Errors
/// As the writer.
pub fn write_ended(out: &mut dyn Write, id: &str, killed: bool) -> io::Result<()> {
    out.write_all(b"{\"id\":")?;
    write_string(out, id)?;
    write!(out, r#","ok":true,"killed":{killed}}}"#)
}

/// Writes the keys that an answer and a listing share, and leaves the object open.
fn write_identity(
    out: &mut dyn Write,
    id: &str,
    pid: u32,
    cmd: &Shown,
    tag: Option<&str>,
) -> io::Result<()> {
    out.write_all(b"{\"id\":")?;
    write_string(out, id)?;
    write!(out, ",\"pid\":{pid},\"cmd\":")?;
    cmd.write(out)?;
    out.write_all(b",\"tag\":")?;
    match tag {
        Some(tag) => write_string(out, tag),
        None => out.write_all(b"null"),
    }
}

fn write_number(out: &mut dyn Write, number: Option<i32>) -> io::Result<()> {
    match number {
        Some(number) => write!(out, "{number}"),
        None => out.write_all(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn long_commands_are_cut_and_say_how_long_they_were() {
        let longest = "x".repeat(SHOWN_MAX_BYTES);
        let ascii = "x".repeat(SHOWN_MAX_BYTES - " … (4097 bytes)".len()) + " … (4097 bytes)";
        let wide = "€".repeat((SHOWN_MAX_BYTES - " … (6000 bytes)".len()) / 3) + " … (6000 bytes)";
        let rows = [
            ("empty", String::new(), ""),
            ("longest whole", longest.clone(), &longest),
            ("one more", longest.clone() + "x", &ascii),
            ("wide", "€".repeat(2000), &wide),
        ];
        for (name, text, expected) in rows {
            assert_eq!(Shown::text(&text), Shown::Text(expected.to_owned()), "{name}");
        }
        let list = |items: &[&str]| {
            let items: Vec<_> = items.iter().map(OsString::from).collect();
            match Shown::list(&items) {
                Shown::List(items) => items,
                Shown::Text(text) => panic!("{text}"),
            }
        };
        let room = SHOWN_MAX_BYTES - size_of::<String>();
        assert_eq!(list(&["a", "", "€"]), ["a", "", "€"]);
        assert_eq!(list(&[&longest[..room]]), [&longest[..room]]);
        assert_eq!(list(&[&longest[..=room]]), ["… (1 items)"]);
        // What comes behind one that does not fit is not shown, however short.
        assert_eq!(list(&["a", &longest, "b"]), ["a", "… (3 items)"]);
        let many = list(&[""; 1000]);
        assert_eq!(many.len(), SHOWN_MAX_BYTES / size_of::<String>());
        assert_eq!(many.last().map(String::as_str), Some("… (1000 items)"));
    }

    #[test]
    fn exits_tell_more_than_six_keys_only_when_there_is_more() {
        let exit = Exit {
            exit_code: Some(0),
            signal: None,
            timed_out: false,
            duration: Duration::from_micros(12_999),
            status: "exited",
            reason: None,
            left_running: false,
            killed_processes: 0,
        };
        let expected = concat!(
            r#"{"event":"exit","exit_code":0,"signal":null,"timed_out":false,"duration_ms":12,"#,
            r#""status":"exited"}"#,
            "\n"
        );
        assert_eq!(written(|out| write_exit(out, &exit)), expected);
        let killed = Exit {
            exit_code: None,
            signal: Some(9),
            timed_out: true,
            duration: Duration::ZERO,
            status: "timed_out",
            reason: Some("a \"b\"\u{2028}"),
            left_running: true,
            killed_processes: 3,
        };
        let expected = concat!(
            r#"{"event":"exit","exit_code":null,"signal":9,"timed_out":true,"duration_ms":0,"#,
            r#""status":"timed_out","reason":"a \"b\"\u2028","left_running":true,"#,
            r#""killed_processes":3}"#,
            "\n"
        );
        assert_eq!(written(|out| write_exit(out, &killed)), expected);
    }

    #[test]
    fn processes_have_the_keys_that_the_client_takes() {
        let text = Shown::Text("a\u{85}\"".to_owned());
        let list = Shown::List(["b", "", "\u{2029}"].map(str::to_owned).to_vec());
        let process = Process {
            id: "p-1",
            pid: 7,
            cmd: &text,
            tag: None,
            started_at_ms: u64::MAX,
            running: true,
            exit_code: None,
        };
        let ended =
            Process { cmd: &list, tag: Some("\n"), running: false, exit_code: Some(-1), ..process };
        let rows = [
            (
                written(|out| write_started(out, "p-1", 7, &text, None)),
                r#"{"id":"p-1","pid":7,"cmd":"a\u0085\"","tag":null}"#,
            ),
            (
                written(|out| write_started(out, "p-2", u32::MAX, &list, Some(""))),
                r#"{"id":"p-2","pid":4294967295,"cmd":["b","","\u2029"],"tag":""}"#,
            ),
            (
                written(|out| write_started(out, "p-3", 1, &Shown::List(Vec::new()), None)),
                r#"{"id":"p-3","pid":1,"cmd":[],"tag":null}"#,
            ),
            (
                written(|out| write_process(out, &process)),
                concat!(
                    r#"{"id":"p-1","pid":7,"cmd":"a\u0085\"","tag":null,"#,
                    r#""started_at_ms":18446744073709551615,"running":true,"exit_code":null}"#
                ),
            ),
            (
                written(|out| write_process(out, &ended)),
                concat!(
                    r#"{"id":"p-1","pid":7,"cmd":["b","","\u2029"],"tag":"\n","#,
                    r#""started_at_ms":18446744073709551615,"running":false,"exit_code":-1}"#
                ),
            ),
            (
                written(|out| write_ended(out, "a\"\u{2028}", false)),
                r#"{"id":"a\"\u2028","ok":true,"killed":false}"#,
            ),
            (written(|out| write_ended(out, "7", true)), r#"{"id":"7","ok":true,"killed":true}"#),
        ];
        for (written, expected) in rows {
            assert_eq!(written, expected);
        }
    }
}
