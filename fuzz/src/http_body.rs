//! Bodies of HTTP requests, each against a model that has the whole body before it.

use runcap::wire::http::chunks::{Chunks, SIZE_LINE_MAX_BYTES, Step, TRAILERS_MAX_BYTES};
use runcap::wire::http::multipart::{self as form, Event, MultipartError, Parser, Part};

use super::{is_a_message, pieces};

/// How a body ended, with the bytes that are not its own.
#[derive(Debug, PartialEq)]
enum End {
    Ended(usize),
    Cut,
    Broken,
}

/// Chunked bodies.
pub fn chunks(data: &[u8]) {
    let expected = chunked(data);
    for take_max in [1, 3, usize::MAX] {
        for pieces in cuts(data) {
            assert_eq!(dechunk(&pieces, take_max), expected);
        }
    }
    let mut body = chunk(data);
    let length = body.len();
    body.extend_from_slice(data);
    for pieces in cuts(&body) {
        assert_eq!(dechunk(&pieces, usize::MAX), (data.to_vec(), End::Ended(body.len() - length)));
    }
    assert_eq!(dechunk(&[&body[..length - 1]], usize::MAX), (data.to_vec(), End::Cut));
}

fn cuts(data: &[u8]) -> [Vec<&[u8]>; 3] {
    [vec![data], pieces(data), data.chunks(1).collect()]
}

/// The data and the end, as the machine sees them.
fn dechunk(pieces: &[&[u8]], take_max: usize) -> (Vec<u8>, End) {
    let mut machine = Chunks::new();
    let mut data = Vec::new();
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    for piece in pieces {
        let mut input = *piece;
        loop {
            let count = match machine.step(input) {
                Ok(Step::Framing(count)) => count,
                Ok(Step::Data(count)) => {
                    assert!((1..=input.len()).contains(&count));
                    assert!(machine.data_left() >= count as u64);
                    let count = count.min(take_max);
                    data.extend_from_slice(&input[..count]);
                    machine.took(count);
                    count
                }
                Ok(Step::More) => break,
                Ok(Step::End) => return (data, End::Ended(left)),
                Err(error) => {
                    is_a_message(&error.to_string());
                    assert_eq!(machine.step(input), Err(error));
                    return (data, End::Broken);
                }
            };
            assert!((1..=input.len()).contains(&count));
            input = &input[count..];
            left -= count;
        }
        assert!(input.is_empty());
    }
    let end = if machine.step(b"") == Ok(Step::End) { End::Ended(left) } else { End::Cut };
    (data, end)
}

/// The data and the end, as one who has the whole body sees them: whole lines, one after another.
fn chunked(body: &[u8]) -> (Vec<u8>, End) {
    let mut data = Vec::new();
    let mut rest = body;
    loop {
        let (size, after) = match line(rest, SIZE_LINE_MAX_BYTES, &size, &[b"", b"0", b";"]) {
            Ok(found) => found,
            Err(end) => return (data, end),
        };
        rest = after;
        if size == 0 {
            return (data, trailers(rest));
        }
        let count = rest.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        data.extend_from_slice(&rest[..count]);
        rest = &rest[count..];
        match rest {
            [b'\r', b'\n', after @ ..] => rest = after,
            [] | [b'\r'] => return (data, End::Cut),
            _ => return (data, End::Broken),
        }
    }
}

/// What a whole line says and what follows it. A part of a line is only cut, not broken, if one of
/// `completions` makes it a right one.
fn line<'a, T>(
    rest: &'a [u8],
    max: usize,
    parse: &dyn Fn(&[u8]) -> Option<T>,
    completions: &[&[u8]],
) -> Result<(T, &'a [u8]), End> {
    if let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let parsed = parse(&rest[..end]).filter(|_| end + 2 <= max);
        return parsed.map(|value| (value, &rest[end + 2..])).ok_or(End::Broken);
    }
    let is_right = match rest.strip_suffix(b"\r") {
        Some(whole) => parse(whole).is_some(),
        None => completions.iter().any(|more| parse(&[rest, more].concat()).is_some()),
    };
    Err(if is_right && rest.len() <= max { End::Cut } else { End::Broken })
}

fn size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| *byte == b';');
    let digits = match end {
        Some(end) => {
            let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
            line[end..].iter().all(is_text).then(|| {
                let blanks = |byte: &&u8| matches!(**byte, b' ' | b'\t');
                let count = line[..end].iter().rev().take_while(blanks).count();
                &line[..end - count]
            })?
        }
        None => line,
    };
    // `from_str_radix` takes a sign.
    let are_digits = digits.iter().all(u8::is_ascii_hexdigit) && digits.len() <= 16;
    let text = std::str::from_utf8(digits).ok().filter(|_| are_digits)?;
    u64::from_str_radix(text, 16).ok()
}

fn trailers(body: &[u8]) -> End {
    let mut rest = body;
    loop {
        match rest {
            [b'\r', b'\n', after @ ..] => return End::Ended(after.len()),
            [] | [b'\r'] => return End::Cut,
            _ => {}
        }
        let used = body.len() - rest.len();
        match line(rest, TRAILERS_MAX_BYTES - used, &trailer, &[b"", b":", b"x:"]) {
            Ok(((), after)) => rest = after,
            Err(end) => return end,
        }
    }
}

fn trailer(line: &[u8]) -> Option<()> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at(colon);
    let separators = b"\"(),/:;<=>?@[\\]{}";
    let is_token = |byte: &u8| byte.is_ascii_graphic() && !separators.contains(byte);
    let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    (!name.is_empty() && name.iter().all(is_token) && value.iter().all(is_text)).then_some(())
}

/// Data in chunks, sizes and extensions as the data itself says.
fn chunk(data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (piece, number) in pieces(data).iter().zip((0..8).cycle()) {
        if piece.is_empty() {
            continue;
        }
        let length = piece.len();
        let line = match number {
            0 => format!("{length:X}"),
            1 => format!("{length:016x}"),
            2 => format!("{length:x} \t; a = \"0\""),
            3 => format!("{length:x};{}", "e".repeat(200)),
            _ => format!("{length:x}"),
        };
        body.extend_from_slice(line.as_bytes());
        body.extend_from_slice(b"\r\n");
        body.extend_from_slice(piece);
        body.extend_from_slice(b"\r\n");
    }
    let last: [&[u8]; 3] = [b"0\r\n\r\n", b"000;e\r\nx-sum: 0\r\n0:\r\n\r\n", b"0\r\na:b\r\n\r\n"];
    body.extend_from_slice(last[data.len() % 3]);
    body
}

/// Name, file name and data of the parts that began, and whether the last of them ended.
type Parts = (Vec<(Part, Vec<u8>)>, bool);

/// Forms: a Content-Type on the first line, then the body.
pub fn multipart(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (content_type, body) = data.split_at(end);
    let body = body.get(1..).unwrap_or_default();
    match form::boundary(&String::from_utf8_lossy(content_type)) {
        Ok(boundary) => {
            assert!((1..=form::BOUNDARY_MAX_BYTES).contains(&boundary.len()));
            cuts_change_nothing(&boundary, body);
            // A short boundary is met by chance.
            cuts_change_nothing(&boundary[..1], body);
        }
        Err(error) => is_a_message(&error.to_string()),
    }
    forms_read_back(content_type, body);
}

fn cuts_change_nothing(boundary: &[u8], body: &[u8]) {
    if boundary == b" " {
        return;
    }
    let (parts, end) = parse(boundary, &[body]);
    for pieces in cuts(body) {
        assert_eq!(parse(boundary, &pieces), (parts.clone(), end.clone()));
    }
    let (expected, is_right) = split(boundary, body);
    assert_eq!((&parts, end.is_ok()), (&expected, is_right), "{end:?}");
    if let Err(error) = end {
        is_a_message(&error.to_string());
    }
}

fn parse(boundary: &[u8], pieces: &[&[u8]]) -> (Parts, Result<(), MultipartError>) {
    let mut parts = Vec::new();
    let mut is_open = false;
    let mut sink = |event: Event<'_>| -> Result<(), MultipartError> {
        assert_eq!(is_open, !matches!(event, Event::Begin(_)));
        match event {
            Event::Begin(part) => {
                parts.push((part, Vec::new()));
                is_open = true;
            }
            Event::Data(bytes) => {
                assert!(!bytes.is_empty());
                parts.last_mut().expect("one began").1.extend_from_slice(bytes);
            }
            Event::End => is_open = false,
        }
        Ok(())
    };
    let mut parser = Parser::new(boundary);
    let fed = pieces.iter().try_for_each(|piece| parser.feed(piece, &mut sink));
    let end = fed.and_then(|()| parser.finish());
    ((parts, !is_open), end)
}

/// Where the next delimiter of a whole text stands, what follows it, and whether it is the closing
/// one.
fn delimiter<'a>(boundary: &[u8], text: &'a [u8]) -> Option<(usize, &'a [u8], bool)> {
    let needle = [b"\r\n--", boundary].concat();
    let places = text.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle);
    let mut found = places.filter_map(|(at, _)| match &text[at + needle.len()..] {
        [b'-', b'-', after @ ..] => Some((at, after, true)),
        after @ [b' ' | b'\t' | b'\r', ..] => Some((at, after, false)),
        _ => None,
    });
    found.next()
}

/// The parts of a whole body, and whether it was right.
fn split(boundary: &[u8], body: &[u8]) -> (Parts, bool) {
    let text = [b"\r\n", body].concat();
    let mut parts = Vec::new();
    let Some((at, mut rest, mut is_last)) = delimiter(boundary, &text) else {
        return ((parts, true), false);
    };
    if at > form::PREAMBLE_MAX_BYTES + 2 {
        return ((parts, true), false);
    }
    while !is_last {
        let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let Some(lines) = rest[blanks..].strip_prefix(b"\r\n") else {
            return ((parts, true), false);
        };
        // The end of a head, and the CRLF that may be the next delimiter's too.
        let text = &rest[blanks..];
        let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") else {
            return ((parts, true), false);
        };
        let head = &lines[..end];
        let Some(part) = part(head).filter(|_| parts.len() < form::PARTS_MAX) else {
            return ((parts, true), false);
        };
        let text = &text[end + 2..];
        let Some((at, after, closes)) = delimiter(boundary, text) else {
            parts.push((part, unfinished(boundary, text).to_vec()));
            return ((parts, false), false);
        };
        parts.push((part, text.get(2..at).unwrap_or_default().to_vec()));
        (rest, is_last) = (after, closes);
    }
    ((parts, true), true)
}

/// The data of a part that was cut: all but what may be a delimiter's begin.
fn unfinished<'a>(boundary: &[u8], text: &'a [u8]) -> &'a [u8] {
    let closing = [b"\r\n--", boundary, b"--"].concat();
    let held = (0..closing.len()).rev().find(|length| text.ends_with(&closing[..*length]));
    text.get(2..text.len() - held.unwrap_or(0)).unwrap_or_default()
}

/// What a head says, found by giving it to a parser on its own: how heads are read is checked by
/// what was written into them.
fn part(head: &[u8]) -> Option<Part> {
    let body = [b"--other\r\n", head, b"\r\n--other--"].concat();
    let ((parts, _), end) = parse(b"other", &[&body]);
    end.ok()?;
    parts.into_iter().next().map(|(part, _)| part)
}

/// What a form is written from is read from it, as each kind of client writes it.
fn forms_read_back(name: &[u8], data: &[u8]) {
    let is_shown = |character: &char| !character.is_control() || "\r\n".contains(*character);
    let name: String = String::from_utf8_lossy(name).chars().filter(is_shown).take(200).collect();
    let half = data.len() / 2;
    let mut boundary = "b".to_owned();
    while data.windows(boundary.len()).any(|window| window == boundary.as_bytes()) {
        boundary.push_str("b0");
        if boundary.len() > form::BOUNDARY_MAX_BYTES {
            return;
        }
    }
    let hex: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let lines = |text: String| text.replace('\r', "%0D").replace('\n', "%0A");
    let browser = lines(name.replace('"', "%22"));
    let go = lines(name.replace('\\', "\\\\").replace('"', "\\\""));
    let mut writers = vec![
        format!("form-data; name=\"{go}\"; filename=\"{go}\""),
        format!("form-data; filename=\"{go}\"; name=\"{go}\"; filename*=UTF-8''{hex}"),
    ];
    // Browsers write a backslash as it is, and a `%22` too: such a name reads as another.
    let is_plain = !name.contains('\\');
    writers
        .extend(is_plain.then(|| format!("form-data; name=\"{browser}\"; filename=\"{browser}\"")));
    let is_encoded = ["%22", "%0d", "%0a"].iter().any(|code| name.to_lowercase().contains(code));
    let mut body = Vec::new();
    for data in [&data[..half], &data[half..]] {
        for writer in &writers {
            let head = format!("--{boundary}\r\nX: y\r\nContent-Disposition: {writer}\r\n\r\n");
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(data);
            body.extend_from_slice(b"\r\n");
        }
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let found = form::boundary(&format!("multipart/form-data; boundary=\"{boundary}\""));
    assert_eq!(found, Ok(boundary.clone().into_bytes()));
    for pieces in cuts(&body) {
        let ((parts, _), end) = parse(boundary.as_bytes(), &pieces);
        assert_eq!((parts.len(), end), (2 * writers.len(), Ok(())));
        for (number, (part, read)) in parts.into_iter().enumerate() {
            let (first, second) = data.split_at(half);
            assert_eq!(read, if number < writers.len() { first } else { second });
            if !is_encoded {
                assert_eq!((&part.name, part.filename.as_ref()), (&name, Some(&name)));
            }
        }
    }
}
