//! Where does one JSON value end in a stream of them?
//!
//! Only strings, brackets and the bytes between values are looked at; whether what stands inside
//! is right JSON is serde_json's to say. The loser was serde_json's own `StreamDeserializer`: it
//! reads a whole value into memory before anybody can say that it is too large.

use super::DEPTH_MAX;

/// What a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framed {
    /// The value goes on after these bytes.
    Incomplete,
    /// The value ends after this many bytes of all that were scanned.
    Complete(usize),
    /// No value can go on like this.
    Broken(Broken),
}

/// Why bytes cannot be a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// Where, in all bytes that were scanned.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Scans one value, which begins with the first byte given: skip white space before.
#[derive(Debug, Default)]
pub struct Framer {
    scanned: usize,
    place: Place,
    depth: usize,
    /// One bit a level, set for an object; levels past the width are only counted.
    objects: u128,
    too_deep: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    Inside,
    /// In a number, `true`, `false`, `null` or something that is none of them, at the top level.
    Scalar,
    String,
    Escape,
}

impl Framer {
    /// A framer before the first byte of a value.
    pub fn new() -> Framer {
        Framer::default()
    }

    /// Goes on with `bytes`, which follow those of the last call.
    pub fn scan(&mut self, bytes: &[u8]) -> Framed {
        let mut at = 0;
        while at < bytes.len() {
            if self.place == Place::String {
                let plain = bytes[at..].iter().take_while(|byte| is_plain(**byte)).count();
                at += plain;
                if at == bytes.len() {
                    break;
                }
            }
            match self.step(bytes[at]) {
                Step::Next => at += 1,
                Step::End => return Framed::Complete(self.scanned + at + 1),
                Step::Before => return Framed::Complete(self.scanned + at),
                Step::Broken(what) => {
                    return Framed::Broken(Broken { offset: self.scanned + at, what });
                }
            }
        }
        self.scanned += bytes.len();
        Framed::Incomplete
    }

    /// What the bytes scanned so far are when no more will come.
    pub fn finish(&self) -> Framed {
        let what = match self.place {
            Place::Scalar => return Framed::Complete(self.scanned),
            Place::Start => "no value",
            Place::String | Place::Escape => "the input ends inside a string",
            Place::Inside => "the input ends inside an array or an object",
        };
        Framed::Broken(Broken { offset: self.scanned, what })
    }

    /// Bytes scanned so far.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// Whether the value is nested deeper than [`DEPTH_MAX`].
    pub fn too_deep(&self) -> bool {
        self.too_deep
    }

    fn step(&mut self, byte: u8) -> Step {
        match (self.place, byte) {
            (Place::Escape, _) => self.go(Place::String),
            (Place::String, b'"') if self.depth == 0 => Step::End,
            (Place::String, b'"') => self.go(Place::Inside),
            (Place::String, b'\\') => self.go(Place::Escape),
            (Place::String, _) => Step::Broken("a control byte inside a string"),
            (Place::Scalar, b' ' | b'\t' | b'\r' | b'\n') => Step::Before,
            (Place::Scalar, b'{' | b'[' | b'"' | b'}' | b']' | b',' | b':') => Step::Before,
            (Place::Scalar, _) => Step::Next,
            (Place::Start | Place::Inside, b'"') => self.go(Place::String),
            (Place::Start | Place::Inside, b'{' | b'[') => self.open(byte == b'{'),
            (Place::Inside, b'}' | b']') => self.close(byte == b'}'),
            (Place::Inside, _) => Step::Next,
            (Place::Start, b'-' | b'0'..=b'9' | b'a'..=b'z') => self.go(Place::Scalar),
            (Place::Start, 0xEF) => Step::Broken("not JSON (a byte order mark does not belong)"),
            (Place::Start, _) => Step::Broken("not JSON"),
        }
    }

    fn go(&mut self, place: Place) -> Step {
        self.place = place;
        Step::Next
    }

    fn open(&mut self, object: bool) -> Step {
        if let Some(bit) = level(self.depth) {
            self.objects = self.objects & !bit | if object { bit } else { 0 };
        }
        self.depth += 1;
        self.too_deep |= self.depth > DEPTH_MAX;
        self.go(Place::Inside)
    }

    fn close(&mut self, object: bool) -> Step {
        self.depth -= 1;
        match level(self.depth) {
            Some(bit) if (self.objects & bit != 0) != object => {
                Step::Broken("a bracket that closes the other kind")
            }
            _ if self.depth == 0 => Step::End,
            _ => Step::Next,
        }
    }
}

enum Step {
    Next,
    /// The value ends with this byte.
    End,
    /// The value ended before this byte.
    Before,
    Broken(&'static str),
}

fn level(depth: usize) -> Option<u128> {
    u32::try_from(depth).ok().and_then(|depth| 1u128.checked_shl(depth))
}

fn is_plain(byte: u8) -> bool {
    !matches!(byte, b'"' | b'\\' | 0..0x20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_it_ends_however_it_is_cut() {
        let broken = |offset, what| Framed::Broken(Broken { offset, what });
        let rows = [
            ("object", r#"{"a":"}\"]"} x"#, Framed::Complete(12)),
            ("array", "[[1],2]]", Framed::Complete(7)),
            ("string", r#""a\\" "#, Framed::Complete(5)),
            ("scalar before space", "null {", Framed::Complete(4)),
            ("scalar before a bracket", "12{", Framed::Complete(2)),
            ("unfinished scalar", "12", Framed::Incomplete),
            ("unfinished object", r#"{"a":1"#, Framed::Incomplete),
            ("other bracket", "[1}", broken(2, "a bracket that closes the other kind")),
            ("closed before opened", "}", broken(0, "not JSON")),
            ("newline in a string", "\"a\n", broken(2, "a control byte inside a string")),
            ("comma between values", ",", broken(0, "not JSON")),
        ];
        for (name, text, expected) in rows {
            for cut in 0..=text.len() {
                let mut framer = Framer::new();
                let framed = match framer.scan(&text.as_bytes()[..cut]) {
                    Framed::Incomplete => framer.scan(&text.as_bytes()[cut..]),
                    framed => framed,
                };
                assert_eq!(framed, expected, "{name} cut at {cut}");
            }
        }
    }

    #[test]
    fn jr1_any_depth_is_framed_and_only_too_deep_is_said_so() {
        for (depth, too_deep) in [(127, false), (128, true), (100_000, true)] {
            let text = "[".repeat(depth) + &"]".repeat(depth);
            let mut framer = Framer::new();
            assert_eq!(framer.scan(text.as_bytes()), Framed::Complete(2 * depth));
            assert_eq!(framer.too_deep(), too_deep, "{depth}");
        }
    }
}
