//! What a client has sent and nobody has looked at yet: the bytes behind a head may be its body, or
//! the next request.

use std::io;

use crate::wire::http::head::HEAD_MAX_BYTES;

use super::socket::Socket;

/// Bytes of one read from a client; a connection keeps room for so many between its requests.
pub(super) const READ_BYTES: usize = 4 << 10;

/// The unread bytes of one client.
pub(super) struct Input<'a> {
    pub(super) socket: &'a Socket,
    buffer: Vec<u8>,
    start: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(socket: &'a Socket) -> Input<'a> {
        Input { socket, buffer: Vec::new(), start: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // A long head is no reason to hold its room while a body is waited for. It is given
            // back whole: what is left of one that shrinks in place keeps the next from fitting.
            if self.buffer.capacity() > READ_BYTES {
                self.buffer = Vec::new();
            }
        }
    }

    /// Reads more behind what is there, at most up to [`HEAD_MAX_BYTES`] in all; 0 is the client's
    /// end. `read` does the reading.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&Socket, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let length = self.buffer.len();
        debug_assert!(length < HEAD_MAX_BYTES, "a read of nothing would look like the end");
        // Most heads fit into one read. For the others there is room at once: what is not used of
        // it costs nothing, and buffers that grow side by side leave holes.
        let (room, capacity) = match READ_BYTES.checked_sub(length) {
            None | Some(0) => (READ_BYTES.min(HEAD_MAX_BYTES - length), HEAD_MAX_BYTES),
            Some(room) => (room, READ_BYTES),
        };
        // Out of memory ends this connection, and not the server.
        self.buffer.try_reserve_exact(capacity - length)?;
        self.buffer.resize(length + room, 0);
        let result = read(self.socket, &mut self.buffer[length..]);
        self.buffer.truncate(length + *result.as_ref().unwrap_or(&0));
        result
    }

    /// Moves what was read before into `buffer`, as much as fits.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.unread().len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.unread()[..count]);
        self.consume(count);
        count
    }
}
