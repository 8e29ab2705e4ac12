//! How an offending value is shown in a message: quoted, bounded, on one line.

/// Characters of a value that a message shows at most.
const SHOWN_MAX_CHARS: usize = 64;

/// Renders an offending value for a message: in single quotes, at most [`SHOWN_MAX_CHARS`] of it
/// (then `…`), with everything a terminal would act on or hide written as an escape.
pub(crate) fn quoted(value: &str) -> String {
    let mut shown = String::from("'");
    let mut characters = value.chars();
    for character in characters.by_ref().take(SHOWN_MAX_CHARS) {
        match character {
            // Stands for itself between single quotes; `escape_debug` would escape it too.
            '"' => shown.push('"'),
            _ => shown.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown.push('\'');
    shown
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quoted_values_are_short_and_printable() {
        let longest = "a".repeat(64);
        let rows = [
            ("plain", "5x", "'5x'".to_owned()),
            ("empty", "", "''".to_owned()),
            ("quotes", "a'b\"c", r#"'a\'b"c'"#.to_owned()),
            ("control characters", "\n\0\u{1b}[2J", r"'\n\0\u{1b}[2J'".to_owned()),
            ("bidirectional override", "\u{202e}x", r"'\u{202e}x'".to_owned()),
            ("longest whole", &longest, format!("'{longest}'")),
            ("cut", &"a".repeat(65), format!("'{longest}…'")),
        ];
        for (name, value, expected) in rows {
            assert_eq!(quoted(value), expected, "{name}");
        }
    }
}
