//! One direction of a connection: what was read and not yet written, in order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// What may wait in one direction before the sender is held back; a delay of 100 ms carries 80 MB/s with it.
const QUEUED_BYTES_MAX: usize = 8 << 20;

/// The bytes on their way in one direction.
#[derive(Debug, Default)]
pub(super) struct Flow {
    queue: VecDeque<Chunk>,
    queued_bytes: usize,
    /// The source sends no more: it closed, or it broke in a black hole.
    is_ended: bool,
    /// The end was passed on to the destination.
    is_closed: bool,
    /// The destination takes no more at the moment.
    is_blocked: bool,
}

#[derive(Debug)]
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    written: usize,
}

/// What happens to bytes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAction {
    /// They are written this much later.
    Carry(Duration),
    /// They vanish, and so does the end of the stream.
    Vanish,
}

impl Flow {
    pub(super) fn wants_read(&self) -> bool {
        !self.is_ended && self.queued_bytes < QUEUED_BYTES_MAX
    }

    pub(super) fn wants_write(&self) -> bool {
        self.is_blocked
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// When the next chunk is due, unless the destination is what we wait for.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.is_blocked { None } else { self.queue.front().map(|chunk| chunk.due) }
    }

    /// Reads once; `true` if something vanished.
    pub(super) fn read(
        &mut self,
        source: &mut TcpStream,
        buffer: &mut [u8],
        (fate, now): (ReadAction, Instant),
    ) -> io::Result<bool> {
        let read = match (source.read(buffer), fate) {
            (Err(error), _) if is_nothing_yet(&error) => return Ok(false),
            (Err(error), ReadAction::Carry(_)) => return Err(error),
            (Err(_) | Ok(0), ReadAction::Vanish) => {
                self.is_ended = true;
                return Ok(true);
            }
            (Ok(0), ReadAction::Carry(_)) => {
                self.is_ended = true;
                return Ok(false);
            }
            (Ok(read), _) => read,
        };
        match fate {
            ReadAction::Vanish => Ok(true),
            ReadAction::Carry(delay) => {
                self.queued_bytes += read;
                self.queue.push_back(Chunk { due: now + delay, bytes: buffer[..read].to_vec(), written: 0 });
                Ok(false)
            }
        }
    }

    /// Writes what is due, and the end of the stream after the last byte.
    pub(super) fn write(&mut self, destination: &mut TcpStream, now: Instant) -> io::Result<()> {
        self.is_blocked = false;
        while let Some(chunk) = self.queue.front_mut() {
            if chunk.due > now {
                return Ok(());
            }
            match destination.write(&chunk.bytes[chunk.written..]) {
                Ok(count) => chunk.written += count,
                Err(error) if is_nothing_yet(&error) => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if chunk.written == chunk.bytes.len() {
                self.queued_bytes -= chunk.written;
                self.queue.pop_front();
            }
        }
        if self.is_ended && !self.is_closed {
            self.is_closed = true;
            destination.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Loses what waits; `true` if there was anything.
    pub(super) fn lose(&mut self) -> bool {
        self.queued_bytes = 0;
        self.is_blocked = false;
        let had_any = !self.queue.is_empty();
        self.queue.clear();
        had_any
    }

    /// Makes everything that waits due.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.queue.iter_mut().for_each(|chunk| chunk.due = now);
    }
}

fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
