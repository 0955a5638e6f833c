//! What a task writes to stderr: passed on as it is, and the last line kept, because it most often says why a task failed.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

/// How much of a line is kept: a sentence, not a dump.
const LINE_BYTES_MAX: usize = 300;

/// How long the rest may take to arrive when everybody who could write it is gone. What left the group may hold the pipe for ever.
const REST_WITHIN: Duration = Duration::from_millis(200);

/// What is heard of a task's stderr.
pub(super) struct StderrTail {
    last: Arc<Mutex<LastLine>>,
    /// Goes on for as long as somebody can write.
    forwarding: JoinHandle<()>,
}

impl StderrTail {
    /// A pipe: the task gets the other end.
    pub(super) fn open() -> io::Result<(StderrTail, OwnedFd)> {
        let (ours, theirs) = io::pipe()?;
        let ours = pipe::Receiver::from_owned_fd(OwnedFd::from(ours))?;
        let last = Arc::new(Mutex::new(LastLine::default()));
        let forwarding = tokio::spawn(forward(ours, last.clone()));
        Ok((StderrTail { last, forwarding }, OwnedFd::from(theirs)))
    }

    /// The last line that said something, when the task has ended.
    pub(super) async fn last_line(mut self) -> Option<String> {
        let _ = tokio::time::timeout(REST_WITHIN, &mut self.forwarding).await;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

async fn forward(mut from: pipe::Receiver, last: Arc<Mutex<LastLine>>) {
    let mut chunk = vec![0; 8 * 1_024];
    loop {
        let len = match from.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(len) => len,
        };
        last.lock().unwrap_or_else(PoisonError::into_inner).hear(&chunk[..len]);
        let bytes = chunk[..len].to_vec();
        // On a thread of its own: whoever reads our stderr slowly must not hold up renewals. The task waits, as it would without us.
        let written = tokio::task::spawn_blocking(move || io::stderr().write_all(&bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            // Nobody reads stderr any more; the task may go on.
            tracing::debug!("stderr of a task cannot be passed on");
        }
    }
}

/// The last line of a text that comes in pieces.
#[derive(Default)]
struct LastLine {
    /// The last whole line that was not empty.
    whole: Vec<u8>,
    /// The one that is being written.
    current: Vec<u8>,
}

impl LastLine {
    fn hear(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_whole) = match line.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (line, false),
            };
            let room = LINE_BYTES_MAX.saturating_sub(self.current.len());
            self.current.extend_from_slice(&text[..text.len().min(room)]);
            if is_whole {
                let line = std::mem::take(&mut self.current);
                if !line.trim_ascii().is_empty() {
                    self.whole = line;
                }
            }
        }
    }

    fn text(&self) -> Option<String> {
        let line = [&self.current, &self.whole].into_iter().map(|line| line.trim_ascii());
        line.into_iter().find(|line| !line.is_empty()).map(|line| String::from_utf8_lossy(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_kept_however_it_arrives() {
        for (pieces, expected) in [
            (&["a\nb\n"][..], Some("b")),
            (&["a\n", "b", "c\n\n  \n"], Some("bc")),
            (&["whole\nhalf"], Some("half")),
            (&["\n", ""], None),
            (&[], None),
        ] {
            let mut last = LastLine::default();
            pieces.iter().for_each(|piece| last.hear(piece.as_bytes()));
            assert_eq!(last.text().as_deref(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_line_without_end_takes_no_more_than_its_room() {
        let mut last = LastLine::default();
        for _ in 0..100 {
            last.hear(&[b'x'; 1_000]);
        }
        assert_eq!(last.text().unwrap().len(), LINE_BYTES_MAX);
    }
}
