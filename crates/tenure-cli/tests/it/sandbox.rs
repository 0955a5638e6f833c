//! A sandbox for the command: an empty environment, a home in a temporary folder, and deadlines. Each test has its own.
//!
//! The environment is cleared because the tests may run under `CI` or systemd, which the binary detects by their variables.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// Far longer than any command takes on a loaded host; a command that runs longer hangs.
pub(crate) const RUN_DEADLINE: Duration = Duration::from_secs(60);

/// The program under test: `TENURE_BIN` if set, otherwise the binary that cargo built for these tests.
///
/// `cargo xtask check` sets it to the command as it ships. Cargo builds the other binary with every feature that a test of the
/// workspace enables.
pub(crate) fn binary() -> String {
    std::env::var("TENURE_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tenure").to_owned())
}

/// Home and environment of the commands of one test.
pub(crate) struct Sandbox {
    home: TempDir,
    env: Vec<(String, String)>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        // With `TENURE_ETCD_GRANT=/tenure/` every command signs in as a user with one grant.
        let user = tenure_fixture::granted_user().map(|user| ("ETCDCTL_USER".to_owned(), user.to_owned()));
        Sandbox { home: TempDir::new().unwrap(), env: user.into_iter().collect() }
    }

    /// For a server without authentication, also under `TENURE_ETCD_GRANT`.
    pub(crate) fn without_user() -> Sandbox {
        Sandbox { home: TempDir::new().unwrap(), env: Vec::new() }
    }

    /// Signs in as root, for what a test prepares or checks outside of the grant.
    pub(crate) fn administrator() -> Sandbox {
        let user = tenure_fixture::root_user().map(|user| ("ETCDCTL_USER".to_owned(), user.to_owned()));
        Sandbox { home: TempDir::new().unwrap(), env: user.into_iter().collect() }
    }

    /// Adds a variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Sandbox {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// A path inside the home.
    pub(crate) fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file inside the home, readable by its owner only; returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The command, not yet started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).env_clear().env("HOME", self.home.path()).kill_on_drop(true);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"").await
    }

    /// Runs a command with this stdin.
    pub(crate) async fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // A command that does not read its stdin may have closed it.
        let _ = child.stdin.take().unwrap().write_all(stdin).await;
        let output = tokio::time::timeout(RUN_DEADLINE, child.wait_with_output()).await;
        let output = output.unwrap_or_else(|_| panic!("{args:?} hangs")).unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must succeed; returns its stdout without the last line break.
    pub(crate) async fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args).await;
        assert_eq!(ran.code, Some(0), "{args:?} {ran:?}");
        ran.stdout.strip_suffix('\n').unwrap_or(&ran.stdout).to_owned()
    }

    /// Runs a command that must succeed with `--json`; returns the JSON on its stdout.
    pub(crate) async fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?} printed {text:?}: {error}"))
    }

    /// Starts a command that the test controls while it runs.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Sandbox::run_on(self.command(args))
    }

    /// Starts a command with a stdin that stays open, as on a terminal.
    pub(crate) fn start_with_open_stdin(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        Sandbox::run_on(command)
    }

    /// Starts a command that the test has configured.
    pub(crate) fn run_on(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Running { child, stdout, stderr }
    }
}

impl Ran {
    /// The JSON error on stderr, which is its last line.
    pub(crate) fn error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_else(|| panic!("nothing on stderr: {self:?}"));
        let json: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        json["error"].clone()
    }
}

/// A running command.
pub(crate) struct Running {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// The next line on stdout.
    pub(crate) async fn line(&mut self) -> String {
        let line = tokio::time::timeout(RUN_DEADLINE, self.stdout.next_line()).await;
        line.expect("no output").unwrap().expect("the command has ended")
    }

    /// Waits until stderr has a line with this text, and returns it.
    pub(crate) async fn hear(&mut self, text: &str) -> String {
        let mut heard = Vec::new();
        loop {
            let line = tokio::time::timeout(RUN_DEADLINE, self.stderr.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("nothing more on stderr after {heard:#?}")).unwrap();
            let line = line.unwrap_or_else(|| panic!("the command has ended after {heard:#?}"));
            if line.contains(text) {
                return line;
            }
            heard.push(line);
        }
    }

    /// Waits until stderr has a line with this text; returns a line of stdout as the error if one comes first.
    pub(crate) async fn hear_before_line(&mut self, text: &str) -> Result<String, String> {
        let mut heard = Vec::new();
        loop {
            let line = tokio::time::timeout(RUN_DEADLINE, async {
                tokio::select! {
                    biased;
                    line = self.stderr.next_line() => line.unwrap().map(Ok),
                    line = self.stdout.next_line() => line.unwrap().map(Err),
                }
            });
            let line = line.await.unwrap_or_else(|_| panic!("no output after {heard:#?}"));
            match line.unwrap_or_else(|| panic!("the command has ended after {heard:#?}")) {
                Ok(line) if !line.contains(text) => heard.push(line),
                decided => return decided,
            }
        }
    }

    /// Writes to stdin, which stays open.
    pub(crate) async fn feed(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().unwrap();
        tokio::time::timeout(RUN_DEADLINE, stdin.write_all(bytes))
            .await
            .expect("the command does not read")
            .unwrap();
    }

    /// The process id.
    pub(crate) fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Waits until no process has its stdout open: neither the command nor a process that it started.
    pub(crate) async fn silence(&mut self, within: Duration) {
        let reading = async { while self.stdout.next_line().await.unwrap().is_some() {} };
        assert!(tokio::time::timeout(within, reading).await.is_ok(), "a process still runs after {within:?}");
    }

    /// Closes the reading end of stdout.
    pub(crate) fn hang_up(self) -> Child {
        self.child
    }

    /// Waits for the end; returns the exit code and the remaining stderr.
    pub(crate) async fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        let reading = async {
            while let Some(line) = self.stderr.next_line().await.unwrap() {
                rest.push_str(&line);
                rest.push('\n');
            }
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(RUN_DEADLINE, reading).await.expect("the command hangs");
        (status.code(), rest)
    }
}
