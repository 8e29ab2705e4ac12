//! `POST /v1/exec` and `POST /v1/processes`: which command a body asks for.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::spec::{OVERFLOW, Part};
use crate::wire::arguments::Arguments;
use crate::wire::fields::{entries, fields, value};
use crate::wire::json_string::unescape_in_place;
use crate::wire::kinds::{cap, duration, one_of};
use crate::wire::time::{Bare, parse_duration};
use crate::wire::value::{Reader, Scalar, string};

use super::process::{Shown, TAG_MAX_BYTES, cut};

/// What every message about a body begins with that is no JSON object, or holds no right JSON.
const INVALID: &str = "invalid JSON body:";

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// Program and arguments: at least one, the program not empty, none with a NUL byte.
    pub argv: Vec<OsString>,
    /// Over the inherited environment: each name once, not empty, without `=`, no NUL byte.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs, as it was sent: not empty, no NUL byte; none for the workspace.
    pub cwd: Option<String>,
    /// How long it may run, up to [`Duration::MAX`]; zero if it has timed out before it begins;
    /// none where nothing usable was said.
    pub timeout: Option<Duration>,
    /// From TERM to KILL; zero kills at once.
    pub grace: Option<Duration>,
    /// What it reads; none for nothing at all.
    pub stdin: Option<Vec<u8>>,
    /// Cap and overflow of each stream; `keep` is never said.
    pub limit: Part,
    /// It is answered as soon as it runs, and is listed.
    pub background: bool,
    /// The client's word for it, at most [`TAG_MAX_BYTES`].
    pub tag: Option<String>,
    /// The command as it was sent, for listings.
    pub cmd: Shown,
}

/// Decodes the body of a request.
///
/// # Errors
/// The message of the answer with status 400. It never shows what stands in `env` or `stdin`.
pub fn decode_exec(body: &[u8]) -> Result<Exec, String> {
    let names = [
        "cmd",
        "shell",
        "env",
        "cwd",
        "timeout",
        "grace",
        "stdin",
        "max_output_size",
        "overflow",
        "background",
        "tag",
    ];
    let [cmd, shell, env, cwd, timeout, grace, stdin, size, overflow, background, tag] =
        fields(body, names).map_err(|message| format!("{INVALID} {message}"))?;
    let mut arguments = Arguments::default();
    let cmd = read_cmd(cmd, boolean(shell), &mut arguments)?;
    read_env(env, &mut arguments)?;
    let Arguments { argv, env, .. } = arguments;
    Ok(Exec {
        argv,
        env,
        cwd: read_cwd(cwd)?,
        timeout: read_timeout(timeout)?,
        grace: usable("grace", grace, duration)?,
        stdin: read_stdin(stdin)?,
        limit: Part {
            cap: usable("max_output_size", size, |value| cap(value, ""))?,
            keep: None,
            overflow: usable("overflow", overflow.filter(|raw| !is_number(raw)), |value| {
                one_of(value, &OVERFLOW)
            })?,
        },
        background: boolean(background).unwrap_or(false),
        tag: text("tag", tag)?.map(|tag| cut(&tag, TAG_MAX_BYTES)),
        cmd,
    })
}

fn read_cmd(
    raw: Option<&RawValue>,
    shell: Option<bool>,
    arguments: &mut Arguments,
) -> Result<Shown, String> {
    const MISSING: &str = "missing 'cmd' (string or array of strings)";
    let raw = raw.ok_or(MISSING)?;
    match (raw.get().as_bytes().first(), shell) {
        (Some(b'"'), Some(false)) => {
            Err("shell=false requires 'cmd' to be an array of strings".to_owned())
        }
        (Some(b'"'), _) => read_script(raw, arguments),
        (Some(b'['), Some(true)) => Err("shell=true requires 'cmd' to be a string".to_owned()),
        (Some(b'['), _) => read_argv(raw, arguments),
        _ => Err(MISSING.to_owned()),
    }
}

fn read_script(raw: &RawValue, arguments: &mut Arguments) -> Result<Shown, String> {
    let script = text("cmd", Some(raw))?.unwrap_or_default();
    if script.is_empty() {
        return Err("cmd is an empty string".to_owned());
    }
    let shown = Shown::text(&script);
    arguments.argv = ["/bin/sh", "-c"].map(OsString::from).to_vec();
    arguments.push(&Scalar::Text(script)).map_err(|message| invalid("cmd", &message))?;
    Ok(shown)
}

fn read_argv(raw: &RawValue, arguments: &mut Arguments) -> Result<Shown, String> {
    let mut read = Ok(());
    let mut item = |value: Scalar| {
        if read.is_ok() {
            read = match value {
                Scalar::Text(_) => {
                    arguments.push(&value).map_err(|message| invalid("cmd", &message))
                }
                _ => Err("cmd array items must be strings".to_owned()),
            };
        }
    };
    value(raw, Reader { item: Some(&mut item), entry: None })
        .map_err(|message| undecodable("cmd", &message))?;
    read?;
    match arguments.argv.first() {
        None => Err("cmd array must not be empty".to_owned()),
        Some(program) if program.is_empty() => Err("cmd[0] is an empty string".to_owned()),
        Some(_) => Ok(Shown::list(&arguments.argv)),
    }
}

/// The client allows any values: a number or a boolean is taken as the text it was sent as, and
/// what no variable can hold is left out.
fn read_env(raw: Option<&RawValue>, arguments: &mut Arguments) -> Result<(), String> {
    let Some(raw) = raw.filter(|raw| raw.get().starts_with('{')) else { return Ok(()) };
    let mut read = Ok(());
    let mut entry = |name: String, raw: &RawValue| {
        if read.is_ok() {
            let set = match raw.get().as_bytes().first() {
                Some(b'"') => scalar("env", raw).map(|value| arguments.set(name, value)),
                Some(b'-' | b'0'..=b'9' | b't' | b'f') => {
                    Ok(arguments.set(name, Scalar::Text(raw.get().to_owned())))
                }
                _ => Ok(arguments.leave_out(name)),
            };
            read = set.and_then(|set| set.map_err(|message| invalid("env", &message)));
        }
    };
    entries(raw, &mut entry).map_err(|message| undecodable("env", &message))?;
    read
}

fn read_cwd(raw: Option<&RawValue>) -> Result<Option<String>, String> {
    let Some(cwd) = text("cwd", raw)?.filter(|cwd| !cwd.is_empty()) else { return Ok(None) };
    string(&Scalar::Text(cwd)).map(Some).map_err(|message| invalid("cwd", &message))
}

/// Every number is a timeout: the client passes on whatever it was given, and what is too long or
/// too short for a duration still says what is wanted.
fn read_timeout(raw: Option<&RawValue>) -> Result<Option<Duration>, String> {
    let Some(raw) = raw else { return Ok(None) };
    // Rust reads any number of JSON, also 1e400, which a float cannot hold.
    if is_number(raw)
        && let Ok(seconds) = raw.get().parse::<f64>()
    {
        let timeout = Duration::try_from_secs_f64(seconds.max(0.0));
        return Ok(Some(timeout.unwrap_or(Duration::MAX)));
    }
    let text = text("timeout", Some(raw))?;
    Ok(text.and_then(|text| parse_duration(&text, Bare::Refused).ok()))
}

fn read_stdin(raw: Option<&RawValue>) -> Result<Option<Vec<u8>>, String> {
    let Some([b'"', body @ .., b'"']) = raw.map(|raw| raw.get().as_bytes()) else {
        return Ok(None);
    };
    // It may be most of the body: held once, and decoded in place.
    let mut bytes = body.to_vec();
    let length =
        unescape_in_place(&mut bytes).map_err(|error| undecodable("stdin", &error.to_string()))?;
    bytes.truncate(length);
    Ok(Some(bytes))
}

/// What `parse` makes of a number or a string; none where it is neither.
fn usable<T>(
    name: &str,
    raw: Option<&RawValue>,
    parse: impl Fn(&Scalar) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let Some(raw) = raw.filter(|raw| is_number(raw) || raw.get().starts_with('"')) else {
        return Ok(None);
    };
    parse(&scalar(name, raw)?).map(Some).map_err(|message| invalid(name, &message))
}

/// The text of a string; none where it is something else.
fn text(name: &str, raw: Option<&RawValue>) -> Result<Option<String>, String> {
    match raw.filter(|raw| raw.get().starts_with('"')).map(|raw| scalar(name, raw)).transpose()? {
        Some(Scalar::Text(text)) => Ok(Some(text)),
        _ => Ok(None),
    }
}

/// True or false; none where it is something else.
fn boolean(raw: Option<&RawValue>) -> Option<bool> {
    match raw?.get() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn is_number(raw: &RawValue) -> bool {
    raw.get().starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

fn scalar(name: &str, raw: &RawValue) -> Result<Scalar, String> {
    value(raw, Reader::default()).map_err(|message| undecodable(name, &message))
}

/// About a value that is right JSON and still no text or number, such as half a surrogate pair.
fn undecodable(name: &str, message: &str) -> String {
    format!("{INVALID} {}", invalid(name, message))
}

fn invalid(name: &str, message: &str) -> String {
    format!("field '{name}': {message}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Overflow;
    use crate::wire::arguments::ARGUMENTS_MAX_BYTES;

    fn decoded(body: &str) -> Exec {
        decode_exec(body.as_bytes()).unwrap_or_else(|message| panic!("{body}: {message}"))
    }

    #[test]
    fn bodies_are_read() {
        let body = r#" {"cmd":"echo $A","shell":true,"env":{"A":"x y","B":""},"cwd":"../x",
            "timeout":1.5,"grace":"250ms","stdin":"\u00e9\n\u0000","max_output_size":"4M",
            "overflow":"stop","background":true,"tag":"t","more":[{"cmd":1}],"more":1e999} "#;
        let expected = Exec {
            argv: ["/bin/sh", "-c", "echo $A"].map(OsString::from).to_vec(),
            env: [("A", "x y"), ("B", "")].map(|(name, value)| (name.into(), value.into())).into(),
            cwd: Some("../x".to_owned()),
            timeout: Some(Duration::from_millis(1500)),
            grace: Some(Duration::from_millis(250)),
            stdin: Some("é\n\0".into()),
            limit: Part { cap: Some(4 << 20), keep: None, overflow: Some(Overflow::Stop) },
            background: true,
            tag: Some("t".to_owned()),
            cmd: Shown::Text("echo $A".to_owned()),
        };
        assert_eq!(decoded(body), expected);
        let list = decoded(r#"{"cmd":["a","","b c"],"shell":false,"stdin":""}"#);
        assert_eq!(list.argv, ["a", "", "b c"]);
        assert_eq!(list.cmd, Shown::List(["a", "", "b c"].map(str::to_owned).to_vec()));
        assert_eq!(list.stdin, Some(Vec::new()));
    }

    #[test]
    fn optional_fields_of_a_wrong_type_are_as_absent() {
        let bare = decoded(r#"{"cmd":"a"}"#);
        let nothing = (None, None, None, None, false, Part::default());
        let Exec { timeout, grace, stdin, tag, background, limit, .. } = bare.clone();
        assert_eq!((timeout, grace, stdin, tag, background, limit), nothing);
        let fields = [
            "shell",
            "env",
            "cwd",
            "timeout",
            "grace",
            "stdin",
            "max_output_size",
            "overflow",
            "background",
            "tag",
        ];
        for field in fields {
            for value in ["null", "[]", "{}", "[1,\"a\"]", "{\"A\":[]}"] {
                let body = format!("{{\"cmd\":\"a\",\"{field}\":{value}}}");
                assert_eq!(decoded(&body), bare, "{body}");
            }
        }
        let rows = [
            ("shell", "\"false\""),
            ("shell", "0"),
            ("env", "\"A=b\""),
            ("env", "true"),
            ("env", r#"{"A":null,"A=":null,"":[],"B":{},"C":[1]}"#),
            ("cwd", "\"\""),
            ("cwd", "1"),
            ("timeout", "true"),
            ("timeout", "\"soon\""),
            ("timeout", "\"10\""),
            ("grace", "true"),
            ("stdin", "1"),
            ("max_output_size", "false"),
            ("overflow", "1"),
            ("background", "\"true\""),
            ("background", "1"),
            ("tag", "1"),
        ];
        for (field, value) in rows {
            let body = format!("{{\"cmd\":\"a\",\"{field}\":{value}}}");
            assert_eq!(decoded(&body), bare, "{body}");
        }
    }

    #[test]
    fn numbers_and_booleans_are_variables_as_they_were_sent() {
        let body = r#"{"cmd":"a","env":{"A":1,"B":-2.50,"C":1e400,"D":true,"E":false,"F":null,
            "G":123456789012345678901234567890}}"#;
        let env = decoded(body).env;
        let expected = [
            ("A", "1"),
            ("B", "-2.50"),
            ("C", "1e400"),
            ("D", "true"),
            ("E", "false"),
            ("G", "123456789012345678901234567890"),
        ];
        assert_eq!(env, expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn every_number_is_a_timeout() {
        let rows = [
            ("0", Duration::ZERO),
            ("-0.0", Duration::ZERO),
            ("-5", Duration::ZERO),
            ("-1e400", Duration::ZERO),
            ("1e-400", Duration::ZERO),
            ("1e-12", Duration::ZERO),
            ("5", Duration::from_secs(5)),
            ("0.25", Duration::from_millis(250)),
            ("1e400", Duration::MAX),
            ("99999999999999999999", Duration::MAX),
            ("\"1m30s\"", Duration::from_secs(90)),
            ("\"0\"", Duration::ZERO),
        ];
        for (value, expected) in rows {
            let body = format!("{{\"cmd\":\"a\",\"timeout\":{value}}}");
            assert_eq!(decoded(&body).timeout, Some(expected), "{value}");
        }
        assert_eq!(decoded(r#"{"cmd":"a","grace":0}"#).grace, Some(Duration::ZERO));
    }

    #[test]
    fn what_clients_know_is_worded_exactly() {
        const MISSING: &str = "missing 'cmd' (string or array of strings)";
        let rows = [
            ("absent", "{}", MISSING),
            ("null", r#"{"cmd":null}"#, MISSING),
            ("number", r#"{"cmd":1}"#, MISSING),
            ("negative", r#"{"cmd":-1}"#, MISSING),
            ("object", r#"{"cmd":{}}"#, MISSING),
            ("bool", r#"{"cmd":true,"shell":false}"#, MISSING),
            ("empty array", r#"{"cmd":[]}"#, "cmd array must not be empty"),
            ("number in it", r#"{"cmd":["a",1]}"#, "cmd array items must be strings"),
            ("null in it", r#"{"cmd":[null]}"#, "cmd array items must be strings"),
            ("array in it", r#"{"cmd":[["a"]]}"#, "cmd array items must be strings"),
            (
                "list for the shell",
                r#"{"cmd":["a"],"shell":true}"#,
                "shell=true requires 'cmd' to be a string",
            ),
            (
                "text without shell",
                r#"{"shell":false,"cmd":"a"}"#,
                "shell=false requires 'cmd' to be an array of strings",
            ),
            ("empty text", r#"{"cmd":""}"#, "cmd is an empty string"),
            ("no program", r#"{"cmd":["","a"]}"#, "cmd[0] is an empty string"),
        ];
        for (name, body, expected) in rows {
            assert_eq!(decode_exec(body.as_bytes()), Err(expected.to_owned()), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rows = [
            ("nothing", "", "invalid JSON body: expected a JSON object"),
            ("an array", r#"["s3cret"]"#, "invalid JSON body: expected a JSON object"),
            ("unclosed", r#"{"cmd":"a""#, "invalid JSON body: EOF"),
            ("trailing", r#"{"cmd":"a"}x"#, "invalid JSON body: trailing characters at byte 11"),
            ("twice", r#"{"cmd":"a","cmd":"a"}"#, "invalid JSON body: field 'cmd' is given twice"),
            ("null twice", r#"{"tag":null,"t\u0061g":1}"#, "field 'tag' is given twice"),
            ("surrogate", r#"{"cmd":"\ud800"}"#, "invalid JSON body: field 'cmd': "),
            ("in a list", r#"{"cmd":["a","\ud800"]}"#, "invalid JSON body: field 'cmd': "),
            ("in env", r#"{"cmd":"a","env":{"A":"s3cret\ud800"}}"#, "JSON body: field 'env': "),
            ("a name", r#"{"cmd":"a","env":{"s3cret\ud800":1}}"#, "JSON body: field 'env': "),
            ("stdin", r#"{"cmd":"a","stdin":"s3cret\udc00"}"#, "JSON body: field 'stdin': "),
            ("tag", r#"{"cmd":"a","tag":"\udc00"}"#, "invalid JSON body: field 'tag': "),
            ("NUL", r#"{"cmd":"a\u0000"}"#, "field 'cmd': the value holds a NUL byte"),
            ("NUL in a list", r#"{"cmd":["a","\u0000"]}"#, "field 'cmd': the value holds a NUL"),
            ("NUL in cwd", r#"{"cmd":"a","cwd":"\u0000"}"#, "field 'cwd': the value holds a NUL"),
            ("env name", r#"{"cmd":"a","env":{"":"s3cret"}}"#, "field 'env': a variable's name is"),
            ("env =", r#"{"cmd":"a","env":{"s3cret=":1}}"#, "field 'env': a variable's name holds"),
            ("env NUL", r#"{"cmd":"a","env":{"A":"s3cret\u0000"}}"#, "'env': a value holds a NUL"),
            ("env twice", r#"{"cmd":"a","env":{"A":1,"A":"s3cret"}}"#, "a variable is given twice"),
            ("env null", r#"{"cmd":"a","env":{"A":"","A":null}}"#, "a variable is given twice"),
            ("env nulls", r#"{"cmd":"a","env":{"A":{},"A":1}}"#, "a variable is given twice"),
            ("grace", r#"{"cmd":"a","grace":-1}"#, "field 'grace': invalid duration '-1.0'"),
            ("grace text", r#"{"cmd":"a","grace":"5"}"#, "field 'grace': invalid duration '5'"),
            ("grace 1e400", r#"{"cmd":"a","grace":1e400}"#, "field 'grace': number out of range"),
            ("cap 0", r#"{"cmd":"a","max_output_size":0}"#, "'max_output_size': invalid size 0"),
            ("cap -1", r#"{"cmd":"a","max_output_size":-1}"#, "_size': invalid value -1"),
            ("cap 1.5", r#"{"cmd":"a","max_output_size":1.5}"#, "_size': invalid value 1.5"),
            ("cap text", r#"{"cmd":"a","max_output_size":"4MB"}"#, "invalid size '4MB': use 4M"),
            ("cap 256M+1", r#"{"cmd":"a","max_output_size":268435457}"#, "invalid size 268435457"),
            (
                "overflow",
                r#"{"cmd":"a","overflow":"sometimes"}"#,
                "'overflow': invalid value 'sometim",
            ),
        ];
        for (name, body, expected) in rows {
            let message = decode_exec(body.as_bytes()).expect_err(name);
            assert!(message.contains(expected), "{name}: {message}");
            assert!(!message.contains("s3cret"), "{name}: {message}");
        }
        let half = "x".repeat(ARGUMENTS_MAX_BYTES / 2);
        for body in [
            format!("{{\"cmd\":\"{half}{half}\"}}"),
            format!("{{\"cmd\":[\"{half}\"],\"env\":{{\"A\":\"{half}\"}}}}"),
        ] {
            assert!(decode_exec(body.as_bytes()).expect_err("too long").contains("E2BIG"));
        }
    }
}
