//! What does the head of a form's part say?

use super::multipart::{CRLF, MultipartError};
use super::parameters::{cut, decode_extended, decode_form, is_token, parameter};

/// What a part says of itself. The texts are the client's: they may hold anything, `/`, `..`,
/// control characters and NUL too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the form's field.
    pub name: String,
    /// Name of the file, if the field is one.
    pub filename: Option<String>,
}

/// What the lines of a head, each with its CRLF, say of their part.
pub(super) fn part(head: &[u8]) -> Result<Part, MultipartError> {
    let mut disposition = None;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(CRLF).unwrap_or(line);
        let error = |why| MultipartError::header("header of a part", line, why);
        if line.iter().any(|byte| *byte != b'\t' && byte.is_ascii_control()) {
            return Err(error("expected no control bytes"));
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        let (name, value) = line.split_at(colon);
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return Err(error("expected a name, ':' and a value, not folded"));
        }
        if name.eq_ignore_ascii_case(b"content-disposition") {
            let value = std::str::from_utf8(&value[1..]).map_err(|_| error("expected UTF-8"))?;
            let part = form_data(value).map_err(error)?;
            if disposition.replace(part).is_some() {
                return Err(error("given twice"));
            }
        }
    }
    let why = "a part without Content-Disposition: form-data; name=\"TEXT\"";
    disposition.ok_or_else(|| MultipartError::body(why))
}

/// The value of Content-Disposition.
fn form_data(value: &str) -> Result<Part, &'static str> {
    let (kind, mut rest) = cut(value);
    if !kind.eq_ignore_ascii_case("form-data") {
        return Err("expected form-data; name=\"TEXT\"");
    }
    let (mut name, mut filename, mut extended) = (None, None, None);
    while let Some((key, value)) = parameter(&mut rest)? {
        let known =
            [("name", &mut name), ("filename", &mut filename), ("filename*", &mut extended)];
        let slot = known.into_iter().find(|(known, _)| key.eq_ignore_ascii_case(known));
        if slot.is_some_and(|(_, slot)| slot.replace(value).is_some()) {
            return Err("name or filename is given twice");
        }
    }
    let name = name.ok_or("name is missing")?;
    let filename = match extended {
        Some(value) => Some(decode_extended(&value).ok_or("expected filename*=UTF-8''TEXT")?),
        None => filename.map(|filename| decode_form(&filename)),
    };
    Ok(Part { name: decode_form(&name), filename })
}

#[cfg(test)]
mod tests {
    use super::part;
    use crate::quote::quoted;

    /// The names, or what is wrong with a header.
    fn disposition(header: &[u8]) -> Result<(String, Option<String>), String> {
        let head = [header, b"\r\n"].concat();
        part(&head).map(|part| (part.name, part.filename)).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_read_as_every_client_writes_them() {
        let rows = [
            ("a field", r#"form-data; name="path""#, "path", None),
            ("any case", r#"Form-Data; NAME="path""#, "path", None),
            ("tokens", "form-data;name=path ; filename=a.txt;", "path", Some("a.txt")),
            ("empty", r#"form-data; name="f"; filename="""#, "f", Some("")),
            (
                "a browser",
                r#"form-data; name="f"; filename="é\ %22%0D%0a%25""#,
                "f",
                Some("é\\ \"\r\n%25"),
            ),
            ("Go, old curl", r#"form-data; name="f"; filename="a\"b\\c""#, "f", Some("a\"b\\c")),
            (
                "a path of Windows",
                r#"form-data; name="f"; filename="C:\dir\x""#,
                "f",
                Some("C:\\dir\\x"),
            ),
            ("a semicolon", r#"form-data; name="f"; filename="a;b=\"c""#, "f", Some("a;b=\"c")),
            (
                "extended wins",
                "form-data; name=f; filename*=utf-8'en'%e2%82%AC%20%22; filename=x",
                "f",
                Some("€ \""),
            ),
            ("others are ignored", "form-data; x=1; name=f; x=2; name*=y", "f", None),
        ];
        for (label, value, name, filename) in rows {
            let expected = Ok((name.to_owned(), filename.map(str::to_owned)));
            let header = format!("content-disposition: {value}");
            assert_eq!(disposition(header.as_bytes()), expected, "{label}");
        }
    }

    #[test]
    fn a_head_that_says_no_name_is_refused() {
        let parameter = "expected parameters ; name=token or ; name=\"text\"";
        let extended = "expected filename*=UTF-8''TEXT";
        let rows: [(&[u8], &str); 19] = [
            (b"form-data", "name is missing"),
            (b"form-data; filename=a", "name is missing"),
            (b"form-data; name*=UTF-8''a", "name is missing"),
            (b"attachment; name=a", "expected form-data; name=\"TEXT\""),
            (b"form-data; name=a; name=b", "name or filename is given twice"),
            (b"form-data; name=a; filename=b; Filename=b", "name or filename is given twice"),
            (b"form-data; name", parameter),
            (b"form-data; name=", parameter),
            (b"form-data; name =a", parameter),
            (b"form-data; name=a b", parameter),
            (b"form-data; name=\"a", parameter),
            (b"form-data; name=\"a\\\"", parameter),
            (b"form-data; name=\"a\"b", parameter),
            (b"form-data; name=a; filename*=b", extended),
            (b"form-data; name=a; filename*=latin1''b", extended),
            (b"form-data; name=a; filename*=UTF-8''%FF", extended),
            (b"form-data; name=a; filename*=UTF-8''%4", extended),
            (b"form-data; name=\"\xFF\"", "expected UTF-8"),
            (b"form-data; name=\"\x1B\"", "expected no control bytes"),
        ];
        for (value, why) in rows {
            let header = [b"Content-Disposition: ", value].concat();
            let shown = quoted(&String::from_utf8_lossy(&header));
            let expected = format!("invalid header of a part {shown}: {why}");
            assert_eq!(disposition(&header), Err(expected));
        }
        let line = "expected a name, ':' and a value, not folded";
        let twice =
            b"Content-Disposition: form-data; name=a\r\ncontent-disposition: form-data; name=a";
        let rows: [(&[u8], &str); 4] =
            [(b"a: b\r\n c", line), (b"a : b", line), (b"ab", line), (twice, "given twice")];
        for (head, why) in rows {
            let error = disposition(head).expect_err(why);
            assert!(error.ends_with(why), "{error}");
        }
    }
}
