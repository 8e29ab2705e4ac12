//! What serde_json found wrong with a body or a request, as a message and a place.

/// serde_json's message without the line and column it ends with.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Byte offset of a line and column, both counted from one, as serde_json counts them.
pub(super) fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let newlines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let line_start = match line.checked_sub(2) {
        Some(before) => newlines.map(|(at, _)| at + 1).nth(before).unwrap_or(bytes.len()),
        None => 0,
    };
    (line_start + column.saturating_sub(1)).min(bytes.len())
}
