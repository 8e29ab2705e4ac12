//! What does a server tell of one file?

use std::fmt;

use serde_core::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::answers::shown;
use crate::quote::quoted;
use crate::wire::syntax::without_place;
use crate::wire::value::{Scalar, wrong};

/// Bytes of the longest name. File systems take 255, of which each can take three as `%XX`.
pub const NAME_MAX_BYTES: usize = 4096;

/// Bytes of the longest path, `PATH_MAX` with three for each byte.
pub const PATH_MAX_BYTES: usize = 3 * 4096;

/// Bytes of serde_json's words that a message shows.
const MESSAGE_MAX_BYTES: usize = 256;

/// A file or a directory of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteEntry {
    /// A name within a directory: not empty, no `/` and no NUL byte in it, neither `.` nor `..`, at
    /// most [`NAME_MAX_BYTES`]. Only the root itself is called `/`, and is never listed. It may
    /// hold what a terminal acts on: print it by [`shown`].
    pub name: String,
    /// Where it is on the server: begins with `/`, has no NUL byte, at most [`PATH_MAX_BYTES`].
    /// The server's words and not checked further, so nothing to build a local path from.
    pub path: String,
    /// What it is.
    pub kind: RemoteKind,
    /// Bytes.
    pub size: u64,
    /// When its content changed, milliseconds since 1970; none where the server does not say.
    pub mtime_ms: Option<i64>,
    /// Permissions, the low twelve bits; none where the server does not say.
    pub mode: Option<u32>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteKind {
    /// A file, or something that is neither of the others.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A kind that a newer server may know.
    Other,
}

/// Reads the body of `/v1/files/stat`.
///
/// # Errors
/// One line, bounded and without a control character: not a JSON object, a field that is missing,
/// given twice or of the wrong type, a name or a path that cannot be one.
pub fn read_entry(body: &[u8]) -> Result<RemoteEntry, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = EntryReader { is_listed: false }.deserialize(&mut json);
    let read = read.and_then(|entry| json.end().map(|()| entry));
    read.map_err(|error| format!("invalid entry: {}", message(&error)))
}

/// Reads one entry, of a listing or on its own.
pub(super) struct EntryReader {
    pub(super) is_listed: bool,
}

impl<'de> DeserializeSeed<'de> for EntryReader {
    type Value = RemoteEntry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RemoteEntry, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryReader {
    type Value = RemoteEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RemoteEntry, A::Error> {
        const NAMES: [&str; 6] = ["name", "path", "type", "size", "mtime_ms", "mode"];
        let mut fields: [Option<Scalar>; NAMES.len()] = std::array::from_fn(|_| None);
        while let Some(key) = map.next_key::<String>()? {
            let Some(at) = NAMES.iter().position(|name| *name == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if fields[at].replace(map.next_value()?).is_some() {
                return Err(twice(&key));
            }
        }
        if let Some(at) = fields[..4].iter().position(Option::is_none) {
            return Err(missing(NAMES[at]));
        }
        entry(fields.map(|field| field.unwrap_or(Scalar::Null)), self.is_listed)
            .map_err(A::Error::custom)
    }
}

fn entry(fields: [Scalar; 6], is_listed: bool) -> Result<RemoteEntry, String> {
    let [name, path, kind, size, mtime_ms, mode] = fields;
    let path = self::path(text("path", path)?)?;
    let name = match text("name", name)? {
        root if root == "/" && path == "/" && !is_listed => root,
        name => self::name(name)?,
    };
    let kind = match text("type", kind)?.as_str() {
        "file" => RemoteKind::File,
        "dir" => RemoteKind::Directory,
        "symlink" => RemoteKind::Symlink,
        _ => RemoteKind::Other,
    };
    let size = match size {
        Scalar::Unsigned(size) => size,
        other => return Err(format!("field 'size': {}", wrong(&other, "a whole number"))),
    };
    let mtime = match mtime_ms {
        Scalar::Null => Some(None),
        Scalar::Unsigned(mtime_ms) => i64::try_from(mtime_ms).ok().map(Some),
        Scalar::Negative(mtime_ms) => Some(Some(mtime_ms)),
        _ => None,
    };
    let mtime_ms = mtime
        .ok_or_else(|| format!("field 'mtime_ms': {}", wrong(&mtime_ms, "an integer or null")))?;
    Ok(RemoteEntry { name, path, kind, size, mtime_ms, mode: self::mode(&mode)? })
}

fn text(field: &str, value: Scalar) -> Result<String, String> {
    match value {
        Scalar::Text(text) => Ok(text),
        other => Err(format!("field '{field}': {}", wrong(&other, "a string"))),
    }
}

pub(super) fn name(name: String) -> Result<String, String> {
    let problem = match name.as_str() {
        "" => "it is empty",
        "." | ".." => "it is no entry's own",
        _ if name.len() > NAME_MAX_BYTES => "it is longer than 4096 bytes",
        _ if name.contains('/') => "it holds '/'",
        _ if name.contains('\0') => "it holds a NUL byte",
        _ => return Ok(name),
    };
    Err(format!("invalid name {}: {problem}", quoted(&name)))
}

fn path(path: String) -> Result<String, String> {
    let problem = match path.as_str() {
        _ if path.len() > PATH_MAX_BYTES => "it is longer than 12288 bytes",
        _ if !path.starts_with('/') => "expected '/' at its begin",
        _ if path.contains('\0') => "it holds a NUL byte",
        _ => return Ok(path),
    };
    Err(format!("invalid path {}: {problem}", quoted(&path)))
}

fn mode(value: &Scalar) -> Result<Option<u32>, String> {
    let mode = match value {
        Scalar::Null => return Ok(None),
        Scalar::Text(text) if text.is_empty() => return Ok(None),
        // `from_str_radix` takes a sign too.
        Scalar::Text(text) if !text.starts_with('+') => u32::from_str_radix(text, 8).ok(),
        _ => None,
    };
    let mode = mode.filter(|mode| *mode <= 0o7777);
    let refuse = || format!("field 'mode': {}", wrong(value, "octal digits up to 7777"));
    mode.map(Some).ok_or_else(refuse)
}

pub(super) fn twice<E: Error>(name: &str) -> E {
    E::custom(format_args!("field '{name}' is given twice"))
}

pub(super) fn missing<E: Error>(name: &str) -> E {
    E::custom(format_args!("no field '{name}'"))
}

/// serde_json shows values whole, and they are the server's.
pub(super) fn message(error: &serde_json::Error) -> String {
    let mut message = shown(&without_place(error));
    message.truncate(message.floor_char_boundary(MESSAGE_MAX_BYTES));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sandbox::files::{Entry, Kind, write_entry};

    fn json(name: &str) -> String {
        let mut out = Vec::new();
        let path = format!("/d/{name}");
        let kind = Kind::File;
        let entry =
            Entry { name, path: &path, kind, size: 1, mtime_ms: Some(-1), st_mode: 0o104_755 };
        write_entry(&mut out, &entry).expect("a vector takes everything");
        String::from_utf8(out).expect("JSON is text")
    }

    fn file(name: &str) -> RemoteEntry {
        RemoteEntry {
            name: name.to_owned(),
            path: format!("/d/{name}"),
            kind: RemoteKind::File,
            size: 1,
            mtime_ms: Some(-1),
            mode: Some(0o4755),
        }
    }

    #[test]
    fn entries_are_read_as_the_server_writes_them() {
        for name in ["a", "a\"\u{2028}\n", "...", "%FF", " "] {
            assert_eq!(read_entry(json(name).as_bytes()), Ok(file(name)), "{name}");
        }
        let bare = RemoteEntry { kind: RemoteKind::Other, mtime_ms: None, mode: None, ..file("a") };
        let rows = [
            (r#"{"size":1,"type":"door","path":"/d/a","name":"a"}"#, &bare),
            (
                r#"{"x":[],"mode":"","mtime_ms":null,"size":1,"type":"","path":"/d/a","name":"a"}"#,
                &bare,
            ),
        ];
        for (body, expected) in rows {
            assert_eq!(read_entry(body.as_bytes()).as_ref(), Ok(expected), "{body}");
        }
        let root = r#"{"name":"/","path":"/","type":"dir","size":0,"mode":"755"}"#;
        let read = read_entry(root.as_bytes()).expect("it is the root");
        assert_eq!(
            (read.name.as_str(), read.kind, read.mode),
            ("/", RemoteKind::Directory, Some(0o755))
        );
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let long = "n".repeat(NAME_MAX_BYTES + 1);
        let megabytes = "n".repeat(5 << 20);
        let deep = format!("{}1{}", "[".repeat(9999), "]".repeat(9999));
        let rows = [
            ("name", r#""""#, "invalid name '': it is empty"),
            ("name", r#"".""#, "invalid name '.': it is no"),
            ("name", r#""..""#, "invalid name '..': it is no"),
            ("name", r#""/""#, "invalid name '/': it holds '/'"),
            ("name", r#""../a""#, "invalid name '../a': it holds '/'"),
            ("name", r#""a\u0000""#, r"invalid name 'a\0': it holds a NUL byte"),
            ("name", &format!("\"{long}\""), "longer than 4096 bytes"),
            ("name", &format!("\"{megabytes}\""), "longer than 4096 bytes"),
            ("name", r#""\ud800""#, "hex escape"),
            ("name", "1", "field 'name': invalid value 1: expected a string"),
            ("name", "null", "field 'name': invalid value null"),
            ("path", r#""a""#, "invalid path 'a': expected '/'"),
            ("path", r#""/\u0000""#, "NUL byte"),
            ("path", &format!("\"/{megabytes}\""), "longer than 12288 bytes"),
            ("type", "[]", "field 'type': invalid value an array"),
            ("size", "-1", "field 'size': invalid value -1"),
            ("size", "1.0", "field 'size': invalid value 1.0"),
            ("size", "18446744073709551616", "field 'size': invalid value 1.8446744073709552e19"),
            ("size", "1e999", "number out of range"),
            ("size", "\"1\"", "field 'size': invalid value '1'"),
            ("size", &deep, "field 'size': invalid value an array"),
            ("mtime_ms", "9223372036854775808", "field 'mtime_ms': invalid value 922337203685477"),
            ("mtime_ms", "0.5", "field 'mtime_ms': invalid value 0.5"),
            ("mode", "420", "field 'mode': invalid value 420"),
            ("mode", r#""+644""#, "field 'mode': invalid value '+644'"),
            ("mode", r#""648""#, "field 'mode': invalid value '648'"),
            ("mode", r#""10000""#, "field 'mode': invalid value '10000'"),
        ];
        for (field, value, expected) in rows {
            let fields =
                [("name", "\"a\""), ("path", "\"/a\""), ("type", "\"dir\""), ("size", "0")];
            let fields = fields.into_iter().filter(|(name, _)| *name != field);
            let fields: String =
                fields.map(|(name, value)| format!("\"{name}\":{value},")).collect();
            let body = format!("{{{fields}\"{field}\":{value}}}");
            let shown = &value[..value.len().min(50)];
            let message = read_entry(body.as_bytes()).expect_err(shown);
            assert!(message.starts_with("invalid entry: "), "{field} {shown}: {message}");
            assert!(message.contains(expected), "{field} {shown}: {message}");
            assert!(message.len() < 400, "{field} {shown}: {message}");
        }
        let whole = json("a");
        let rows = [
            ("nothing", String::new(), "EOF"),
            ("a list", "[]".to_owned(), "invalid type: sequence, expected an entry"),
            ("a text", format!("\"\u{1b}{megabytes}\""), "control character"),
            (
                "a long text",
                format!("\"\\u001b{megabytes}\""),
                r#"invalid type: string "\u{1b}nnn"#,
            ),
            ("no fields", "{}".to_owned(), "no field 'name'"),
            ("no size", r#"{"type":"","path":"/","name":"a"}"#.to_owned(), "no field 'size'"),
            ("twice", whole.replace("\"mode\"", "\"n\\u0061me\""), "field 'name' is given twice"),
            ("more", whole.clone() + "{}", "trailing characters"),
        ];
        for (name, body, expected) in rows {
            let message = read_entry(body.as_bytes()).expect_err(name);
            assert!(message.contains(expected) && message.len() < 400, "{name}: {message}");
        }
    }
}
