//! The sandbox dialect's bodies, against serde_json's trees; what is told of commands and files,
//! against what any JSON library reads from it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use runcap::spec::{CAP_MAX_BYTES, Overflow, Part};
use runcap::wire::sandbox::exec::{Exec, decode_exec};
use runcap::wire::sandbox::files::{Entry, Kind, write_entry};
use runcap::wire::sandbox::process::{
    Exit, Process, SHOWN_MAX_BYTES, Shown, TAG_MAX_BYTES, write_ended, write_exit, write_process,
    write_started,
};
use runcap::wire::{size, time};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Numbers, is_a_line_of_json, is_a_message, keys_are_unique};

/// Are commands read as any JSON library does, and are they and files told so that it reads them?
pub fn sandbox(data: &[u8]) {
    agrees(data);
    long_ones_are_cut(&String::from_utf8_lossy(data));
    secrets_stay_secret(data);
    exits_read_back(data);
    processes_read_back(data);
    entries_read_back(data);
}

/// What was read is what the model makes of serde_json's tree, where no object has a key twice.
fn agrees(data: &[u8]) {
    let read = decode_exec(data).map(|mut exec| {
        is_within(&exec);
        // The order of a tree.
        exec.env.sort();
        exec
    });
    if let Err(message) = &read {
        is_a_message(message);
    }
    // A field that nobody knows may hold what a tree cannot: 1e400, half a surrogate pair.
    let Ok(body) = serde_json::from_slice::<Value>(data) else { return };
    if keys_are_unique(data) || read.is_ok() {
        assert_eq!(read.as_ref().ok(), model(data, &body).as_ref());
    }
    if let Ok(exec) = read {
        let told = told(|out| write_started(out, "p-1", 1, &exec.cmd, exec.tag.as_deref()));
        let is_whole = |limit: usize, value: &Value| value.to_string().len() <= limit / 32;
        if is_whole(SHOWN_MAX_BYTES, &body["cmd"]) {
            assert_eq!(told["cmd"], body["cmd"]);
        }
        if body["tag"].is_string() && is_whole(TAG_MAX_BYTES, &body["tag"]) {
            assert_eq!(told["tag"], body["tag"]);
        }
    }
}

fn is_within(exec: &Exec) {
    let has_nul = |text: &OsString| text.as_encoded_bytes().contains(&0);
    assert!(exec.argv.first().is_some_and(|program| !program.is_empty()));
    assert!(!exec.argv.iter().any(has_nul));
    for (name, value) in &exec.env {
        assert!(!name.is_empty() && !name.as_encoded_bytes().contains(&b'='));
        assert!(!has_nul(name) && !has_nul(value));
    }
    assert!(exec.cwd.as_ref().is_none_or(|cwd| !cwd.is_empty() && !cwd.contains('\0')));
    assert!(exec.limit.cap.is_none_or(|cap| (1..=CAP_MAX_BYTES).contains(&cap)));
    assert!(exec.tag.as_ref().is_none_or(|tag| tag.capacity() <= TAG_MAX_BYTES));
    let taken = match &exec.cmd {
        Shown::Text(text) => text.capacity(),
        Shown::List(items) => {
            let spare = items.capacity() - items.len();
            let taken = |item: &String| size_of::<String>() + item.len();
            spare * size_of::<String>() + items.iter().map(taken).sum::<usize>()
        }
    };
    assert!(taken <= SHOWN_MAX_BYTES, "{taken}");
}

/// The command of a body whose keys are unique; none where it is refused.
fn model(data: &[u8], body: &Value) -> Option<Exec> {
    let raw = serde_json::from_slice::<BTreeMap<String, &RawValue>>(data).ok()?;
    let is_text = |text: &&str| !text.contains('\0');
    let (argv, cmd) = match (&body["cmd"], &body["shell"]) {
        (Value::String(script), shell) if shell != &Value::Bool(false) && !script.is_empty() => {
            let argv = vec!["/bin/sh", "-c", script];
            (argv, Shown::Text(cut(script, SHOWN_MAX_BYTES)))
        }
        (Value::Array(items), shell) if shell != &Value::Bool(true) => {
            let argv = items.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
            let shown = shown(&argv);
            (Some(argv).filter(|argv| argv.first().is_some_and(|first| !first.is_empty()))?, shown)
        }
        _ => return None,
    };
    let argv = argv.into_iter().map(|text| Some(text).filter(is_text).map(OsString::from));
    let cwd = body["cwd"].as_str().filter(|cwd| !cwd.is_empty());
    if cwd.is_some_and(|cwd| cwd.contains('\0')) {
        return None;
    }
    Some(Exec {
        argv: argv.collect::<Option<Vec<_>>>()?,
        env: env(raw.get("env").copied())?,
        cwd: cwd.map(str::to_owned),
        timeout: match &body["timeout"] {
            Value::Number(_) => Some(seconds(raw["timeout"].get())),
            Value::String(text) => time::parse_duration(text, time::Bare::Refused).ok(),
            _ => None,
        },
        grace: match &body["grace"] {
            Value::Number(number) => Some(match number.as_u64() {
                Some(seconds) => Duration::from_secs(seconds),
                None => time::seconds_from_f64(number.as_f64()?).ok()?,
            }),
            Value::String(text) => Some(time::parse_duration(text, time::Bare::Refused).ok()?),
            _ => None,
        },
        stdin: body["stdin"].as_str().map(|stdin| stdin.as_bytes().to_vec()),
        limit: Part {
            cap: match &body["max_output_size"] {
                Value::Number(number) => Some(cap(number.as_u64()?)?),
                Value::String(text) => Some(cap(size::parse_size(text).ok()?)?),
                _ => None,
            },
            keep: None,
            overflow: match body["overflow"].as_str() {
                Some("stop") => Some(Overflow::Stop),
                Some("discard") => Some(Overflow::Discard),
                Some(_) => return None,
                None => None,
            },
        },
        background: body["background"] == true,
        tag: body["tag"].as_str().map(|tag| cut(tag, TAG_MAX_BYTES)),
        cmd,
    })
}

fn env(raw: Option<&RawValue>) -> Option<Vec<(OsString, OsString)>> {
    let Some(raw) = raw.filter(|raw| raw.get().starts_with('{')) else { return Some(Vec::new()) };
    let mut env = Vec::new();
    for (name, raw) in serde_json::from_str::<BTreeMap<String, &RawValue>>(raw.get()).ok()? {
        let value = match serde_json::from_str(raw.get()).ok()? {
            Value::String(text) => text,
            Value::Number(_) | Value::Bool(_) => raw.get().to_owned(),
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
        };
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return None;
        }
        env.push((name.into(), value.into()));
    }
    Some(env)
}

fn seconds(number: &str) -> Duration {
    let seconds: f64 = number.parse().expect("a number of JSON");
    let is_short = seconds < Duration::MAX.as_secs_f64();
    match number.starts_with('-') {
        true => Duration::ZERO,
        false if is_short => Duration::from_secs_f64(seconds),
        false => Duration::MAX,
    }
}

fn cap(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|bytes| (1..=CAP_MAX_BYTES).contains(bytes))
}

/// The longest head that leaves room for the note.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let note = format!(" … ({} bytes)", text.len());
    let mut head = text.to_owned();
    while head.len() + note.len() > bytes_max {
        head.pop();
    }
    head + &note
}

/// The first items that leave room for the note.
fn shown(argv: &[&str]) -> Shown {
    let taken = |item: &str| item.len() + size_of::<String>();
    let mut items = argv.to_vec();
    let mut whole: usize = argv.iter().map(|item| taken(item)).sum();
    let note = format!("… ({} items)", argv.len());
    if whole > SHOWN_MAX_BYTES {
        while whole + taken(&note) > SHOWN_MAX_BYTES {
            whole -= items.pop().map_or(0, taken);
        }
        items.push(&note);
    }
    Shown::List(items.into_iter().map(str::to_owned).collect())
}

/// Bodies that are longer than what is remembered of them.
fn long_ones_are_cut(text: &str) {
    // They take most of the time, so one input of eight has to do.
    if text.is_empty() || !text.len().is_multiple_of(8) || text.len() > SHOWN_MAX_BYTES {
        return;
    }
    let times = |bytes: usize| 1 + SHOWN_MAX_BYTES / bytes;
    let long = text.repeat(times(text.len()));
    let many = vec![text; times(text.len() + size_of::<String>())];
    let body = |cmd: Value| {
        let fields = [("cmd".to_owned(), cmd), ("tag".to_owned(), long.as_str().into())];
        Value::Object(fields.into_iter().collect()).to_string()
    };
    agrees(body(long.as_str().into()).as_bytes());
    agrees(body(many.into()).as_bytes());
}

/// What stands in env or stdin is never part of a refusal, whatever else stands in the body.
fn secrets_stay_secret(data: &[u8]) {
    const CANARY: &str = "Xcanary7f3aX";
    let Ok(Value::Object(body)) = serde_json::from_slice(data) else { return };
    let named = |name: String, value: Value| Value::Object([(name, value)].into_iter().collect());
    let secrets = [
        ("env", CANARY.into()),
        ("env", named(CANARY.to_owned(), 1.into())),
        ("env", named(format!("{CANARY}="), "".into())),
        ("env", named("A".to_owned(), format!("{CANARY}\0").into())),
        ("stdin", CANARY.into()),
        ("stdin", vec![CANARY].into()),
    ];
    for (field, secret) in secrets {
        let mut body = body.clone();
        body.insert(field.to_owned(), secret);
        if let Err(message) = decode_exec(Value::Object(body).to_string().as_bytes()) {
            // Another field may hold what the fuzzer copied from here.
            assert!(!message.contains(CANARY) || data.windows(7).any(|seen| seen == b"Xcanary"));
        }
    }
}

/// What was written, which is one object on one line.
fn told(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> Value {
    let mut out = Vec::new();
    write(&mut out).expect("a vector takes everything");
    assert!(keys_are_unique(&out));
    out.push(b'\n');
    is_a_line_of_json(&out)
}

fn exits_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let mut optional = || numbers.flag().then(|| numbers.number() as i32);
    let (exit_code, signal) = (optional(), optional());
    let (timed_out, left_running, has_reason) = (numbers.flag(), numbers.flag(), numbers.flag());
    let (killed_processes, duration_ms) = (numbers.number(), numbers.number());
    let reason = String::from_utf8_lossy(numbers.0);
    let exit = Exit {
        exit_code,
        signal,
        timed_out,
        duration: Duration::from_millis(duration_ms),
        status: "exited",
        reason: has_reason.then_some(&reason),
        left_running,
        killed_processes,
    };
    let mut line = Vec::new();
    write_exit(&mut line, &exit).expect("a vector takes everything");
    assert!(keys_are_unique(line.trim_ascii_end()));
    let told = is_a_line_of_json(&line);
    assert_eq!(told["event"], "exit");
    assert_eq!(told["status"], "exited");
    assert_eq!(told.get("exit_code"), Some(&exit_code.into()));
    assert_eq!(told.get("signal"), Some(&signal.into()));
    assert_eq!(told["timed_out"], timed_out);
    assert_eq!(told["duration_ms"], duration_ms);
    assert_eq!(told.get("reason").and_then(Value::as_str), exit.reason);
    assert_eq!(told.get("left_running"), left_running.then_some(&Value::Bool(true)));
    assert_eq!(told.get("killed_processes").map_or(Some(0), Value::as_u64), Some(killed_processes));
    let extra = [has_reason, left_running, killed_processes > 0];
    let count = 6 + extra.into_iter().filter(|is_told| *is_told).count();
    assert_eq!(told.as_object().map(|told| told.len()), Some(count));
}

fn processes_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let (pid, started_at_ms) = (numbers.number() as u32, numbers.number());
    let exit_code = numbers.flag().then(|| numbers.number() as i32);
    let (running, has_tag, is_list) = (numbers.flag(), numbers.flag(), numbers.flag());
    let text = String::from_utf8_lossy(numbers.0);
    let items: Vec<_> = text.split(' ').map(str::to_owned).collect();
    let sent = if is_list { Value::from(items.clone()) } else { Value::from(&*text) };
    let cmd = if is_list { Shown::List(items) } else { Shown::Text(text.clone().into_owned()) };
    let tag = has_tag.then_some(&*text);
    let process = Process { id: &text, pid, cmd: &cmd, tag, started_at_ms, running, exit_code };
    let listed = told(|out| write_process(out, &process));
    let started = told(|out| write_started(out, &text, pid, &cmd, tag));
    for (told, count) in [(&listed, 7), (&started, 4)] {
        assert_eq!(told.as_object().map(|told| told.len()), Some(count));
        assert_eq!(told["id"], *text);
        assert_eq!(told["pid"], pid);
        assert_eq!(told["cmd"], sent);
        assert_eq!(told.get("tag"), Some(&tag.into()));
    }
    assert_eq!(listed["started_at_ms"], started_at_ms);
    assert_eq!(listed["running"], running);
    assert_eq!(listed.get("exit_code"), Some(&exit_code.into()));
    let ended = told(|out| write_ended(out, &text, running));
    let expected = [("id", Value::from(&*text)), ("ok", true.into()), ("killed", running.into())];
    let expected = expected.map(|(key, value)| (key.to_owned(), value));
    assert_eq!(ended, Value::Object(expected.into_iter().collect()));
}

fn entries_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let st_mode = u32::from_le_bytes(std::array::from_fn(|_| numbers.byte()));
    let kinds = [(Kind::File, "file"), (Kind::Directory, "dir"), (Kind::Symlink, "symlink")];
    let (kind, kind_name) = kinds[usize::from(numbers.byte()) % kinds.len()];
    let size = numbers.number();
    let mtime_ms = numbers.flag().then(|| numbers.number() as i64);
    let name = String::from_utf8_lossy(numbers.0);
    let path = format!("/{name}");
    let entry = Entry { name: &name, path: &path, kind, size, mtime_ms, st_mode };
    let entry = told(|out| write_entry(out, &entry));
    let mode = entry["mode"].as_str().expect("the mode is text").to_owned();
    let expected = [
        ("name", Value::from(&*name)),
        ("path", path.into()),
        ("type", kind_name.into()),
        ("size", size.into()),
        ("mtime_ms", mtime_ms.into()),
        ("mode", mode.as_str().into()),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value));
    assert_eq!(entry, Value::Object(expected.into_iter().collect()));
    assert!(mode == "0" || !mode.starts_with('0'));
    assert_eq!(u32::from_str_radix(&mode, 8), Ok(st_mode & 0o7777));
}
