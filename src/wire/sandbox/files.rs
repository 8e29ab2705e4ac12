//! What `/v1/files/*` tells of files.

use std::io::{self, Write};

use crate::wire::json_string::write_string;

/// What an entry is; everything that is neither a directory nor a link is a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file, or what is opened like one.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// One entry of a directory. The published client takes exactly these six keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its path from the root, which begins with `/`.
    pub path: &'a str,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// When its content changed, milliseconds since 1970; rounded down.
    pub mtime_ms: Option<i64>,
    /// Its `st_mode`, of which the low twelve bits are told.
    pub st_mode: u32,
}

/// Writes an entry as JSON.
///
/// # Errors
/// As the writer.
pub fn write_entry(out: &mut dyn Write, entry: &Entry<'_>) -> io::Result<()> {
    out.write_all(b"{\"name\":")?;
    write_string(out, entry.name)?;
    out.write_all(b",\"path\":")?;
    write_string(out, entry.path)?;
    let kind = match entry.kind {
        Kind::File => "file",
        Kind::Directory => "dir",
        Kind::Symlink => "symlink",
    };
    write!(out, ",\"type\":\"{kind}\",\"size\":{},\"mtime_ms\":", entry.size)?;
    match entry.mtime_ms {
        Some(mtime_ms) => write!(out, "{mtime_ms}")?,
        None => out.write_all(b"null")?,
    }
    write!(out, ",\"mode\":\"{:o}\"}}", entry.st_mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_exactly_the_keys_that_the_client_takes() {
        let entry = Entry {
            name: "a\"\u{2028}",
            path: "/d/a\"\u{2028}",
            kind: Kind::File,
            size: u64::MAX,
            mtime_ms: Some(-1),
            st_mode: 0o104_755,
        };
        let written = |entry: &Entry<'_>| {
            let mut out = Vec::new();
            write_entry(&mut out, entry).expect("a vector takes everything");
            String::from_utf8(out).expect("JSON is text")
        };
        let expected = concat!(
            r#"{"name":"a\"\u2028","path":"/d/a\"\u2028","type":"file","#,
            r#""size":18446744073709551615,"mtime_ms":-1,"mode":"4755"}"#
        );
        assert_eq!(written(&entry), expected);
        let link = Entry { kind: Kind::Symlink, mtime_ms: None, st_mode: 0o120_000, ..entry };
        let text = written(&link);
        assert!(text.ends_with(r#","mtime_ms":null,"mode":"0"}"#), "{text}");
        assert!(text.contains(r#""type":"symlink""#), "{text}");
    }
}
