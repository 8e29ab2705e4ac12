//! Names as clients see them: bytes that are no UTF-8 stand as `%XX`.

use super::{Inside, Root, RootError};
use crate::wire::http::target::{Plus, decode};

/// The name of an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// As it is shown and ordered. Bytes that are no UTF-8 stand as `%XX`, and then `%` as `%25`:
    /// decoded, it is the name.
    pub shown: String,
    /// The name itself where it is no UTF-8.
    raw: Option<Vec<u8>>,
}

impl Name {
    pub(super) fn new(raw: &[u8]) -> Name {
        if let Ok(text) = str::from_utf8(raw) {
            return Name { shown: text.to_owned(), raw: None };
        }
        let mut shown = String::new();
        for chunk in raw.utf8_chunks() {
            shown.push_str(&chunk.valid().replace('%', "%25"));
            for byte in chunk.invalid() {
                shown.push_str(&format!("%{byte:02X}"));
            }
        }
        Name { shown, raw: Some(raw.to_vec()) }
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.raw.as_deref().unwrap_or(self.shown.as_bytes())
    }
}

impl Root {
    /// Does `action` with a path of a client's. A list shows bytes that are no UTF-8 as `%XX`, so a
    /// path that is not there and has such is taken at its word once more, decoded.
    ///
    /// # Errors
    /// Those of [`Root::inside`] and of `action`.
    pub fn with_shown<T>(
        &self,
        path: &[u8],
        action: impl Fn(&Inside) -> Result<T, RootError>,
    ) -> Result<T, RootError> {
        let found = action(&self.inside(path)?);
        match (found, as_shown(path)) {
            (Err(RootError::NotFound), Some(raw)) => action(&self.inside(&raw)?),
            (found, _) => found,
        }
    }

    /// The place that a client means by a path that need not exist: as it is, or decoded where
    /// that is known and what it says is not. So a file is written where it was read, and a new one
    /// goes into the directory that is shown like this.
    ///
    /// # Errors
    /// Those of [`Root::inside`].
    pub fn place(&self, path: &[u8]) -> Result<Inside, RootError> {
        let inside = self.inside(path)?;
        let Some(raw) = as_shown(path).map(|raw| self.inside(&raw)).transpose()? else {
            return Ok(inside);
        };
        let is_there = |path: &Inside| self.metadata(path).is_ok();
        let has_place = |path: &Inside| path.split().is_some_and(|(parent, _)| is_there(&parent));
        let is_meant = match (is_there(&inside), is_there(&raw)) {
            (true, _) => false,
            (false, true) => true,
            (false, false) => !has_place(&inside) && has_place(&raw),
        };
        Ok(if is_meant { raw } else { inside })
    }
}

/// The bytes of a path whose names are shown as [`Name`] does; `None` if it shows none that are not
/// UTF-8.
pub(super) fn as_shown(path: &[u8]) -> Option<Vec<u8>> {
    let mut any = false;
    let names = path.split(|byte| *byte == b'/').map(|name| {
        let raw = name_as_shown(name);
        any |= raw.is_some();
        raw.unwrap_or_else(|| name.to_vec())
    });
    let raw = names.collect::<Vec<_>>().join(&b'/');
    any.then_some(raw)
}

/// As [`as_shown`], for one name.
pub(super) fn name_as_shown(name: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(name).ok().filter(|text| text.contains('%'))?;
    let raw = decode(text, Plus::Stays).ok()?;
    (str::from_utf8(&raw).is_err() && !raw.contains(&b'/')).then_some(raw)
}

/// A path from the root as it is shown: absolute, each name as [`Name`] shows it.
pub fn shown_path(path: &Inside) -> String {
    let names = path.as_bytes().split(|byte| *byte == b'/');
    let names: Vec<_> = names.map(|name| Name::new(name).shown).collect();
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_so_that_they_can_be_had_again() {
        let rows: [(&str, &[u8], &str); 6] = [
            ("ASCII", b"a.txt", "a.txt"),
            ("UTF-8", "h\u{e9}".as_bytes(), "h\u{e9}"),
            ("percent in text", b"50%25", "50%25"),
            ("no UTF-8", b"\xff\xfe", "%FF%FE"),
            ("percent in no text", b"5%\xff", "5%25%FF"),
            ("control bytes", b"a\r\nb\x1b", "a\r\nb\x1b"),
        ];
        for (name, raw, shown) in rows {
            let found = Name::new(raw);
            assert_eq!((&*found.shown, found.as_bytes()), (shown, raw), "{name}");
        }
    }

    #[test]
    fn only_shown_bytes_are_decoded_once_more() {
        let rows: [(&[u8], Option<&[u8]>); 9] = [
            (b"a", None),
            (b"a%41", None),
            (b"a%", None),
            (b"%C3%A9", None),
            (b"%FF", Some(b"\xff")),
            (b"d/5%25%FF", Some(b"d/5%\xff")),
            (b"50%/%FF/%41", Some(b"50%/\xff/%41")),
            (b"/%FF/", Some(b"/\xff/")),
            (b"a%2F%FF", None),
        ];
        for (path, expected) in rows {
            assert_eq!(as_shown(path).as_deref(), expected, "{path:?}");
        }
    }

    #[test]
    fn paths_are_shown_name_by_name() {
        let root = Root::open(std::path::Path::new("/")).expect("it is there");
        let rows: [(&[u8], &str); 4] =
            [(b"", "/"), (b"a//b", "/a/b"), (b"5%/\xff", "/5%/%FF"), (b"5%\xff", "/5%25%FF")];
        for (path, expected) in rows {
            let inside = root.inside(path).expect("it stays inside");
            assert_eq!(shown_path(&inside), expected);
        }
    }
}
