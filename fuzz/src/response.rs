//! What a client reads, whatever a server sends: heads of responses against a model that reads
//! them as text, events and listings against serde_json's trees, and what this server writes
//! against itself.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, Read};
use std::time::Duration;

use runcap::outcome::Stream;
use runcap::wire::event::{write_ping, write_start, write_text, write_truncated};
use runcap::wire::http::head::{Framing, Scan};
use runcap::wire::http::response::{ResponseFraming, ResponseHead, parse_response};
use runcap::wire::sandbox::client::answers::{ERROR_MAX_BYTES, read_error, read_protocol, shown};
use runcap::wire::sandbox::client::entries::{
    NAME_MAX_BYTES, PATH_MAX_BYTES, RemoteEntry, RemoteKind, read_entry,
};
use runcap::wire::sandbox::client::events::{Ended, Event, REASON_MAX_BYTES, read_event};
use runcap::wire::sandbox::client::listing::{PageError, read_page};
use runcap::wire::sandbox::client::request::{Cmd, ExecRequest, write_exec};
use runcap::wire::sandbox::exec::decode_exec;
use runcap::wire::sandbox::files::{Entry, Kind, write_entry};
use runcap::wire::sandbox::process::{Exit, write_exit};
use runcap::wire::text::Decoder;
use serde_json::Value;

use super::http_head::{is_token, model_of_framing};
use super::{Numbers, is_a_message, keys_are_unique};

/// Does a client read what was sent, and nothing that would surprise a terminal or a file system?
pub fn response(data: &[u8]) {
    heads_agree(data);
    for line in data.split(|byte| *byte == b'\n') {
        events_agree(line);
    }
    events_read_back(data);
    pages_agree(data);
    entries_read_back(data);
    answers_are_shown(data);
    requests_read_back(data);
}

fn heads_agree(data: &[u8]) {
    let end = Scan::new().look(data).ok().flatten();
    let head = &data[..end.unwrap_or(data.len())];
    let read = parse_response(head);
    if let Err(message) = &read {
        is_a_message(message);
    }
    assert_eq!(read.ok(), model_of_head(head));
}

fn model_of_head(head: &[u8]) -> Option<ResponseHead> {
    let text: String = head.iter().map(|byte| char::from(*byte)).collect();
    let lines: Vec<&str> = text.strip_suffix("\r\n\r\n")?.split("\r\n").collect();
    let is_bad = |character: char| character.is_ascii_control() && character != '\t';
    if lines.iter().any(|line| line.is_empty() || line.contains(is_bad)) {
        return None;
    }
    let mut words = lines[0].splitn(3, ' ');
    let is_old = match words.next()? {
        "HTTP/1.0" => true,
        "HTTP/1.1" => false,
        _ => return None,
    };
    let code = words.next()?;
    let status = (100..600).find(|status: &u16| status.to_string() == code && *status != 101)?;
    let mut headers = Vec::new();
    for line in &lines[1..] {
        let (name, value) = line.split_once(':')?;
        let value = value.trim_matches([' ', '\t']);
        let value = value.chars().map(|shown| if shown.is_ascii() { shown } else { '?' });
        headers.push((name.to_owned(), value.collect::<String>()));
    }
    if !headers.iter().all(|(name, _)| is_token(name)) {
        return None;
    }
    let all = |name: &str| -> Vec<String> {
        let named = headers.iter().filter(|(other, _)| other.to_ascii_lowercase() == name);
        named.map(|(_, value)| value.to_ascii_lowercase()).collect()
    };
    let said = model_of_framing(is_old, &all("content-length"), &all("transfer-encoding"))?;
    let is_bodyless = code.starts_with('1') || status == 204;
    let framing = match said {
        _ if status == 304 => ResponseFraming::None,
        Framing::None | Framing::Length(0) if is_bodyless => ResponseFraming::None,
        _ if is_bodyless => return None,
        Framing::None => ResponseFraming::UntilClose,
        Framing::Length(length) => ResponseFraming::Length(length),
        Framing::Chunked => ResponseFraming::Chunked,
    };
    let options = all("connection").join(",");
    let is_closed = options.split(',').any(|option| option.trim() == "close");
    let close = is_old || is_closed || framing == ResponseFraming::UntilClose;
    Some(ResponseHead { status, headers, framing, close })
}

fn events_agree(line: &[u8]) {
    let mut bytes = line.to_vec();
    let read = read_event(&mut bytes);
    if let Err(message) = &read {
        is_a_message(message);
    }
    if let Ok(Event::Output { text, .. }) = &read {
        assert!(text.len() <= line.len());
    }
    if let Ok(Event::Exit(Ended { status, reason, .. })) = &read {
        let is_cut = |text: &String| text.capacity() <= REASON_MAX_BYTES;
        assert!(status.as_ref().is_none_or(is_cut) && reason.as_ref().is_none_or(is_cut));
    }
    // A field that nobody knows may hold what a tree cannot: 1e400, half a surrogate pair.
    let Ok(tree) = serde_json::from_slice::<Value>(line) else { return };
    if keys_are_unique(line) || read.is_ok() {
        assert_eq!(read.ok(), model_of_event(&tree));
    }
}

fn model_of_event(tree: &Value) -> Option<Event<'_>> {
    let text = |name: &str| match &tree[name] {
        Value::Null => Some(None),
        value => value.as_str().map(Some),
    };
    let kept = |name: &str| {
        let mut text = text(name)?.map(str::to_owned);
        while text.as_ref().is_some_and(|text| text.len() > REASON_MAX_BYTES) {
            text.as_mut().map(String::pop);
        }
        Some(text)
    };
    let signed = |name: &str| match &tree[name] {
        Value::Null => Some(None),
        value => value.as_i64().map(Some),
    };
    if !tree.is_object() {
        return None;
    }
    let stream = |name: &str| match name {
        "stdout" => Some(Stream::Stdout),
        "stderr" => Some(Stream::Stderr),
        _ => None,
    };
    match text("event")?? {
        "start" => Some(Event::Start { pid: tree["pid"].as_u64()? }),
        name @ ("stdout" | "stderr") => {
            let text = Cow::Borrowed(text("data")??);
            Some(Event::Output { stream: stream(name)?, text })
        }
        "truncated" => Some(Event::Truncated { stream: stream(text("stream")??)? }),
        "ping" => Some(Event::Ping),
        "exit" => Some(Event::Exit(Ended {
            exit_code: signed("exit_code")?,
            signal: signed("signal")?,
            timed_out: match &tree["timed_out"] {
                Value::Null => false,
                value => value.as_bool()?,
            },
            duration_ms: match &tree["duration_ms"] {
                Value::Null => 0,
                value => value.as_u64()?,
            },
            status: kept("status")?,
            reason: kept("reason")?,
        })),
        _ => Some(Event::Unknown),
    }
}

/// What the server writes says the same to the client.
fn events_read_back(data: &[u8]) {
    let reads_as = |line: &[u8], expected: Event<'_>| {
        let line = line.strip_suffix(b"\n").expect("a line ends");
        assert_eq!(read_event(&mut line.to_vec()), Ok(expected));
    };
    let mut numbers = Numbers(data);
    let stream = if numbers.flag() { Stream::Stdout } else { Stream::Stderr };
    let mut line = Vec::new();
    let mut decoder = Decoder::new();
    write_text(&mut line, stream, &mut decoder, data, true).expect("a vector takes everything");
    if !data.is_empty() {
        reads_as(&line, Event::Output { stream, text: String::from_utf8_lossy(data) });
    }
    line.clear();
    write_truncated(&mut line, stream).expect("a vector takes everything");
    reads_as(&line, Event::Truncated { stream });
    line.clear();
    write_ping(&mut line).expect("a vector takes everything");
    reads_as(&line, Event::Ping);
    line.clear();
    let pid = numbers.number() as u32;
    write_start(&mut line, pid).expect("a vector takes everything");
    reads_as(&line, Event::Start { pid: pid.into() });

    let mut optional = || numbers.flag().then(|| numbers.number() as i32);
    let (exit_code, signal) = (optional(), optional());
    let (timed_out, has_reason) = (numbers.flag(), numbers.flag());
    let duration_ms = numbers.number();
    let text = String::from_utf8_lossy(numbers.0);
    let reason = &text[..text.floor_char_boundary(REASON_MAX_BYTES)];
    let exit = Exit {
        exit_code,
        signal,
        timed_out,
        duration: Duration::from_millis(duration_ms),
        status: "signaled",
        reason: has_reason.then_some(&text),
        left_running: timed_out,
        killed_processes: duration_ms,
    };
    line.clear();
    write_exit(&mut line, &exit).expect("a vector takes everything");
    let ended = Ended {
        exit_code: exit_code.map(i64::from),
        signal: signal.map(i64::from),
        timed_out,
        duration_ms,
        status: Some("signaled".to_owned()),
        reason: has_reason.then(|| reason.to_owned()),
    };
    reads_as(&line, Event::Exit(ended));
}

type Page = (Vec<RemoteEntry>, Result<Option<String>, String>);

fn read_whole(reader: impl Read) -> Page {
    let mut entries = Vec::new();
    let next = read_page(reader, &mut |entry| {
        is_safe(&entry);
        entries.push(entry);
        Ok::<(), io::Error>(())
    });
    let next = next.map_err(|error| match error {
        PageError::Invalid(message) => message,
        other => panic!("{other}"),
    });
    (entries, next)
}

fn is_safe(entry: &RemoteEntry) {
    is_a_name(&entry.name);
    assert!(entry.path.starts_with('/') && !entry.path.contains('\0'));
    assert!(entry.path.len() <= PATH_MAX_BYTES);
    assert!(entry.mode.is_none_or(|mode| mode <= 0o7777));
}

fn is_a_name(name: &str) {
    assert!(!["", ".", ".."].contains(&name) && !name.contains(['/', '\0']));
    assert!(name.len() <= NAME_MAX_BYTES);
}

/// Reads a byte at a time.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        self.0.read(&mut buffer[..length])
    }
}

fn pages_agree(data: &[u8]) {
    let (entries, next) = read_whole(data);
    assert_eq!(read_whole(Slow(data)), (entries.clone(), next.clone()));
    match next {
        Err(message) => is_a_message(&message),
        Ok(next) => {
            next.iter().for_each(|next| is_a_name(next));
            if let Ok(tree) = serde_json::from_slice::<Value>(data) {
                assert_eq!(tree["next"].as_str(), next.as_deref());
                let listed = tree["entries"].as_array().expect("it has entries");
                assert_eq!(listed.len(), entries.len());
                for (told, entry) in listed.iter().zip(&entries) {
                    says(told, entry);
                }
            }
        }
    }
    match read_entry(data) {
        Err(message) => is_a_message(&message),
        Ok(entry) => {
            if entry.name != "/" || entry.path != "/" {
                is_safe(&entry);
                let page = [&b"{\"next\":null,\"entries\":["[..], data, b"]}"].concat();
                assert_eq!(read_whole(&page[..]), (vec![entry.clone()], Ok(None)));
            }
            if let Ok(tree) = serde_json::from_slice::<Value>(data) {
                says(&tree, &entry);
            }
        }
    }
}

/// The entry is what the tree says.
fn says(told: &Value, entry: &RemoteEntry) {
    assert_eq!(told["name"], entry.name);
    assert_eq!(told["path"], entry.path);
    assert_eq!(told["size"], entry.size);
    assert_eq!(told["mtime_ms"].as_i64(), entry.mtime_ms);
    let kind = match told["type"].as_str().expect("it has a type") {
        "file" => RemoteKind::File,
        "dir" => RemoteKind::Directory,
        "symlink" => RemoteKind::Symlink,
        _ => RemoteKind::Other,
    };
    assert_eq!(kind, entry.kind);
    let mode = told["mode"].as_str().filter(|mode| !mode.is_empty());
    assert_eq!(mode.map(|mode| u32::from_str_radix(mode, 8)), entry.mode.map(Ok));
}

/// What the server tells of a file is read as it was told, if its name can be one.
fn entries_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let st_mode = numbers.number() as u32;
    let kinds = [
        (Kind::File, RemoteKind::File),
        (Kind::Directory, RemoteKind::Directory),
        (Kind::Symlink, RemoteKind::Symlink),
    ];
    let (kind, expected) = kinds[usize::from(numbers.byte() % 3)];
    let size = numbers.number();
    let mtime_ms = numbers.flag().then(|| numbers.number() as i64);
    let name = String::from_utf8_lossy(numbers.0);
    let path = format!("/{name}");
    let entry = Entry { name: &name, path: &path, kind, size, mtime_ms, st_mode };
    let mut written = Vec::new();
    write_entry(&mut written, &entry).expect("a vector takes everything");
    let is_name = !["", ".", ".."].contains(&&*name) && !name.contains(['/', '\0']);
    let expected = RemoteEntry {
        name: name.clone().into_owned(),
        path: path.clone(),
        kind: expected,
        size,
        mtime_ms,
        mode: Some(st_mode & 0o7777),
    };
    let is_read = (is_name && name.len() <= NAME_MAX_BYTES).then_some(expected);
    assert_eq!(read_entry(&written).ok(), is_read);
}

fn answers_are_shown(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let line = shown(&text);
    let acts = |character: char| {
        character.is_control() || "\u{202a}\u{202e}\u{2028}\u{2066}\u{200b}".contains(character)
    };
    assert!(!line.contains(acts) && line.len() <= 10 * text.len());
    assert_eq!(shown(&line), line);
    let error = Value::Object([("error".to_owned(), Value::from(&*text))].into_iter().collect());
    for body in [data, error.to_string().as_bytes()] {
        let message = read_error(body);
        assert!(!message.contains(acts) && message.len() <= ERROR_MAX_BYTES + "…".len());
        assert!(!message.starts_with(' ') && !message.ends_with(' '));
    }
    let trimmed = line.trim();
    if line.len() <= ERROR_MAX_BYTES && text.trim().len() == text.len() {
        assert_eq!(read_error(error.to_string().as_bytes()), trimmed);
    }
    let protocol = read_protocol(data);
    if let Err(message) = &protocol {
        is_a_message(message);
    }
    if let (Ok(protocol), Ok(tree)) = (protocol, serde_json::from_slice::<Value>(data)) {
        let told = &tree["protocol"];
        assert_eq!(if told.is_null() { Some(1) } else { told.as_u64() }, Some(protocol));
    }
}

/// What the client asks for is what the server is asked.
fn requests_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let (is_list, has_more) = (numbers.flag(), numbers.flag());
    let timeout = Duration::new(numbers.number(), numbers.number() as u32 % 1_000_000_000);
    let text = String::from_utf8_lossy(numbers.0).replace('\0', "");
    let argv: Vec<OsString> = text.split(' ').map(OsString::from).collect();
    if text.is_empty() || argv[0].is_empty() {
        return;
    }
    let env = [(OsString::from("A"), OsString::from(&text))];
    let request = ExecRequest {
        cmd: if is_list { Cmd::Argv(&argv) } else { Cmd::Shell(&text) },
        cwd: has_more.then_some(&text),
        env: if has_more { &env } else { &[] },
        stdin: has_more.then_some(&text),
        timeout: has_more.then_some(timeout),
        tag: has_more.then_some("t"),
    };
    let mut body = Vec::new();
    write_exec(&mut body, &request).expect("a vector takes everything");
    let read = decode_exec(&body).expect("the server takes it");
    let script = ["/bin/sh".into(), "-c".into(), OsString::from(&text)];
    assert_eq!(read.argv, if is_list { &argv[..] } else { &script });
    assert_eq!(read.env, request.env);
    assert_eq!(read.cwd.as_deref(), request.cwd);
    assert_eq!(read.stdin.as_deref(), request.stdin.map(str::as_bytes));
    assert_eq!(read.tag.as_deref(), request.tag);
    assert_eq!(read.timeout.is_some(), has_more);
    // The server reads a float.
    let lost = read.timeout.map_or(0.0, |read| read.as_secs_f64() - timeout.as_secs_f64());
    assert!(lost.abs() <= 1e-9 + 1e-15 * timeout.as_secs_f64());
}
