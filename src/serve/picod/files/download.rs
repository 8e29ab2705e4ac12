//! Sends a file, or one range of it, as it was announced and never more.

use std::io::{Cursor, Read, Seek, SeekFrom};
use std::time::{SystemTime, UNIX_EPOCH};

use tiny_http::{Response, ResponseBox, StatusCode};

use super::{Refusal, State};
use crate::serve::content::{Unread, read_small};
use crate::serve::reply;
use crate::serve::root::RootError;
use crate::serve::transport::Head;
use crate::wire::picod::files::{Range, content_type, disposition, range};
use crate::wire::time::Rfc3339;

type Content = Box<dyn Read + Send>;

pub(super) fn download(
    state: &State,
    head: &Head<'_>,
    path: &[u8],
) -> Result<ResponseBox, Refusal> {
    let of_path = |error: &RootError| Refusal::of(error, "File");
    let of_io = |error: std::io::Error| Refusal::of(&error.into(), "File");
    let file = state.root.with_shown(path, |path| state.root.open_file(path));
    let mut file = file.map_err(|error| of_path(&error))?;
    let found = file.metadata().map_err(of_io)?;
    let small = read_small(&mut file, found.len(), u64::MAX)?;
    let size = small.as_ref().map_or(found.len(), |bytes| bytes.len() as u64);
    let modified = http_date(found.modified().unwrap_or(UNIX_EPOCH));
    // A part of another version than the client has is no use to it (RFC 9110, section 13.1.5).
    let is_same = head.header("If-Range").is_none_or(|version| version == modified);
    let wanted = range(head.header("Range").filter(|_| is_same), size);
    let (status, first, length) = match wanted {
        Range::Whole => (200, 0, size),
        Range::Part { first, last } => (206, first, last - first + 1),
        Range::Unsatisfiable => {
            let refusal =
                Refusal(416, format!("the range is outside of the {size} bytes there are"));
            let range = reply::header("Content-Range", &format!("bytes */{size}"));
            return Ok(refusal.answer().with_header(range));
        }
    };
    let mut content: Content = match small {
        Some(bytes) => {
            let mut bytes = Cursor::new(bytes);
            bytes.set_position(first);
            Box::new(bytes)
        }
        None => {
            file.seek(SeekFrom::Start(first)).map_err(of_io)?;
            Box::new(file)
        }
    };
    content = Box::new(content.take(length));
    let length = usize::try_from(length).map_err(|_| of_path(&RootError::TooLarge))?;
    let inside = state.root.inside(path).map_err(|error| of_path(&error))?;
    let name = String::from_utf8_lossy(inside.name());
    let mut headers = vec![
        reply::header("Content-Type", content_type(&name)),
        reply::header("Content-Description", "File Transfer"),
        reply::header("Content-Transfer-Encoding", "binary"),
        reply::header("Content-Disposition", &disposition(&name)),
        reply::header("Last-Modified", &modified),
        reply::header("Accept-Ranges", "bytes"),
    ];
    if let Range::Part { first, last } = wanted {
        let value = format!("bytes {first}-{last}/{size}");
        headers.push(reply::header("Content-Range", &value));
    }
    Ok(Response::new(StatusCode(status), headers, content, Some(length), None))
}

impl From<Unread> for Refusal {
    fn from(unread: Unread) -> Refusal {
        match unread {
            Unread::TooLong(message) => Refusal(413, message),
            Unread::Failed(error) => Refusal::of(&error, "File"),
        }
    }
}

/// A moment as headers show it, `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
fn http_date(moment: SystemTime) -> String {
    const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    // The first of 1970 was a Thursday.
    const DAYS: &[u8] = b"ThuFriSatSunMonTueWed";
    let three =
        |names: &[u8], index: usize| String::from_utf8_lossy(&names[index * 3..][..3]).into_owned();
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let day = three(DAYS, usize::try_from(seconds / 86_400 % 7).unwrap_or(0));
    // 2026-11-30T19:16:54.123456789Z
    let text = Rfc3339(moment).to_string();
    let month = three(MONTHS, text[5..7].parse::<usize>().map_or(0, |month| month - 1));
    format!("{day}, {} {month} {} {} GMT", &text[8..10], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments_are_shown_as_headers_show_them() {
        let rows = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_796_066_214, "Mon, 30 Nov 2026 19:16:54 GMT"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(http_date(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(http_date(UNIX_EPOCH - Duration::from_secs(1)), rows[0].1);
    }
}
