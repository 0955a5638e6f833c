//! Runs etcd so that it cannot outlive us, not even when we are killed with SIGKILL.
//!
//! `PR_SET_PDEATHSIG` would need unsafe code, and it fires when the spawning *thread* ends. Instead
//! a tiny `/bin/sh` starts etcd and then reads its standard input, a pipe with its other end only
//! in this process. The end of this process closes that end; the shell wakes, kills etcd with -9,
//! waits until it is gone and removes its folder. The shell leads a process group of its own, so a
//! signal to the test's group (Ctrl-C, a runner's timeout) cannot end the shell before its work is
//! done.
//!
//! **Invariant**: while a [`Sentinel`] lives, its pid belongs to the etcd it started: with dash the
//! shell does not reap before it is requested to end, so the number cannot belong to another
//! process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// For all threads to stop; they need microseconds, unless one hangs in the kernel on a disk.
const PAUSE_WAIT: Duration = Duration::from_secs(10);

/// `$1` is the member's folder, `$2` its log, the rest is the command.
///
/// Termination signals are ignored, after the start, because etcd would inherit that: a signal to
/// the group is meant for the parent. Only builtins until etcd is dead; `command -p` then finds
/// `rm` without a PATH. A line on stdin means that the parent lives and removes the folder itself;
/// end-of-file, that it died.
const SCRIPT: &str = r#"
dir=$1; log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
echo "$pid"
exec >/dev/null 2>&1
trap '' HUP INT TERM
if read -r word; then parent=alive; else parent=gone; fi
kill -9 "$pid"
wait "$pid"
if [ "$parent" = gone ]; then
    command -p rm -rf -- "$dir"
    command -p rmdir -- "${dir%/*}"
fi
exit 0
"#;

/// A running program and the shell that guards it; dropping it ends both.
#[derive(Debug)]
pub struct Sentinel {
    shell: Child,
    line: Option<ChildStdin>,
    pid: Pid,
}

impl Sentinel {
    /// Starts `command`, appending its output to `log`.
    ///
    /// If this process dies, `folder` is removed, and its parent too once it is empty.
    ///
    /// # Panics
    /// If there is no `/bin/sh` or it does not answer.
    pub fn spawn(folder: &Path, log: &Path, command: &[OsString]) -> Sentinel {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tenure-sentinel"])
            .args([folder, log])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("/bin/sh cannot be started: {error}"));
        let line = shell.stdin.take();
        let answer = shell.stdout.take().expect("stdout was asked to be a pipe");
        let mut text = String::new();
        let read = BufReader::new(answer).read_line(&mut text);
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { panic!("/bin/sh did not print the pid of its child: {read:?} {text:?}") };
        Sentinel { shell, line, pid }
    }

    /// The pid of the program itself, not of the shell.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether the program still runs; a zombie does not.
    pub fn is_running(&self) -> bool {
        is_running(self.pid)
    }

    /// Sends a signal to the program; one that is gone already is not an error.
    pub fn signal(&self, signal: Signal) {
        match kill_process(self.pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("signal {signal:?} to etcd {} failed: {error}", self.pid()),
        }
    }

    /// Stops the program with SIGSTOP and returns when none of its threads runs any more.
    ///
    /// The signal alone returns earlier: a thread that is on another core may still answer a request.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + PAUSE_WAIT;
        while self.is_running() && !self.is_stopped() {
            assert!(Instant::now() < deadline, "etcd {} does not stop on SIGSTOP", self.pid());
            std::thread::yield_now();
        }
    }

    /// Whether all threads are stopped; where there is no /proc, the signal has to be believed.
    fn is_stopped(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return true };
        threads.flatten().all(|thread| {
            // A thread that ends in between does not run either.
            std::fs::read_to_string(thread.path().join("stat")).map_or(true, |stat| state(&stat) == Some('T'))
        })
    }

    /// Kills the program with -9 and returns when it is gone, so that its ports can be bound again.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(mut line) = self.line.take() else { return };
        // Directly, so that the moment is known; the shell only waits and reaps. `wait` reports
        // errors.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = line.write_all(b"end\n");
        drop(line);
        let _ = self.shell.wait();
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a process with this pid runs; a zombie, which only waits to be reaped, does not.
fn is_running(pid: Pid) -> bool {
    if test_kill_process(pid).is_err() {
        return false;
    }
    // Where there is no /proc, the signal's answer has to do.
    match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        Ok(stat) => !matches!(state(&stat), Some('Z' | 'X' | 'x')),
        Err(_) => !Path::new("/proc/self/stat").exists(),
    }
}

/// The state letter of a `/proc/…/stat` line; it follows the name, which may itself hold parentheses.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
