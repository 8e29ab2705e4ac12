//! How many bytes does a size such as `4M` stand for?

use std::fmt;

use crate::quote::quoted;

/// Why a text is not a size. The message names the text and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    /// The text, quoted for a message.
    value: String,
    kind: SizeErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SizeErrorKind {
    Malformed,
    /// `KB` and its like: 1000 to some, 1024 to others. Holds what to write instead.
    Ambiguous(String),
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid size {}: ", self.value)?;
        match &self.kind {
            SizeErrorKind::Malformed => f.write_str(
                "expected a whole number of bytes, or one followed by K, M, G or T (1024-based)",
            ),
            SizeErrorKind::Ambiguous(instead) => {
                write!(f, "use {instead} (1024-based) or a number of bytes")
            }
            SizeErrorKind::TooLarge => write!(f, "larger than the maximum of {} bytes", u64::MAX),
        }
    }
}

impl std::error::Error for SizeError {}

/// Parses a size into bytes: decimal digits, alone or followed by `K`, `M`, `G`, `T`, or by `KiB`,
/// `MiB`, `GiB`, `TiB`, all of them powers of 1024, in either case.
///
/// # Errors
/// Anything else: no digits, a sign, a fraction, a space, `KB` and its like (which mean 1000 to
/// some), and sizes over `u64::MAX`.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = |kind| SizeError { value: quoted(text), kind };
    let suffix = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let digits = &text[..text.len() - suffix.len()];
    let (shift, is_ambiguous) = parse_suffix(suffix)
        .filter(|_| !digits.is_empty())
        .ok_or_else(|| error(SizeErrorKind::Malformed))?;
    // Only digits are left, so all that can fail is the range.
    let size = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift));
    let size = size.ok_or_else(|| error(SizeErrorKind::TooLarge))?;
    if is_ambiguous {
        let letter = suffix[..1].to_ascii_uppercase();
        let instead = format!("{}{letter}", size >> shift);
        return Err(error(SizeErrorKind::Ambiguous(instead)));
    }
    Ok(size)
}

/// The power of two a suffix multiplies by, and whether others take it for a power of ten.
fn parse_suffix(suffix: &str) -> Option<(u32, bool)> {
    let [letter, rest @ ..] = suffix.as_bytes() else {
        return Some((0, false));
    };
    let shift = match letter.to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return None,
    };
    match rest.to_ascii_lowercase().as_slice() {
        b"" | b"ib" => Some((shift, false)),
        b"b" => Some((shift, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_are_parsed() {
        let rows = [
            ("zero", "0", 0),
            ("bytes", "4096", 4096),
            ("leading zeros", "00000000000000000000000000007", 7),
            ("upper case", "1K", 1 << 10),
            ("lower case", "4m", 4 << 20),
            ("giga", "3g", 3 << 30),
            ("tera", "2T", 2 << 40),
            ("spelled out", "10MiB", 10 << 20),
            ("spelled out, lower case", "10kib", 10 << 10),
            ("none of a unit", "0T", 0),
            ("largest", "18446744073709551615", u64::MAX),
            ("largest of a unit", "16777215T", 16_777_215 << 40),
        ];
        for (name, text, expected) in rows {
            assert_eq!(parse_size(text), Ok(expected), "{name}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_the_way_out() {
        let malformed =
            "expected a whole number of bytes, or one followed by K, M, G or T (1024-based)";
        let too_large = "larger than the maximum of 18446744073709551615 bytes";
        let long = "9".repeat(200);
        let cut = format!("{}…", "9".repeat(64));
        let rows = [
            ("empty", "", "", malformed),
            ("no digits", "M", "M", malformed),
            ("sign", "-1", "-1", malformed),
            ("plus", "+1", "+1", malformed),
            ("fraction", "1.5M", "1.5M", malformed),
            ("space", "4 M", "4 M", malformed),
            ("newline", "4\n", "4\\n", malformed),
            ("exponent", "1e6", "1e6", malformed),
            ("underscore", "1_000", "1_000", malformed),
            ("other digits", "٤", "٤", malformed),
            ("unknown unit", "4P", "4P", malformed),
            ("bytes spelled", "4B", "4B", malformed),
            ("not ascii after a unit", "4K€", "4K€", malformed),
            ("megabytes", "4MB", "4MB", "use 4M (1024-based) or a number of bytes"),
            ("kilobytes", "010kb", "010kb", "use 10K (1024-based) or a number of bytes"),
            ("one too many", "18446744073709551616", "18446744073709551616", too_large),
            ("one unit too many", "16777216T", "16777216T", too_large),
            ("too large to suggest", "16777216TB", "16777216TB", too_large),
            ("very long", &long, &cut, too_large),
        ];
        for (name, text, shown, reason) in rows {
            let error = parse_size(text).expect_err(name);
            assert_eq!(error.to_string(), format!("invalid size '{shown}': {reason}"), "{name}");
        }
    }
}
