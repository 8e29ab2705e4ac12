//! Stores a file. The content of a form goes from the connection into the file beside its target,
//! and is never held; that of JSON is held, since its encoding is.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use tiny_http::ResponseBox;

use super::{Refusal, State};
use crate::serve::body::{NO_MEMORY, Unpoured, pour, read_whole};
use crate::serve::reply;
use crate::serve::root::{Inside, Replacement, RootError};
use crate::serve::transport::Head;
use crate::wire::http::multipart::{Event, MultipartError, Parser, boundary};
use crate::wire::picod::files::{Entry, decode_upload, parse_mode, write_uploaded};

/// Bytes of a field of a form beside the file; a path is the longest.
const FIELD_MAX_BYTES: usize = 8 << 10;

pub(super) fn upload(
    state: &State,
    head: &Head<'_>,
    body: &mut dyn Read,
) -> Result<ResponseBox, Refusal> {
    let content_type = head.header("Content-Type").unwrap_or("");
    let is_form = content_type
        .get(.."multipart/form-data".len())
        .is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/form-data"));
    let (path, replacement) = match is_form {
        true => store_form(state, content_type, body)?,
        false => store_json(state, head, body)?,
    };
    let found = replacement.commit().map_err(|error| of_path(&error))?;
    let entry = Entry {
        name: &String::from_utf8_lossy(path.as_bytes()),
        size: found.len(),
        st_mode: found.mode(),
        modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        is_dir: false,
    };
    let mut text = Vec::new();
    write_uploaded(&mut text, &entry).expect("a vector takes everything");
    Ok(reply::json(200, String::from_utf8(text).expect("JSON is text")))
}

fn of_path(error: &RootError) -> Refusal {
    match error {
        RootError::NotFound => Refusal::new(400, "Invalid path: a link in it leads nowhere"),
        RootError::NotADirectory => {
            Refusal::new(400, "Invalid path: a part of it is not a directory")
        }
        _ => Refusal::of(error, "File"),
    }
}

fn of_io(error: std::io::Error) -> Refusal {
    of_path(&error.into())
}

fn store_json(
    state: &State,
    head: &Head<'_>,
    body: &mut dyn Read,
) -> Result<(Inside, Replacement), Refusal> {
    let Some(held) = read_whole(state, head, body) else {
        return Err(Refusal::new(503, NO_MEMORY));
    };
    let upload = decode_upload(&held.bytes).map_err(|message| Refusal(400, message))?;
    let path = state.root.place(upload.path.as_bytes()).map_err(|error| of_path(&error))?;
    let replacement = state.root.replace(&path, upload.mode);
    let mut replacement = replacement.map_err(|error| of_path(&error))?;
    replacement.write_all(&upload.content).map_err(of_io)?;
    Ok((path, replacement))
}

fn store_form(
    state: &State,
    content_type: &str,
    body: &mut dyn Read,
) -> Result<(Inside, Replacement), Refusal> {
    let mut parser = Parser::new(&boundary(content_type)?);
    let mut form = Form { state, path: None, mode: None, file: None, part: Part::Other };
    let poured = pour(state, body, |bytes| parser.feed(bytes, &mut |event| form.take(event)));
    poured.map_err(|unpoured| match unpoured {
        Unpoured::Body(error) => of_io(error),
        Unpoured::Taker(refusal) => refusal,
    })?;
    parser.finish()?;
    form.finish()
}

impl From<MultipartError> for Refusal {
    fn from(error: MultipartError) -> Refusal {
        Refusal(400, error.to_string())
    }
}

/// What a form has said so far.
struct Form<'a> {
    state: &'a State,
    path: Option<Inside>,
    mode: Option<u32>,
    file: Option<Replacement>,
    part: Part,
}

/// The part that is being read.
enum Part {
    Path(Vec<u8>),
    Mode(Vec<u8>),
    File,
    Other,
}

impl Form<'_> {
    fn take(&mut self, event: Event<'_>) -> Result<(), Refusal> {
        let root = &self.state.root;
        match event {
            Event::Begin(part) => {
                let is_twice = match &*part.name {
                    "path" => self.path.is_some(),
                    "mode" => self.mode.is_some(),
                    "file" => self.file.is_some(),
                    _ => false,
                };
                if is_twice {
                    return Err(Refusal(400, format!("field '{}' is given twice", part.name)));
                }
                self.part = match &*part.name {
                    "path" => Part::Path(Vec::new()),
                    "mode" => Part::Mode(Vec::new()),
                    "file" => {
                        // Clients may send the path behind the content, as `curl -F file=@f -F
                        // path=p` does.
                        let file = match &self.path {
                            Some(path) => root.replace(path, None),
                            None => root.draft(),
                        };
                        self.file = Some(file.map_err(|error| of_path(&error))?);
                        Part::File
                    }
                    _ => Part::Other,
                };
            }
            Event::Data(bytes) => match (&mut self.part, &mut self.file) {
                (Part::File, Some(file)) => file.write_all(bytes).map_err(of_io)?,
                (Part::Path(text) | Part::Mode(text), _) => {
                    if text.len() + bytes.len() > FIELD_MAX_BYTES {
                        let message = format!("a field has over {FIELD_MAX_BYTES} bytes");
                        return Err(Refusal(400, message));
                    }
                    text.extend_from_slice(bytes);
                }
                _ => {}
            },
            Event::End => match std::mem::replace(&mut self.part, Part::Other) {
                Part::Path(text) if !text.is_empty() => {
                    self.path = Some(root.place(&text).map_err(|error| of_path(&error))?);
                }
                Part::Mode(text) => self.mode = Some(parse_mode(&String::from_utf8_lossy(&text))),
                _ => {}
            },
        }
        Ok(())
    }

    fn finish(self) -> Result<(Inside, Replacement), Refusal> {
        let path = self.path.ok_or_else(|| Refusal::new(400, "Missing 'path' field"))?;
        let file = self.file;
        let mut file =
            file.ok_or_else(|| Refusal::new(400, "Failed to get file: the form has no 'file'"))?;
        if !file.has_place() {
            self.state.root.aim(&mut file, &path, None).map_err(|error| of_path(&error))?;
        }
        if let Some(mode) = self.mode {
            file.set_mode(mode);
        }
        Ok((path, file))
    }
}
