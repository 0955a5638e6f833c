//! A second process of this program, started with a hidden command, for a worker of the demo.
//!
//! **Invariant**: the process is killed and reaped when its handle is dropped: a demo leaves no process behind.

use std::process::Stdio;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::failure::{Code, Failure};

/// A second process of this program.
pub(super) struct HelperProcess {
    child: Child,
    /// The process ends when this is closed; `None` once it was.
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl HelperProcess {
    /// Starts a process with a hidden command.
    pub(super) fn start(args: &[&str]) -> Result<HelperProcess, Failure> {
        let failed = |error| Failure::new(Code::Failed, format!("cannot start a worker process: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .arg("internal")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout was requested");
        Ok(HelperProcess { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Waits for the next line that the process prints.
    pub(super) async fn read<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, Failure> {
        let failed = |what: String| Failure::new(Code::Failed, what);
        let line = tokio::time::timeout(within, self.lines.next_line())
            .await
            .map_err(|_| failed(format!("the worker process printed nothing within {within:?}")))?
            .map_err(|error| failed(format!("cannot read from the worker process: {error}")))?
            .ok_or_else(|| failed("the worker process has ended".to_owned()))?;
        serde_json::from_str(&line)
            .map_err(|error| failed(format!("the worker process printed {line:?}: {error}")))
    }

    /// Requests the end of the process by closing its stdin.
    pub(super) fn dismiss(&mut self) {
        self.stdin = None;
    }

    /// Waits until the process has ended by itself.
    pub(super) async fn ended(&mut self, within: Duration) -> Result<(), Failure> {
        let failed = |what: String| Failure::new(Code::Failed, what);
        let status = tokio::time::timeout(within, self.child.wait())
            .await
            .map_err(|_| failed(format!("the worker process still runs after {within:?}")))?
            .map_err(|error| failed(format!("cannot wait for the worker process: {error}")))?;
        if status.success() { Ok(()) } else { Err(failed(format!("the worker process failed: {status}"))) }
    }

    /// Kills the process with SIGKILL, so that it cannot clean up, and waits until it has ended.
    pub(super) async fn kill(&mut self) -> Result<(), Failure> {
        self.child
            .kill()
            .await
            .map_err(|error| Failure::new(Code::Failed, format!("cannot kill the worker process: {error}")))
    }
}
