//! How are durations and moments read and written?

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::quote::quoted;

/// The longest duration read: that of Go, whose syntax it is (`2562047h47m16.854775807s`, 292
/// years). Short enough that it can be added to any clock that runcap reads.
pub const DURATION_MAX: Duration = Duration::from_nanos(i64::MAX as u64);

/// Digits of a fraction that are looked at. The rest stands for less than 1e-12 ns in any unit;
/// one digit more, and a fraction of an hour would not fit the arithmetic.
const FRACTION_DIGITS_MAX: u32 = 25;

/// What a number without a unit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// Seconds, as on a command line.
    Seconds,
    /// An error, but for `0`, as in Go.
    Refused,
}

/// Why a text or number is not a duration. The message names it and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurationError {
    /// The text, quoted for a message.
    value: String,
    kind: DurationErrorKind,
}

/// What is wrong with a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationErrorKind {
    /// Not numbers and units at all.
    Malformed,
    /// A number with nothing after it.
    MissingUnit,
    /// A number with something after it that is no unit.
    UnknownUnit,
    /// Below zero.
    Negative,
    /// Over [`DURATION_MAX`].
    TooLong,
}

impl DurationError {
    /// What is wrong, for callers that answer it in their own way.
    pub fn kind(&self) -> DurationErrorKind {
        self.kind
    }
}

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid duration {}: ", self.value)?;
        match self.kind {
            DurationErrorKind::Malformed => {
                f.write_str("expected numbers and units, such as 30s or 1m30s")
            }
            DurationErrorKind::MissingUnit => {
                f.write_str("add a unit (ns, us, ms, s, m or h), such as 30s")
            }
            DurationErrorKind::UnknownUnit => {
                f.write_str("unknown unit, use ns, us, ms, s, m or h")
            }
            DurationErrorKind::Negative => f.write_str("must not be negative"),
            DurationErrorKind::TooLong => {
                write!(f, "longer than the maximum of {}", HumanDuration(DURATION_MAX))
            }
        }
    }
}

impl std::error::Error for DurationError {}

/// Parses a duration in the syntax of Go's `time.ParseDuration`: numbers with a fraction or
/// without, each with a unit (`ns`, `us`, `µs`, `ms`, `s`, `m`, `h`), such as `1h2m3.5s`.
///
/// Exact to the nanosecond; of what is below one, nothing counts, and of a fraction the first 25
/// digits. Zero is a duration.
///
/// # Errors
/// Anything else: no text, a sign, a space, an exponent, an unknown unit, more than
/// [`DURATION_MAX`], and a number without a unit unless `bare` allows it.
pub fn parse_duration(text: &str, bare: Bare) -> Result<Duration, DurationError> {
    let error = |kind| DurationError { value: quoted(text), kind };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(error(DurationErrorKind::Negative));
    }
    if text.is_empty() {
        return Err(error(DurationErrorKind::Malformed));
    }
    let mut total_ns: u128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = parse_number(rest).map_err(error)?;
        let unit_end = after.find(is_of_number).unwrap_or(after.len());
        let unit_ns = match &after[..unit_end] {
            "ns" => 1,
            // The micro sign and the Greek letter: Go takes both, and they look the same.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" if bare == Bare::Seconds && rest.len() == text.len() && after.is_empty() => {
                1_000_000_000
            }
            "" if after.is_empty() => return Err(error(DurationErrorKind::MissingUnit)),
            "" => return Err(error(DurationErrorKind::Malformed)),
            _ => return Err(error(DurationErrorKind::UnknownUnit)),
        };
        total_ns += number.times(unit_ns);
        if total_ns > DURATION_MAX.as_nanos() {
            return Err(error(DurationErrorKind::TooLong));
        }
        rest = &after[unit_end..];
    }
    let total_ns = u64::try_from(total_ns).expect("the maximum fits 63 bits");
    Ok(Duration::from_nanos(total_ns))
}

/// A decimal number: `whole` and `fraction / 10^fraction_digits`.
struct Number {
    whole: u64,
    fraction: u128,
    fraction_digits: u32,
}

impl Number {
    /// Below 2^64 · 2^42 for the whole, and 10^25 · 2^42 < 2^126 before the division.
    fn times(&self, unit_ns: u64) -> u128 {
        let unit_ns = u128::from(unit_ns);
        u128::from(self.whole) * unit_ns
            + self.fraction * unit_ns / 10_u128.pow(self.fraction_digits)
    }
}

/// Parses the number that `text` begins with: digits, a dot and digits, either digits optional.
fn parse_number(text: &str) -> Result<(Number, &str), DurationErrorKind> {
    let is_digit = |character: char| character.is_ascii_digit();
    let after_whole = text.trim_start_matches(is_digit);
    let whole = &text[..text.len() - after_whole.len()];
    let after_dot = after_whole.strip_prefix('.');
    let after = after_dot.map_or(after_whole, |text| text.trim_start_matches(is_digit));
    let fraction = after_dot.map_or("", |text| &text[..text.len() - after.len()]);
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationErrorKind::Malformed);
    }
    let mut number = Number { whole: 0, fraction: 0, fraction_digits: 0 };
    if !whole.is_empty() {
        // Only digits, so all that can fail is the range.
        number.whole = whole.parse().map_err(|_| DurationErrorKind::TooLong)?;
    }
    for digit in fraction.bytes().take(FRACTION_DIGITS_MAX as usize) {
        number.fraction = number.fraction * 10 + u128::from(digit - b'0');
        number.fraction_digits += 1;
    }
    Ok((number, after))
}

fn is_of_number(character: char) -> bool {
    character == '.' || character.is_ascii_digit()
}

/// The duration of a number of seconds, rounded to the nearest nanosecond: a positive number below
/// half of one is zero.
///
/// # Errors
/// NaN, the infinities, negative numbers and more than [`DURATION_MAX`].
pub fn seconds_from_f64(seconds: f64) -> Result<Duration, DurationError> {
    let kind = match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= DURATION_MAX => return Ok(duration),
        _ if seconds.is_nan() => DurationErrorKind::Malformed,
        _ if seconds < 0.0 => DurationErrorKind::Negative,
        _ => DurationErrorKind::TooLong,
    };
    // Debug writes a large number with an exponent, Display with all its zeros.
    Err(DurationError { value: quoted(&format!("{seconds:?}")), kind })
}

/// Shows a moment as RFC 3339 in UTC with nine digits of a second, always 30 bytes:
/// `2026-11-30T19:16:54.123456789Z`. A moment before 1970 is shown as the first of 1970, one after
/// 9999 as the last of 9999.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339(pub SystemTime);

/// The last moment of the year 9999.
const MOMENT_MAX: Duration = Duration::new(253_402_300_799, 999_999_999);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_epoch = self.0.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let since_epoch = since_epoch.min(MOMENT_MAX);
        let (year, month, day) = civil_from_days(since_epoch.as_secs() / 86_400);
        let second = since_epoch.as_secs() % 86_400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let nanosecond = since_epoch.subsec_nanos();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        write!(f, ".{nanosecond:09}Z")
    }
}

/// Year, month and day of a number of days since 1970-01-01.
///
/// Counts from 0000-03-01, so that the day which only leap years have is the last of its year, and
/// months have a fixed place: from March on, month m begins on day (153 m + 2) / 5.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    // Takes out the leap days: each 4 years, but not each 100, but the last of the 400.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year;
    if month < 10 { (year, month + 3, day) } else { (year + 1, month - 9, day) }
}

/// Shows a duration as seconds with microseconds, always with a decimal point: JSON readers that
/// tell integers from floats get a float.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// Shows a duration as Go's `Duration.String` does: `0s`, `200µs`, `1.5s`, `1m30s`, `1h0m0s`.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.0.as_secs(), self.0.subsec_nanos());
        match (seconds, nanoseconds) {
            (0, 0) => f.write_str("0s"),
            (0, 1..1_000) => write!(f, "{nanoseconds}ns"),
            (0, 1_000..1_000_000) => write_decimal(f, nanoseconds.into(), 3, "µs"),
            (0, _) => write_decimal(f, nanoseconds.into(), 6, "ms"),
            _ => {
                let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                let rest_ns = seconds % 60 * 1_000_000_000 + u64::from(nanoseconds);
                write_decimal(f, rest_ns, 9, "s")
            }
        }
    }
}

/// Writes `value / 10^places` without trailing zeros, then the unit.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, places: usize, unit: &str) -> fmt::Result {
    let digits = format!("{value:0width$}", width = places + 1);
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    write!(f, "{whole}{dot}{fraction}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: &str = "2562047h47m16.854775807s";

    #[test]
    fn durations_are_parsed_exactly() {
        let rows = [
            ("zero", "0", 0),
            ("zero with a unit", "0s", 0),
            ("seconds", "30s", 30_000_000_000),
            ("several", "1m30s", 90_000_000_000),
            ("all the way", "1h2m3.5s", 3_723_500_000_000),
            ("any order, twice", "1s1h1s", 3_602_000_000_000),
            ("milliseconds", "500ms", 500_000_000),
            ("micro sign", "2\u{b5}s", 2_000),
            ("greek mu", "2\u{3bc}s", 2_000),
            ("ascii micro", "2us", 2_000),
            ("no whole", ".5s", 500_000_000),
            ("no fraction", "5.s", 5_000_000_000),
            ("fraction of a fraction", "1m.5s", 60_500_000_000),
            ("below a nanosecond", "1.9999999999s", 1_999_999_999),
            ("third of an hour", "0.333333333333333333333333333333h", 1_199_999_999_999),
            ("tenth of an hour", "0.1h", 360_000_000_000),
            ("long fraction", "0.00000000000000000000000000000000000000001s", 0),
            ("leading zeros", "00000000000000000000000000001ns", 1),
            ("longest", LONGEST, i64::MAX as u64),
            ("longest in one unit", "9223372036854775807ns", i64::MAX as u64),
        ];
        for (name, text, expected_ns) in rows {
            for bare in [Bare::Seconds, Bare::Refused] {
                let duration = parse_duration(text, bare).expect(name);
                assert_eq!(duration, Duration::from_nanos(expected_ns), "{name}");
            }
        }
    }

    #[test]
    fn bare_numbers_are_seconds_only_where_allowed() {
        let rows = [("whole", "30", 30_000), ("fraction", "1.5", 1_500), ("dot", ".25", 250)];
        for (name, text, expected_ms) in rows {
            let duration = parse_duration(text, Bare::Seconds).expect(name);
            assert_eq!(duration, Duration::from_millis(expected_ms), "{name}");
            let error = parse_duration(text, Bare::Refused).expect_err(name);
            assert_eq!(error.kind(), DurationErrorKind::MissingUnit, "{name}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        use DurationErrorKind::*;
        let rows = [
            ("empty", "", Malformed),
            ("negative", "-5s", Negative),
            ("plus", "+5s", Malformed),
            ("unit only", "s", Malformed),
            ("dot only", ".", Malformed),
            ("dot and unit", ".s", Malformed),
            ("two dots", "1.5.5s", Malformed),
            ("space before", " 5s", Malformed),
            ("space inside", "5 s", UnknownUnit),
            ("space after", "5s ", UnknownUnit),
            ("exponent", "1e3s", UnknownUnit),
            ("upper case", "5S", UnknownUnit),
            ("days", "1d", UnknownUnit),
            ("infinity", "inf", Malformed),
            ("not a number", "nan", Malformed),
            ("bare after a unit", "1m30", MissingUnit),
            ("sign inside", "1m-30s", UnknownUnit),
            ("other digits", "٣s", Malformed),
            ("one nanosecond too long", "9223372036854775808ns", TooLong),
            ("too long in all", "2562047h47m16.854775807s1ns", TooLong),
            ("past 64 bits", "99999999999999999999h", TooLong),
        ];
        for (name, text, kind) in rows {
            for bare in [Bare::Seconds, Bare::Refused] {
                let error = parse_duration(text, bare).expect_err(name);
                assert_eq!(error.kind(), kind, "{name}");
                assert!(error.to_string().starts_with("invalid duration '"), "{name}");
            }
        }
        let error = parse_duration("30", Bare::Refused).expect_err("no unit");
        assert_eq!(
            error.to_string(),
            "invalid duration '30': add a unit (ns, us, ms, s, m or h), such as 30s"
        );
    }

    #[test]
    fn seconds_are_taken_within_the_limit() {
        use DurationErrorKind::*;
        let rows = [
            ("zero", 0.0, Ok(0)),
            ("negative zero", -0.0, Ok(0)),
            ("fraction", 1.5, Ok(1_500_000_000)),
            ("tiny", 1e-300, Ok(0)),
            ("negative", -1.0, Err(Negative)),
            ("not a number", f64::NAN, Err(Malformed)),
            ("infinity", f64::INFINITY, Err(TooLong)),
            ("negative infinity", f64::NEG_INFINITY, Err(Negative)),
            ("over the limit", 9_223_372_037.0, Err(TooLong)),
            ("largest", f64::MAX, Err(TooLong)),
        ];
        for (name, seconds, expected) in rows {
            let result = seconds_from_f64(seconds).map_err(|error| error.kind());
            assert_eq!(result, expected.map(Duration::from_nanos), "{name}");
        }
    }

    #[test]
    fn moments_are_shown_in_utc() {
        let rows = [
            ("epoch", 0, 0, "1970-01-01T00:00:00.000000000Z"),
            ("nanoseconds", 1_796_066_214, 123_456_789, "2026-11-30T19:16:54.123456789Z"),
            ("leap day of 2000", 951_782_400, 1, "2000-02-29T00:00:00.000000001Z"),
            ("after it", 951_868_800, 0, "2000-03-01T00:00:00.000000000Z"),
            ("no leap day in 2100", 4_107_542_399, 0, "2100-02-28T23:59:59.000000000Z"),
            ("after it", 4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z"),
            ("end of a leap year", 1_735_689_599, 0, "2024-12-31T23:59:59.000000000Z"),
            ("end of 9999", 253_402_300_799, 999_999_999, "9999-12-31T23:59:59.999999999Z"),
            ("after 9999", 253_402_300_800, 0, "9999-12-31T23:59:59.999999999Z"),
        ];
        for (name, seconds, nanoseconds, expected) in rows {
            let moment = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
            assert_eq!(Rfc3339(moment).to_string(), expected, "{name}");
        }
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Rfc3339(before).to_string(), "1970-01-01T00:00:00.000000000Z");
    }

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        let rows = [
            ("zero", Duration::ZERO, "0s"),
            ("nanoseconds", Duration::from_nanos(999), "999ns"),
            ("microseconds", Duration::from_micros(200), "200µs"),
            ("fraction of a microsecond", Duration::from_nanos(1_100), "1.1µs"),
            ("milliseconds", Duration::from_millis(500), "500ms"),
            ("fraction of a millisecond", Duration::from_nanos(2_000_001), "2.000001ms"),
            ("seconds", Duration::from_secs(30), "30s"),
            ("fraction of a second", Duration::from_millis(1_500), "1.5s"),
            ("minutes", Duration::from_secs(90), "1m30s"),
            ("whole minutes", Duration::from_secs(60), "1m0s"),
            ("hours", Duration::from_secs(3600), "1h0m0s"),
            ("hours and a fraction", Duration::from_millis(3_600_050), "1h0m0.05s"),
            ("longest read", DURATION_MAX, LONGEST),
            ("longest of all", Duration::MAX, "5124095576030431h0m15.999999999s"),
        ];
        for (name, duration, expected) in rows {
            assert_eq!(HumanDuration(duration).to_string(), expected, "{name}");
        }
    }
}
