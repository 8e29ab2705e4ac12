//! What does a server list?
//!
//! A listing is read as it comes, one entry at a time: a page of 50,000 entries in memory would be
//! as large as a hostile server wants. What it may grow is bounded between two entries, not over
//! the page, since JSON has no place for a length.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};

use serde_core::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::entries::{EntryReader, RemoteEntry, message, missing, name, twice};
use crate::wire::value::{Scalar, wrong};

/// Bytes of JSON that one entry may take, with all that stands before it in its page.
pub const ENTRY_MAX_BYTES: usize = 128 << 10;

/// Entries of a page at most, as many as a server gives.
pub const ENTRIES_MAX: usize = 50_000;

/// Why a page was not read to its end.
#[derive(Debug)]
pub enum PageError<E> {
    /// It is no page: one line, bounded and without a control character.
    Invalid(String),
    /// The reader failed.
    Read(io::Error),
    /// The caller's function ended it.
    Each(E),
}

impl<E: fmt::Display> fmt::Display for PageError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Invalid(message) => f.write_str(message),
            PageError::Read(error) => error.fmt(f),
            PageError::Each(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for PageError<E> {}

/// Reads the body of `/v1/files/list` to the reader's end, and gives each entry to `each` as soon
/// as it is read. Returns `next`, the name after which the next page begins, if there is one.
///
/// It holds one entry and a buffer, whatever the server sends. That the pages come to an end, no
/// single page can tell: a `next` that does not change is the caller's to refuse.
///
/// # Errors
/// As [`read_entry`](super::entries::read_entry) for any entry; more than [`ENTRIES_MAX`] of them
/// or [`ENTRY_MAX_BYTES`] for one; a page that says it is truncated and has no `next`; what the
/// reader or `each` returned. Entries before that were given to `each`.
pub fn read_page<E>(
    reader: impl Read,
    each: &mut dyn FnMut(RemoteEntry) -> Result<(), E>,
) -> Result<Option<String>, PageError<E>> {
    let left = Cell::new(ENTRY_MAX_BYTES);
    let mut failed = None;
    let mut take = |entry| {
        left.set(ENTRY_MAX_BYTES);
        each(entry).map_err(|error| failed = Some(error)).is_ok()
    };
    let reader = Bounded { reader: BufReader::new(reader), left: &left };
    let mut json = serde_json::Deserializer::from_reader(reader);
    let read = PageReader { take: &mut take }.deserialize(&mut json);
    let read = read.and_then(|next| json.end().map(|()| next));
    read.map_err(|error| {
        if let Some(error) = failed {
            return PageError::Each(error);
        }
        let message = match (error.is_io(), left.get()) {
            (true, 0) => format!("an entry has over {ENTRY_MAX_BYTES} bytes"),
            (true, _) => return PageError::Read(error.into()),
            (false, _) => message(&error),
        };
        PageError::Invalid(format!("invalid listing: {message}"))
    })
}

/// A reader that fails after so many bytes, of which somebody else can grant more.
struct Bounded<'a, R> {
    reader: BufReader<R>,
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let length = buffer.len().min(left);
        let count = self.reader.read(&mut buffer[..length])?;
        self.left.set(left - count);
        Ok(count)
    }
}

struct PageReader<'a> {
    /// False ends it.
    take: &'a mut dyn FnMut(RemoteEntry) -> bool,
}

impl<'de> DeserializeSeed<'de> for PageReader<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PageReader<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut entries, mut next, mut truncated) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let is_new = match key.as_str() {
                // Not read a second time: its entries would be given on.
                "entries" if entries.is_some() => false,
                "entries" => {
                    entries = Some(map.next_value_seed(EntriesReader { take: &mut *self.take })?);
                    true
                }
                "next" => next.replace(map.next_value::<Scalar>()?).is_none(),
                "truncated" => truncated.replace(map.next_value::<Scalar>()?).is_none(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    true
                }
            };
            if !is_new {
                return Err(twice(&key));
            }
        }
        entries.ok_or_else(|| missing("entries"))?;
        page_end(next, truncated).map_err(A::Error::custom)
    }
}

fn page_end(next: Option<Scalar>, truncated: Option<Scalar>) -> Result<Option<String>, String> {
    let next = match next {
        None | Some(Scalar::Null) => None,
        Some(Scalar::Text(next)) => Some(name(next)?),
        Some(other) => return Err(format!("field 'next': {}", wrong(&other, "a name or null"))),
    };
    match truncated {
        Some(Scalar::Bool(true)) if next.is_none() => {
            Err("it is truncated and has no 'next'".to_owned())
        }
        None | Some(Scalar::Bool(_)) => Ok(next),
        Some(other) => Err(format!("field 'truncated': {}", wrong(&other, "true or false"))),
    }
}

struct EntriesReader<'a> {
    take: &'a mut dyn FnMut(RemoteEntry) -> bool,
}

impl<'de> DeserializeSeed<'de> for EntriesReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EntriesReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut count = 0;
        while let Some(entry) = items.next_element_seed(EntryReader { is_listed: true })? {
            count += 1;
            if count > ENTRIES_MAX {
                return Err(A::Error::custom(format_args!("it has over {ENTRIES_MAX} entries")));
            }
            if !(self.take)(entry) {
                return Err(A::Error::custom("ended"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn json(name: &str) -> String {
        format!(r#"{{"name":"{name}","path":"/d/{name}","type":"file","size":1}}"#)
    }

    /// The names that were given on, and what came of the page.
    fn page(body: impl Read) -> (Vec<String>, Result<Option<String>, String>) {
        let mut names = Vec::new();
        let next = read_page(body, &mut |entry| {
            names.push(entry.name);
            Ok::<(), Infallible>(())
        });
        (names, next.map_err(|error| error.to_string()))
    }

    #[test]
    fn pages_are_read_with_their_keys_in_any_order() {
        let (a, b) = (json("a"), json("b"));
        let both = ["a", "b"].map(str::to_owned).to_vec();
        let rows = [
            (r#"{"entries":[],"truncated":false,"next":null}"#.to_owned(), vec![], None),
            (r#"{"entries":[]}"#.to_owned(), vec![], None),
            (
                format!(r#"{{"entries":[{a},{b}],"truncated":true,"next":"b"}}"#),
                both.clone(),
                Some("b"),
            ),
            (
                format!(r#" {{"next":"\u0062","x":[[{{}}]],"entries":[{a} , {b}]}} "#),
                both,
                Some("b"),
            ),
        ];
        for (body, names, next) in rows {
            let expected = (names, Ok(next.map(str::to_owned)));
            assert_eq!(page(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn what_is_no_page_is_refused_and_entries_before_it_are_given() {
        let (a, bad) = (json("a"), json(".."));
        let one = format!(r#""entries":[{a}]"#);
        let rows = [
            ("nothing", String::new(), 0, "EOF"),
            ("a list", "[]".to_owned(), 0, "invalid type: sequence, expected an object"),
            ("no entries", r#"{"next":null}"#.to_owned(), 0, "no field 'entries'"),
            ("null", r#"{"entries":null}"#.to_owned(), 0, "expected an array of entries"),
            ("cut", format!(r#"{{"entries":[{a},"#), 1, "EOF"),
            ("cut late", format!("{{{one}"), 1, "EOF"),
            ("bad name", format!(r#"{{"entries":[{a},{bad},{a}]}}"#), 1, "invalid name '..'"),
            ("entries twice", format!("{{{one},{one}}}"), 1, "field 'entries' is given twice"),
            (
                "next twice",
                format!(r#"{{{one},"next":null,"next":"a"}}"#),
                1,
                "'next' is given twice",
            ),
            ("next", format!(r#"{{{one},"next":1}}"#), 1, "field 'next': invalid value 1"),
            ("bad next", format!(r#"{{{one},"next":"a/b"}}"#), 1, "invalid name 'a/b'"),
            ("no next", format!(r#"{{{one},"truncated":true}}"#), 1, "truncated and has no 'next'"),
            ("truncated", format!(r#"{{{one},"truncated":1}}"#), 1, "'truncated': invalid value 1"),
            ("more", format!("{{{one}}}x"), 1, "trailing characters"),
        ];
        for (name, body, count, expected) in rows {
            let (names, next) = page(body.as_bytes());
            let message = next.expect_err(name);
            assert!(message.starts_with("invalid listing: "), "{name}: {message}");
            assert!(message.contains(expected), "{name}: {message}");
            assert_eq!(names.len(), count, "{name}");
        }
    }

    /// Each of these never ends: memory and time are bounded by what is refused.
    #[test]
    fn an_endless_page_is_ended() {
        let endless = |begin: &str, again: &str| {
            let again = again.to_owned().into_bytes();
            let mut ring = again.into_iter().cycle();
            let rest = std::iter::from_fn(move || ring.next());
            Bytes(begin.to_owned().into_bytes().into_iter().chain(rest))
        };
        let over = "an entry has over 131072 bytes";
        let entry = json("a") + ",";
        let rows = [
            ("blanks", endless("", " "), 0, over),
            ("name", endless(r#"{"entries":[{"name":""#, "n"), 0, over),
            ("key", endless("{\"", "k"), 0, over),
            ("unknown value", endless(r#"{"x":"#, "["), 0, over),
            ("unknown fields", endless("{", r#""x":1,"#), 0, over),
            ("number", endless(r#"{"next":"#, "1"), 0, over),
            ("entries", endless(r#"{"entries":["#, &entry), ENTRIES_MAX, "over 50000 entries"),
        ];
        for (name, body, count, expected) in rows {
            let (names, next) = page(body);
            let message = next.expect_err(name);
            assert!(message.contains(expected), "{name}: {message}");
            assert_eq!(names.len(), count, "{name}");
        }
    }

    struct Bytes<I>(I);

    impl<I: Iterator<Item = u8>> Read for Bytes<I> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let filled = buffer.iter_mut().zip(&mut self.0).map(|(to, byte)| *to = byte);
            Ok(filled.count())
        }
    }

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::ConnectionReset))
        }
    }

    #[test]
    fn the_reader_and_the_caller_can_end_a_page() {
        let body = format!(r#"{{"entries":[{},{}"#, json("a"), json("b"));
        let read = read_page(body.as_bytes().chain(Broken), &mut |_| Ok::<(), Infallible>(()));
        match read {
            Err(PageError::Read(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
            other => panic!("{other:?}"),
        }
        let mut count = 0;
        let read = read_page(body.as_bytes(), &mut |_| {
            count += 1;
            Err("enough")
        });
        assert!(matches!(read, Err(PageError::Each("enough"))), "{read:?}");
        assert_eq!(count, 1);
    }
}
