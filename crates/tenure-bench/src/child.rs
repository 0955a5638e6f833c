//! This program in a second process, started for one workload (see `internal`), and what it prints.
//!
//! **Invariant**: the process is killed with the handle: no helper process outlives its workload.

use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::failure::BenchFailure;
use crate::internal::Ready;

/// A second process of this program.
pub(crate) struct HelperProcess {
    child: Child,
    /// The process ends when this is closed.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// A process that has printed nothing after this long is stuck; a busy machine needs a second or
/// two to start sixteen.
const START_WITHIN: Duration = Duration::from_secs(20);

impl HelperProcess {
    /// Starts a process with a hidden command.
    pub(crate) fn start(args: &[&str]) -> Result<HelperProcess, BenchFailure> {
        let trouble = |error| BenchFailure::new(format!("a second process cannot be started: {error}"));
        let program = std::env::current_exe().map_err(trouble)?;
        let mut child = Command::new(program)
            .arg("internal")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(trouble)?;
        let stdin = child.stdin.take().expect("stdin was asked for");
        let stdout = child.stdout.take().expect("stdout was asked for");
        Ok(HelperProcess { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Waits until it is ready.
    pub(crate) async fn ready(&mut self) -> Result<(), BenchFailure> {
        self.receive::<Ready>(START_WITHIN).await.map(drop)
    }

    /// Sends the line on stdin that lets it go on.
    pub(crate) async fn go(&mut self) -> Result<(), BenchFailure> {
        let ended = |error| BenchFailure::new(format!("the second process has ended: {error}"));
        self.stdin.write_all(b"go\n").await.map_err(ended)
    }

    /// Waits for the next line that it prints.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, BenchFailure> {
        let failed = |what: String| BenchFailure::new(what);
        let line = tokio::time::timeout(within, self.lines.next_line())
            .await
            .map_err(|_| failed(format!("the second process printed nothing for {within:?}")))?
            .map_err(|error| failed(format!("the second process cannot be heard: {error}")))?
            .ok_or_else(|| failed("the second process has ended".to_owned()))?;
        serde_json::from_str(&line)
            .map_err(|error| failed(format!("the second process printed {line:?}: {error}")))
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self, within: Duration) -> Result<(), BenchFailure> {
        let failed = |what: String| BenchFailure::new(what);
        let status = tokio::time::timeout(within, self.child.wait())
            .await
            .map_err(|_| failed(format!("the second process is still there after {within:?}")))?
            .map_err(|error| failed(format!("the second process cannot be waited for: {error}")))?;
        if status.success() { Ok(()) } else { Err(failed(format!("the second process failed: {status}"))) }
    }

    /// Kills it with SIGKILL, so that it can neither clean up nor close its connections, and waits
    /// until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<(), BenchFailure> {
        self.child
            .kill()
            .await
            .map_err(|error| BenchFailure::new(format!("the second process cannot be killed: {error}")))
    }
}
