//! Content of files whose size cannot be taken at its word.

use std::fs::File;
use std::io::Read;

use super::root::RootError;

/// Bytes of the largest file whose size is told as 0, as in /proc: its length is only known when
/// all of it was read.
pub const UNSIZED_MAX_BYTES: usize = 16 << 20;

/// A smaller file is read before its length is announced. Files of /sys are shorter than they are
/// told to be.
const SMALL_MAX_BYTES: u64 = 64 << 10;

/// Bytes of one read of a file of unknown size.
const READ_BYTES: usize = 16 << 10;

/// Why a file could not be read before it is sent.
#[derive(Debug)]
pub(super) enum Unread {
    /// It has more than [`UNSIZED_MAX_BYTES`], or so many are asked for; the sentence for a client.
    TooLong(String),
    /// It cannot be read.
    Failed(RootError),
}

/// All of a file that is small, or whose size is told as 0: of the latter at least its first
/// `wanted` bytes, as far as there are so many. `None` of a larger one.
///
/// # Errors
/// [`Unread`].
pub(super) fn read_small(
    file: &mut File,
    size: u64,
    wanted: u64,
) -> Result<Option<Vec<u8>>, Unread> {
    if size > SMALL_MAX_BYTES {
        return Ok(None);
    }
    let failed = |error: std::io::Error| Unread::Failed(error.into());
    let mut bytes = Vec::new();
    if size > 0 {
        file.take(size).read_to_end(&mut bytes).map_err(failed)?;
        return Ok(Some(bytes));
    }
    // Always as many: some files of /proc refuse reads of an odd length.
    let mut buffer = vec![0; READ_BYTES];
    while (bytes.len() as u64) < wanted {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        if bytes.len() + count > UNSIZED_MAX_BYTES {
            let message = format!("a file of unknown size has over {UNSIZED_MAX_BYTES} bytes");
            return Err(Unread::TooLong(message));
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
    Ok(Some(bytes))
}
