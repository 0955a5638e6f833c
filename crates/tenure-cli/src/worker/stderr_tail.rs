//! Forwards the stderr of a task and keeps its last line, which most often contains the reason of a failure.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

/// The length of the kept line: enough for an error message, not for a dump.
const LINE_BYTES_MAX: usize = 300;

/// How long to wait for buffered output after the process tree has ended. A process outside the tree may keep the pipe open indefinitely.
const REST_WITHIN: Duration = Duration::from_millis(200);

/// The reading end of a task's stderr.
pub(super) struct StderrTail {
    last: Arc<Mutex<LastLine>>,
    /// Runs until all writers have closed the pipe.
    forwarding: JoinHandle<()>,
}

impl StderrTail {
    /// Opens a pipe. Returns the writing end for the task.
    pub(super) fn open() -> io::Result<(StderrTail, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        let last = Arc::new(Mutex::new(LastLine::default()));
        let forwarding = tokio::spawn(forward(reader, last.clone()));
        Ok((StderrTail { last, forwarding }, OwnedFd::from(writer)))
    }

    /// Returns the last non-empty line, after the task has ended.
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
        last.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk[..len]);
        let bytes = chunk[..len].to_vec();
        // On a blocking thread: a slow reader of stderr must not delay renewals. The task waits, as it would without the forwarding.
        let written = tokio::task::spawn_blocking(move || io::stderr().write_all(&bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            // The worker's stderr is closed; the task goes on without it.
            tracing::debug!("task stderr not forwarded");
        }
    }
}

/// The last line of a text that arrives in pieces.
#[derive(Default)]
struct LastLine {
    /// The last complete line that is not empty.
    whole: Vec<u8>,
    /// The incomplete line after it.
    current: Vec<u8>,
}

impl LastLine {
    fn push(&mut self, bytes: &[u8]) {
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
    fn last_non_empty_line_is_kept() {
        for (pieces, expected) in [
            (&["a\nb\n"][..], Some("b")),
            (&["a\n", "b", "c\n\n  \n"], Some("bc")),
            (&["whole\nhalf"], Some("half")),
            (&["\n", ""], None),
            (&[], None),
        ] {
            let mut last = LastLine::default();
            pieces.iter().for_each(|piece| last.push(piece.as_bytes()));
            assert_eq!(last.text().as_deref(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn endless_line_is_cut() {
        let mut last = LastLine::default();
        for _ in 0..100 {
            last.push(&[b'x'; 1_000]);
        }
        assert_eq!(last.text().unwrap().len(), LINE_BYTES_MAX);
    }
}
