//! `/api/files`: uploads as JSON, and how files, their modes, names and ranges are told.

use std::fmt;
use std::io::{self, Write};
use std::time::SystemTime;

use crate::wire::base64;
use crate::wire::http::target::{Component, encode};
use crate::wire::json_string::{unescape_in_place, write_string};

use super::{fields, invalid, moment, text};

/// A file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// Where, as it was sent: not empty, no NUL byte.
    pub path: String,
    /// What it will hold.
    pub content: Vec<u8>,
    /// Its permissions, at most 0o777; none if nothing was said.
    pub mode: Option<u32>,
}

/// Decodes the JSON body of an upload. The content is held once: its base64 is copied out of the
/// body and decoded in place.
///
/// An absent content is refused: it is rather a misspelt field than an empty file.
///
/// # Errors
/// The message of the answer with status 400. It never shows what stands in `content`.
pub fn decode_upload(body: &[u8]) -> Result<Upload, String> {
    let [path, content, mode] = fields(body, ["path", "content", "mode"])?;
    let path = text("path", path)?.filter(|path| !path.is_empty());
    let path = path.ok_or("Missing 'path' field")?;
    let mode = text("mode", mode)?.map(|mode| parse_mode(&mode));
    let content = content.ok_or("Missing 'content' field")?.get().as_bytes();
    let [b'"', content @ .., b'"'] = content else {
        return Err(invalid("content", "expected a string"));
    };
    let mut content = content.to_vec();
    let wrong = |error: &dyn fmt::Display| format!("Invalid base64 content: {error}");
    let length = unescape_in_place(&mut content).map_err(|error| wrong(&error))?;
    content.truncate(length);
    base64::decode_in_place(&mut content).map_err(|error| wrong(&error))?;
    Ok(Upload { path, content, mode })
}

/// Permissions of a file when nothing usable was said.
const MODE_DEFAULT: u32 = 0o644;

/// The permissions that a text in octal stands for; 0o644 where it is empty, no octal number, or
/// above 0o777.
pub fn parse_mode(text: &str) -> u32 {
    // `from_str_radix` would take a sign.
    let is_octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    mode.unwrap_or(MODE_DEFAULT)
}

/// Shows the mode of stat(2) as Go's `FileMode.String` does: `-rw-r--r--`, `drwxr-xr-x`,
/// `Lrwxrwxrwx`, `dtrwxrwxrwx`. Unlike ls(1), set-user-ID, set-group-ID and sticky are letters of
/// their own in front of the nine, and a character device is `Dc`.
#[derive(Clone, Copy, Debug)]
pub struct GoFileMode(pub u32);

impl fmt::Display for GoFileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.0;
        // Types of inode(7), in the four bits above the permissions.
        let (kind, is_character) = match mode >> 12 & 0o17 {
            0o01 => ("p", false),
            0o02 => ("D", true),
            0o04 => ("d", false),
            0o06 => ("D", false),
            0o12 => ("L", false),
            0o14 => ("S", false),
            _ => ("", false),
        };
        let flags = [
            ("u", mode & 0o4000 != 0),
            ("g", mode & 0o2000 != 0),
            ("c", is_character),
            ("t", mode & 0o1000 != 0),
        ];
        f.write_str(kind)?;
        for (letter, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            f.write_str(letter)?;
        }
        if kind.is_empty() && flags.iter().all(|(_, is_set)| !is_set) {
            f.write_str("-")?;
        }
        for (place, letter) in ["r", "w", "x"].iter().cycle().take(9).enumerate() {
            f.write_str(if mode & (0o400 >> place) != 0 { letter } else { "-" })?;
        }
        Ok(())
    }
}

/// What is told of a file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its name in a list, its path from the workspace after an upload.
    pub name: &'a str,
    /// Its length in bytes.
    pub size: u64,
    /// Its type and permissions, as stat(2) gives them.
    pub st_mode: u32,
    /// When its content was last changed.
    pub modified: SystemTime,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Writes the answer to an upload.
///
/// # Errors
/// As the writer.
pub fn write_uploaded(out: &mut dyn Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { name, size, st_mode, modified, .. } = *entry;
    out.write_all(b"{\"path\":")?;
    write_string(out, name)?;
    let (mode, modified) = (GoFileMode(st_mode), moment(modified));
    write!(out, r#","size":{size},"mode":"{mode}","modified":"{modified}"}}"#)
}

/// Writes one entry of a list.
///
/// # Errors
/// As the writer.
pub fn write_list_entry(out: &mut dyn Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { name, size, st_mode, modified, is_dir } = *entry;
    out.write_all(b"{\"name\":")?;
    write_string(out, name)?;
    let (mode, modified) = (GoFileMode(st_mode), moment(modified));
    write!(out, r#","size":{size},"modified":"{modified}","mode":"{mode}","is_dir":{is_dir}}}"#)
}

/// The types that Go knows by itself; those of the system's own tables differ between machines.
const CONTENT_TYPES: [(&str, &str); 16] = [
    ("avif", "image/avif"),
    ("css", "text/css; charset=utf-8"),
    ("gif", "image/gif"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("wasm", "application/wasm"),
    ("webp", "image/webp"),
    ("xml", "text/xml; charset=utf-8"),
];

/// The Content-Type of a file by the extension of its name, in any case.
pub fn content_type(name: &str) -> &'static str {
    let file = name.rsplit('/').next().unwrap_or(name);
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    let known = CONTENT_TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension));
    known.map_or("application/octet-stream", |(_, content_type)| content_type)
}

/// The Content-Disposition of a download, printable ASCII whatever the name holds.
///
/// Readers do not agree on how a quoted text escapes, so in it `_` stands for every quote,
/// backslash, control and non-ASCII character; then the name follows as it is in `filename*`
/// (RFC 8187, RFC 6266 section 4.3).
pub fn disposition(name: &str) -> String {
    let is_plain = |character| matches!(character, ' '..='~') && !matches!(character, '"' | '\\');
    let plain = name.replace(|character| !is_plain(character), "_");
    let mut value = format!("attachment; filename=\"{plain}\"");
    if plain != name {
        value += "; filename*=UTF-8''";
        value += &encode(name.as_bytes(), Component::Query);
    }
    value
}

/// Which bytes of a file a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// All of them: there is no range, or none that runcap answers with a part.
    Whole,
    /// Those from `first` to `last`, both included and both in the file.
    Part {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte.
        last: u64,
    },
    /// None that the file has: status 416.
    Unsatisfiable,
}

/// Reads the value of a Range header for a file of `size` bytes, RFC 9110 section 14.1.2.
///
/// Several ranges, another unit and what is no range are ignored, as section 14.2 lets a server do.
pub fn range(value: Option<&str>, size: u64) -> Range {
    wanted(value, size).unwrap_or(Range::Whole)
}

/// None for what is ignored.
fn wanted(value: Option<&str>, size: u64) -> Option<Range> {
    let (unit, set) = value?.split_once('=')?;
    let (first, last) = set.split_once('-').filter(|_| unit.eq_ignore_ascii_case("bytes"))?;
    if first.is_empty() {
        return match position(last)? {
            0 => Some(Range::Unsatisfiable),
            // An empty file is shorter than any suffix, and so wanted whole.
            _ if size == 0 => None,
            suffix => Some(Range::Part { first: size.saturating_sub(suffix), last: size - 1 }),
        };
    }
    let first = position(first)?;
    let last = if last.is_empty() { u64::MAX } else { position(last)? };
    if last < first {
        return None;
    }
    Some(if first < size {
        Range::Part { first, last: last.min(size - 1) }
    } else {
        Range::Unsatisfiable
    })
}

/// A number of digits only; one that does not fit is larger than any file.
fn position(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn uploads_are_read() {
        let upload = |path: &str, content: &[u8], mode| {
            Ok(Upload { path: path.to_owned(), content: content.to_vec(), mode })
        };
        let rows = [
            ("plain", r#"{"path":"a/b","content":"eHl6"}"#, upload("a/b", b"xyz", None)),
            ("empty", r#"{"path":"a","content":""}"#, upload("a", b"", None)),
            ("mode", r#"{"path":"a","content":"","mode":"0755"}"#, upload("a", b"", Some(0o755))),
            ("no mode", r#"{"path":"a","content":"","mode":""}"#, upload("a", b"", Some(0o644))),
            ("null mode", r#"{"path":"a","content":"","mode":null}"#, upload("a", b"", None)),
            (
                "escapes",
                r#"{"path":"\u0061","content":"\u0065A=\u003d","x":[]}"#,
                upload("a", b"x", None),
            ),
        ];
        for (name, body, expected) in rows {
            assert_eq!(decode_upload(body.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_upload_is_named() {
        let rows = [
            ("no object", "s3cret", "expected a JSON object"),
            ("no path", r#"{"content":""}"#, "Missing 'path' field"),
            ("null path", r#"{"path":null,"content":""}"#, "Missing 'path' field"),
            ("empty path", r#"{"path":"","content":""}"#, "Missing 'path' field"),
            ("number", r#"{"path":1,"content":""}"#, "field 'path': invalid value 1"),
            ("NUL", r#"{"path":"a\u0000","content":""}"#, "field 'path': the value holds a NUL"),
            ("no content", r#"{"path":"a"}"#, "Missing 'content' field"),
            ("null content", r#"{"path":"a","content":null}"#, "Missing 'content' field"),
            ("array", r#"{"path":"a","content":["s3cret"]}"#, "field 'content': expected a string"),
            ("symbol", r#"{"path":"a","content":"***"}"#, "Invalid base64 content: "),
            ("length", r#"{"path":"a","content":"s3cret"}"#, "Invalid base64 content: "),
            ("surrogate", r#"{"path":"a","content":"\ud800"}"#, "Invalid base64 content: "),
            ("mode", r#"{"path":"a","content":"","mode":493}"#, "field 'mode': invalid value 493"),
            ("twice", r#"{"path":"a","content":"","path":"b"}"#, "field 'path' is given twice"),
        ];
        for (name, body, expected) in rows {
            let message = decode_upload(body.as_bytes()).expect_err(name);
            assert!(message.contains(expected), "{name}: {message}");
            assert!(!message.contains("s3cret"), "{name}: {message}");
        }
    }

    #[test]
    fn modes_are_octal_or_the_default() {
        let rows = [
            ("usual", "0755", 0o755),
            ("no leading zero", "600", 0o600),
            ("none", "0", 0),
            ("all", "777", 0o777),
            ("many zeros", "0000000000000000000000000000000644", 0o644),
            ("empty", "", 0o644),
            ("too large", "1000", 0o644),
            ("sticky", "1777", 0o644),
            ("no octal", "0758", 0o644),
            ("prefix", "0o755", 0o644),
            ("plus", "+755", 0o644),
            ("minus", "-1", 0o644),
            ("space", " 755", 0o644),
            ("huge", "77777777777777777777777", 0o644),
        ];
        for (name, text, expected) in rows {
            assert_eq!(parse_mode(text), expected, "{name}");
        }
    }

    #[test]
    fn modes_are_shown_as_go_shows_them() {
        let rows = [
            ("file", 0o100_644, "-rw-r--r--"),
            ("program", 0o100_755, "-rwxr-xr-x"),
            ("nothing", 0o100_000, "----------"),
            ("directory", 0o040_755, "drwxr-xr-x"),
            ("sticky directory", 0o041_777, "dtrwxrwxrwx"),
            ("set-group-ID directory", 0o042_775, "dgrwxrwxr-x"),
            ("link", 0o120_777, "Lrwxrwxrwx"),
            ("set-user-ID", 0o104_755, "urwxr-xr-x"),
            ("all flags", 0o107_777, "ugtrwxrwxrwx"),
            ("block device", 0o060_660, "Drw-rw----"),
            ("character device", 0o020_666, "Dcrw-rw-rw-"),
            ("all flags of one", 0o027_666, "Dugctrw-rw-rw-"),
            ("FIFO", 0o010_644, "prw-r--r--"),
            ("socket", 0o140_755, "Srwxr-xr-x"),
            ("no type", 0o644, "-rw-r--r--"),
        ];
        for (name, mode, expected) in rows {
            assert_eq!(GoFileMode(mode).to_string(), expected, "{name}");
        }
    }

    #[test]
    fn entries_are_written() {
        let modified = UNIX_EPOCH + Duration::from_nanos(1_000_000_120);
        let entry = Entry { name: "a\"é", size: 7, st_mode: 0o040_700, modified, is_dir: true };
        let mut out = Vec::new();
        write_uploaded(&mut out, &entry).expect("a vector takes everything");
        out.push(b'\n');
        write_list_entry(&mut out, &entry).expect("a vector takes everything");
        let expected = concat!(
            r#"{"path":"a\"é","size":7,"mode":"drwx------","#,
            r#""modified":"1970-01-01T00:00:01.00000012Z"}"#,
            "\n",
            r#"{"name":"a\"é","size":7,"modified":"1970-01-01T00:00:01.00000012Z","#,
            r#""mode":"drwx------","is_dir":true}"#
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn types_follow_the_extension() {
        let rows = [
            ("html", "index.html", "text/html; charset=utf-8"),
            ("upper case", "A.JPG", "image/jpeg"),
            ("the last one", "a.json.gz", "application/octet-stream"),
            ("text is not built in", "a.txt", "application/octet-stream"),
            ("none", "json", "application/octet-stream"),
            ("dot at the end", "json.", "application/octet-stream"),
            ("of a directory", "a.json/b", "application/octet-stream"),
            ("nothing but it", ".png", "image/png"),
            ("empty", "", "application/octet-stream"),
        ];
        for (name, file, expected) in rows {
            assert_eq!(content_type(file), expected, "{name}");
        }
    }

    #[test]
    fn fa18_names_cannot_leave_their_header() {
        let rows = [
            ("plain", "a b;%41'.txt", r#"attachment; filename="a b;%41'.txt""#),
            ("accent", "é", r#"attachment; filename="_"; filename*=UTF-8''%C3%A9"#),
            ("quote", "a\"b", r#"attachment; filename="a_b"; filename*=UTF-8''a%22b"#),
            ("backslash", "a\\", r#"attachment; filename="a_"; filename*=UTF-8''a%5C"#),
            (
                "line end",
                "a\r\nX-Evil: 1",
                r#"attachment; filename="a__X-Evil: 1"; filename*=UTF-8''a%0D%0AX-Evil%3A%201"#,
            ),
            ("delete", "\u{7f}", r#"attachment; filename="_"; filename*=UTF-8''%7F"#),
            ("empty", "", r#"attachment; filename="""#),
        ];
        for (name, file, expected) in rows {
            assert_eq!(disposition(file), expected, "{name}");
        }
    }

    #[test]
    fn fa10_ranges_end_within_the_file() {
        use Range::{Unsatisfiable, Whole};
        let part = |first, last| Range::Part { first, last };
        let rows = [
            ("none", None, 10, Whole),
            ("first byte", Some("bytes=0-0"), 10, part(0, 0)),
            ("last byte", Some("bytes=9-9"), 10, part(9, 9)),
            ("inside", Some("bytes=2-4"), 10, part(2, 4)),
            ("open", Some("bytes=3-"), 10, part(3, 9)),
            ("all of it", Some("bytes=0-"), 10, part(0, 9)),
            ("at the end", Some("bytes=10-"), 10, Unsatisfiable),
            ("past the end", Some("bytes=10-20"), 10, Unsatisfiable),
            ("across the end", Some("bytes=5-20"), 10, part(5, 9)),
            ("reversed", Some("bytes=5-2"), 10, Whole),
            ("reversed past the end", Some("bytes=99999999999999999999-12"), 10, Whole),
            ("no suffix", Some("bytes=-0"), 10, Unsatisfiable),
            ("suffix", Some("bytes=-3"), 10, part(7, 9)),
            ("suffix longer than the file", Some("bytes=-100"), 10, part(0, 9)),
            ("suffix past 64 bits", Some("bytes=-18446744073709551616"), 10, part(0, 9)),
            ("end at 64 bits", Some("bytes=0-18446744073709551615"), 10, part(0, 9)),
            ("end past 64 bits", Some("bytes=1-18446744073709551616"), 10, part(1, 9)),
            ("start past 64 bits", Some("bytes=18446744073709551616-"), 10, Unsatisfiable),
            ("largest file", Some("bytes=0-"), u64::MAX, part(0, u64::MAX - 1)),
            ("several", Some("bytes=0-4,6-8"), 10, Whole),
            ("word", Some("bytes=abc"), 10, Whole),
            ("dash only", Some("bytes=-"), 10, Whole),
            ("nothing", Some("bytes="), 10, Whole),
            ("sign", Some("bytes=+1-2"), 10, Whole),
            ("negative", Some("bytes=--1"), 10, Whole),
            ("space", Some("bytes= 0-1"), 10, Whole),
            ("other unit", Some("bits=0-1"), 10, Whole),
            ("unit in capitals", Some("Bytes=0-1"), 10, part(0, 1)),
            ("no unit", Some("0-1"), 10, Whole),
            ("empty file", Some("bytes=0-"), 0, Unsatisfiable),
            ("suffix of an empty file", Some("bytes=-1"), 0, Whole),
            ("no suffix of an empty file", Some("bytes=-0"), 0, Unsatisfiable),
        ];
        for (name, value, size, expected) in rows {
            assert_eq!(range(value, size), expected, "{name}");
        }
    }
}
