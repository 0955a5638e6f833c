//! Commands on a terminal: which process group owns it, and which one gets it back.
//!
//! `setsid --ctty` makes the terminal the controlling one of a session, as a login does.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tokio::process::{Child, Command};

use crate::sandbox::{RUN_DEADLINE, Sandbox, binary};

/// A login-like session on a pseudo terminal.
struct Session {
    shell: Child,
    leader: Option<String>,
    keys: File,
    shown: mpsc::Receiver<Vec<u8>>,
    text: String,
}

impl Session {
    /// Runs a shell script.
    fn run(sandbox: &Sandbox, script: &str) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", script]).env_clear().kill_on_drop(true);
        command.env("PATH", "/usr/bin:/bin").env("HOME", sandbox.path(""));
        command.env("TENURE", binary());
        let clone = || Stdio::from(slave.try_clone().unwrap());
        let shell = command.stdin(clone()).stdout(clone()).stderr(clone()).spawn().unwrap();
        let leader = shell.id().map(|pid| pid.to_string());
        let keys = File::from(master);
        let mut screen = keys.try_clone().unwrap();
        let (sender, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1_024];
            // After the last writer has closed the terminal, its reader gets an error.
            while let Ok(len) = screen.read(&mut bytes)
                && len > 0
                && sender.send(bytes[..len].to_vec()).is_ok()
            {}
        });
        Session { shell, leader, keys, shown, text: String::new() }
    }

    /// Waits until the terminal shows this text and consumes it; returns the text before it.
    fn see(&mut self, wanted: &str) -> String {
        while !self.text.contains(wanted) {
            let bytes = self.shown.recv_timeout(Duration::from_secs(30));
            let bytes = bytes.unwrap_or_else(|_| panic!("no {wanted:?} on the terminal: {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
        let start = self.text.find(wanted).unwrap();
        let before = self.text[..start].to_owned();
        self.text.drain(..start + wanted.len());
        before
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    async fn end(mut self) {
        let status = tokio::time::timeout(RUN_DEADLINE, self.shell.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// A shell with job control gives every job a group of its own, so a failed test finds its remaining processes by their session.
impl Drop for Session {
    fn drop(&mut self) {
        let Some(leader) = &self.leader else { return };
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let session = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(3));
            if session == Some(leader.as_str())
                && let Some(pid) = entry.file_name().to_str().unwrap().parse().ok().and_then(Pid::from_raw)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Waits until a process has ended. Its stopped parent may not have reaped it yet.
async fn has_ended(pid: &str) {
    let deadline = Instant::now() + RUN_DEADLINE;
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" Z")) {
            return;
        }
        assert!(Instant::now() < deadline, "{pid} does not end: {stat}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn ctrl_c_reaches_command_and_returns_terminal() {
    let sandbox = Sandbox::new();
    let script = r#"
        $TENURE internal supervise -- sh -c 'read a; echo "heard=$a"; trap "exit 77" INT; echo up; while :; do read b; done'
        echo "code=$?"; read c; echo "shell=$c""#;
    let mut session = Session::run(&sandbox, script);
    session.press("one\n");
    session.see("heard=one");
    session.see("up");
    session.press("\x03");
    session.see("code=77");
    session.press("two\n");
    session.see("shell=two");
    session.end().await;
}

#[tokio::test]
async fn failed_start_returns_the_terminal() {
    let sandbox = Sandbox::new();
    sandbox.file("broken", "#!/nowhere/interpreter\n");
    let script = r#"chmod 755 $HOME/broken; $TENURE internal supervise -- $HOME/broken
        echo "code=$?"; read c; echo "shell=$c""#;
    let mut session = Session::run(&sandbox, script);
    session.see("code=127");
    session.press("two\n");
    session.see("shell=two");
    session.end().await;
}

#[tokio::test]
async fn ctrl_z_stops_job_and_fg_resumes() {
    let sandbox = Sandbox::new();
    let script = r#"set -m
        $TENURE internal supervise -- sh -c 'echo up; read a; echo "first=$a"; exit 4'
        echo "stopped=$?"; read b; echo "shell=$b"; fg >/dev/null; echo "code=$?""#;
    let mut session = Session::run(&sandbox, script);
    session.see("up");
    session.press("\x1a");
    session.see("stopped=");
    session.press("mine\n");
    session.see("shell=mine");
    session.press("yours\n");
    session.see("first=yours");
    session.see("code=4");
    session.end().await;
}

/// The sentinel ends the command of a job that was stopped for too long. The continued supervisor sees that end before it reads its
/// clock, and must report a loss, not a signal of another process.
#[tokio::test]
async fn fg_after_expiry_finds_lock_lost() {
    let sandbox = Sandbox::new();
    for (wrapper, is_again) in [("lock a", false), ("elect a --one-term", false), ("elect a", true)] {
        let script = format!(
            r#"set -m
            $TENURE {wrapper} --ttl 2s -- sh -c 'echo "up=$$."; exec sleep 25'
            echo "stopped=$?"; read b; fg >/dev/null; echo "code=$?""#
        );
        let mut session = Session::run(&sandbox, &script);
        session.see("up=");
        let pid = session.see(".");
        session.press("\x1a");
        session.see("stopped=");
        has_ended(&pid).await;
        session.press("\n");
        if is_again {
            session.see("'a' was lost");
            session.see("up=");
            session.press("\x03");
            session.see("code=130");
        } else {
            session.see("'a' was lost");
            session.see("code=122");
        }
        session.end().await;
    }
}

#[tokio::test]
async fn ctrl_c_reaches_lock_command_and_waiter() {
    let sandbox = Sandbox::new();
    let script = r#"
        $TENURE lock a -- sh -c 'trap "exit 77" INT; echo up; while :; do read b; done'
        echo "code=$?"; trap : INT
        mkfifo $HOME/held; $TENURE lock a -- sh -c 'echo held; echo >$HOME/held; exec sleep 25' </dev/null &
        read x <$HOME/held
        $TENURE lock a -- true
        echo "waited=$?"; kill $!; read c; echo "shell=$c""#;
    let mut session = Session::run(&sandbox, script);
    session.see("up");
    session.press("\x03");
    session.see("code=77");
    session.see("held");
    session.see("waiting for 'a'");
    session.press("\x03");
    session.see("waited=130");
    session.press("two\n");
    session.see("shell=two");
    session.end().await;
}

/// On a terminal a destructive verb requires a confirmation, and only y confirms; without a terminal it fails.
#[tokio::test]
async fn destructive_verb_requires_confirmation_on_terminal() {
    let sandbox = Sandbox::new();
    let script = r#"
        for n in 1 2; do $TENURE kv put /a/$n x >/dev/null; done
        for round in 1 2; do $TENURE kv del --prefix /a/; echo "code=$?"; done
        $TENURE lock a </dev/null >/dev/null & until $TENURE locks ls 2>&1 | grep -q pid; do :; done
        $TENURE locks break a; echo "code=$?"; wait $!; echo "lost=$?"
        $TENURE kv del --prefix /a/ </dev/null; echo "pipe=$?""#;
    let mut session = Session::run(&sandbox, script);
    session.see("delete 2 keys under '/a/'? [y/N]");
    session.press("\n");
    session.see("nothing was changed");
    session.see("code=1");
    session.see("delete 2 keys under '/a/'? [y/N]");
    session.press("y\n");
    session.see("code=0");
    session.see("break 'a', held by");
    session.press("yes\n");
    session.see("code=0");
    session.see("lost=122");
    session.see("pipe=2");
    session.end().await;
}

#[tokio::test]
async fn log_colour_follows_flag_and_terminal() {
    let sandbox = Sandbox::new();
    for (variable, flag, is_coloured) in [
        ("TERM=xterm", "--color=auto", true),
        ("TERM=dumb", "--color=always", true),
        ("NO_COLOR=1", "--color=auto", false),
        ("TERM=dumb", "--color=auto", false),
        ("TERM=xterm", "--color=never", false),
    ] {
        let script = format!("{variable} $TENURE {flag} -vv lock a -- true; echo ended=$?");
        let mut session = Session::run(&sandbox, &script);
        let shown = session.see("ended=0");
        assert!(shown.contains("info:"), "{shown:?}");
        assert_eq!(shown.contains('\x1b'), is_coloured, "{variable} {flag} {shown:?}");
        session.end().await;
    }
}

#[tokio::test]
async fn demo_redraws_counts_and_keeps_result() {
    let sandbox = Sandbox::new();
    let mut session = Session::run(&sandbox, "exec \"$TENURE\" demo --tasks 60 --nodes 2");
    session.see("node-1       30 ");
    session.see("\u{1b}[2A");
    session.see(" killed\r\n");
    session.see("max/min per node 60/60");
    session.end().await;
}
