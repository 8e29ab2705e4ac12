//! What does a client send to have a command run?

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::time::Duration;

use crate::quote::quoted;
use crate::wire::json_string::write_string;

/// A command to run on the server.
#[derive(Debug, Clone, Copy)]
pub struct ExecRequest<'a> {
    /// What runs.
    pub cmd: Cmd<'a>,
    /// Where; none for the server's workspace.
    pub cwd: Option<&'a str>,
    /// Over the server's environment, each name once.
    pub env: &'a [(OsString, OsString)],
    /// What it reads; none for nothing at all.
    pub stdin: Option<&'a str>,
    /// How long it may run; none for as long as the server lets it.
    pub timeout: Option<Duration>,
    /// The client's word for it.
    pub tag: Option<&'a str>,
}

/// How a command is given.
#[derive(Debug, Clone, Copy)]
pub enum Cmd<'a> {
    /// Read by the server's `/bin/sh`.
    Shell(&'a str),
    /// Program and arguments; the server refuses an empty list.
    Argv(&'a [OsString]),
}

/// Writes the body of `POST /v1/exec`. The command's limits are the server's to check.
///
/// # Errors
/// `InvalidInput`, before a byte is written, for an argument or a variable that is not UTF-8: JSON
/// cannot carry it. The message never shows a variable's value. Else as the writer.
pub fn write_exec(out: &mut dyn Write, request: &ExecRequest<'_>) -> io::Result<()> {
    are_texts(request).map_err(|message| io::Error::new(io::ErrorKind::InvalidInput, message))?;
    out.write_all(b"{\"cmd\":")?;
    match request.cmd {
        Cmd::Shell(script) => write_string(out, script)?,
        Cmd::Argv(argv) => {
            out.write_all(b"[")?;
            for (index, argument) in argv.iter().enumerate() {
                out.write_all(if index > 0 { b"," } else { b"" })?;
                write_string(out, checked(argument))?;
            }
            out.write_all(b"]")?;
        }
    }
    for (name, text) in [("cwd", request.cwd), ("stdin", request.stdin), ("tag", request.tag)] {
        if let Some(text) = text {
            write!(out, ",\"{name}\":")?;
            write_string(out, text)?;
        }
    }
    if !request.env.is_empty() {
        for (index, (name, value)) in request.env.iter().enumerate() {
            out.write_all(if index > 0 { b"," } else { b",\"env\":{" })?;
            write_string(out, checked(name))?;
            out.write_all(b":")?;
            write_string(out, checked(value))?;
        }
        out.write_all(b"}")?;
    }
    if let Some(timeout) = request.timeout {
        // In digits: a float of seconds would lose some of them.
        write!(out, ",\"timeout\":{}.{:09}", timeout.as_secs(), timeout.subsec_nanos())?;
    }
    out.write_all(b"}")
}

fn are_texts(request: &ExecRequest<'_>) -> Result<(), String> {
    const WAY_OUT: &str = "is not UTF-8, which JSON cannot carry: pass it through a file";
    let argv = if let Cmd::Argv(argv) = request.cmd { argv } else { &[] };
    if let Some(at) = argv.iter().position(|argument| argument.to_str().is_none()) {
        let argument = quoted(&argv[at].to_string_lossy());
        return Err(match at {
            0 => format!("the command {argument} {WAY_OUT}"),
            _ => format!("argument {at} {argument} {WAY_OUT}"),
        });
    }
    for (name, value) in request.env {
        let shown = quoted(&name.to_string_lossy());
        if name.to_str().is_none() {
            return Err(format!("the name of variable {shown} {WAY_OUT}"));
        }
        if value.to_str().is_none() {
            return Err(format!("the value of variable {shown} {WAY_OUT}"));
        }
    }
    Ok(())
}

fn checked(text: &OsStr) -> &str {
    text.to_str().expect("what is no text was refused before")
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::wire::sandbox::exec::decode_exec;

    const BARE: ExecRequest<'_> = ExecRequest {
        cmd: Cmd::Shell("a"),
        cwd: None,
        env: &[],
        stdin: None,
        timeout: None,
        tag: None,
    };

    fn written(request: &ExecRequest<'_>) -> String {
        let mut out = Vec::new();
        write_exec(&mut out, request).expect("a vector takes everything");
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn the_server_reads_what_was_meant() {
        assert_eq!(written(&BARE), r#"{"cmd":"a"}"#);
        let argv = ["a", "", "b \"c\"\u{2028}"].map(OsString::from);
        let env = [("A", "x\ny"), ("B", "")].map(|(name, value)| (name.into(), value.into()));
        let request = ExecRequest {
            cmd: Cmd::Argv(&argv),
            cwd: Some("d/é"),
            env: &env,
            stdin: Some("\0\u{1b}"),
            timeout: Some(Duration::new(1, 500_000_000)),
            tag: Some("t"),
        };
        let expected = concat!(
            r#"{"cmd":["a","","b \"c\"\u2028"],"cwd":"d/é","stdin":"\u0000\u001b","tag":"t","#,
            r#""env":{"A":"x\ny","B":""},"timeout":1.500000000}"#
        );
        assert_eq!(written(&request), expected);
        let read = decode_exec(expected.as_bytes()).expect("the server takes it");
        assert_eq!((&read.argv[..], &read.env[..]), (&argv[..], &env[..]));
        assert_eq!((read.cwd.as_deref(), read.tag.as_deref()), (Some("d/é"), Some("t")));
        assert_eq!(read.stdin.as_deref(), Some(&b"\0\x1b"[..]));
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(1500)] {
            let body = written(&ExecRequest { timeout: Some(timeout), ..BARE });
            let read = decode_exec(body.as_bytes()).expect("the server takes it");
            assert_eq!(read.timeout, Some(timeout), "{body}");
        }
        let body = written(&ExecRequest { timeout: Some(Duration::MAX), ..BARE });
        assert!(decode_exec(body.as_bytes()).is_ok(), "{body}");
    }

    #[test]
    fn what_json_cannot_carry_is_named_before_anything_is_written() {
        let bad = || OsString::from_vec(b"s3cret\xff".to_vec());
        let argv = [["a".into(), bad()], [bad(), "a".into()]];
        let env = [[("A".into(), bad())], [(bad(), "a".into())]];
        let rows = [
            ("argument", Cmd::Argv(&argv[0]), &[][..], "argument 1 's3cret\u{fffd}' is not UTF-8"),
            ("program", Cmd::Argv(&argv[1]), &[], "the command 's3cret\u{fffd}' is not"),
            ("value", Cmd::Shell("a"), &env[0], "the value of variable 'A' is not"),
            ("name", Cmd::Shell("a"), &env[1], "the name of variable 's3cret\u{fffd}' is not"),
        ];
        for (name, cmd, env, expected) in rows {
            let mut out = Vec::new();
            let refusal = write_exec(&mut out, &ExecRequest { cmd, env, ..BARE });
            let message = refusal.expect_err(name).to_string();
            assert!(message.starts_with(expected), "{name}: {message}");
            assert!(out.is_empty(), "{name}");
        }
    }
}
