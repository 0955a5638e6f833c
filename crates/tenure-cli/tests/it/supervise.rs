//! Commands under supervision, with deadlines from the command line: what happens to them and to their descendants.
//!
//! Every script ends within half a minute, so a failing test leaves no process.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::process::Command;

use crate::sandbox::{RUN_DEADLINE, Running, Sandbox, binary};

/// Far less than the half minute after which every script ends, and far more than any step here takes.
const SOON: Duration = Duration::from_secs(10);

fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin")
}

/// Starts a script of sh under supervision.
fn start(sandbox: &Sandbox, flags: &[&str], script: &str) -> Running {
    sandbox.start(&[&["internal", "supervise"], flags, &["--", "sh", "-c", script]].concat())
}

/// Waits until a process has ended; it need not be a child.
pub(crate) async fn gone(pid: &str) {
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let waiting = tokio::task::spawn_blocking(move || {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
        let count = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(count, 1, "{pid:?} still runs after {patience:?}");
    });
    waiting.await.unwrap();
}

/// The helper processes of a command with this name, found by their parent and their arguments.
pub(crate) fn helpers_of(running: &Running, name: &str) -> Vec<Pid> {
    let parent = format!("PPid:\t{}\n", running.pid().as_raw_nonzero());
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        read("cmdline").contains(&format!("internal\0{name}\0")) && read("status").contains(&parent)
    });
    processes
        .map(|entry| Pid::from_raw(entry.file_name().to_str().unwrap().parse().unwrap()).unwrap())
        .collect()
}

fn sentinel_of(running: &Running) -> Pid {
    *helpers_of(running, "sentinel").first().expect("there is no sentinel")
}

#[tokio::test]
async fn exit_code_is_passed_on() {
    let sandbox = sandbox();
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
    {
        let ran = sandbox.run(&["internal", "supervise", "--", "sh", "-c", script]).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""), "{script}");
    }
}

#[tokio::test]
async fn stdin_and_arguments_arrive_unchanged() {
    let sandbox = sandbox();
    let input: Vec<u8> = (0..=255).cycle().take(100_000).map(|byte: u8| byte.max(1) & 0x7f).collect();
    let ran = sandbox.run_with(&["internal", "supervise", "--", "cat"], &input).await;
    assert_eq!((ran.code, ran.stdout.as_bytes()), (Some(0), &input[..]));
    let args = ["internal", "supervise", "--", "printf", "%s|", "a b", "", "--json", "--", "*", "-v"];
    assert_eq!(sandbox.ok(&args).await, "a b||--json|--|*|-v|");
}

#[tokio::test]
async fn plain_script_runs_missing_interpreter_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = sandbox();
    let place = |name: &str, text: &str| {
        let path = sandbox.file(name, text);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let plain = place("plain", "exit 5\n");
    assert_eq!(sandbox.run(&["internal", "supervise", "--", &plain]).await.code, Some(5));
    let broken = place("broken", "#!/nowhere/interpreter\n");
    let ran = sandbox.run(&["internal", "supervise", "--", &broken]).await;
    assert_eq!(ran.code, Some(127), "{ran:?}");
    assert!(ran.stderr.contains("interpreter"), "{ran:?}");
}

#[tokio::test]
async fn signals_reach_the_whole_group() {
    let sandbox = sandbox();
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let script = format!("trap 'echo got {name}; kill -9 $!; exit 9' {name}; sleep 25 & echo up; wait");
        let mut running = start(&sandbox, &[], &script);
        assert_eq!(running.line().await, "up");
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
        assert_eq!(running.end().await.0, Some(9), "{name}");
    }
}

#[tokio::test]
async fn ignored_signal_stays_ignored() {
    let tenure = binary();
    let script = format!(
        "trap '' HUP; exec {tenure} internal supervise -- sh -c 'kill -HUP $$; echo alive; read x; exit 6'"
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).env_clear().env("PATH", "/usr/bin:/bin").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Sandbox::run_on(command);
    assert_eq!(running.line().await, "alive");
    running.signal(Signal::HUP);
    running.feed(b"x\n").await;
    assert_eq!(running.end().await.0, Some(6));
}

#[tokio::test]
async fn second_ctrl_c_kills() {
    let sandbox = sandbox();
    let script = "trap 'echo int' INT; echo up; while :; do sleep 25 & wait; done";
    let mut running = start(&sandbox, &[], script);
    assert_eq!(running.line().await, "up");
    running.interrupt();
    assert_eq!(running.line().await, "int");
    running.interrupt();
    assert_eq!(running.end().await.0, Some(137));
}

#[tokio::test]
async fn grace_ends_stubborn_command() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &["--grace", "300ms"], "trap '' TERM; echo up; sleep 25");
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(137));
    let mut running =
        start(&sandbox, &["--grace", "300ms", "--stop-after", "1ms"], "trap '' TERM; echo up; sleep 25");
    running.silence(SOON).await;
    assert!(matches!(running.end().await.0, Some(137 | 143)), "before or after the trap");
}

#[tokio::test]
async fn passed_deadline_stops_command_with_122() {
    let sandbox = sandbox();
    for script in ["sleep 25", "trap '' TERM; sleep 25", "trap 'exit 0' TERM; sleep 25 & wait"] {
        let begin = Instant::now();
        let mut running = start(&sandbox, &["--term-after", "400ms", "--kill-after", "800ms"], script);
        running.silence(SOON).await;
        assert_eq!(running.end().await.0, Some(122), "{script}");
        assert!(begin.elapsed() >= Duration::from_millis(400), "{script}");
    }
    let mut running = start(&sandbox, &["--lose-after", "100ms"], "trap '' TERM; sleep 25");
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(122));
}

#[tokio::test]
async fn renewed_command_outlives_every_deadline() {
    let sandbox = sandbox();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "100ms"];
    let running = start(&sandbox, &flags, "sleep 4; exit 3");
    assert_eq!(running.end().await.0, Some(3));
}

#[tokio::test]
async fn killed_supervisor_leaves_no_process() {
    let sandbox = sandbox();
    let script = "sleep 25 & sh -c 'sleep 25 & trap \"\" TERM HUP; wait' & echo up; wait";
    let mut running = start(&sandbox, &[], script);
    assert_eq!(running.line().await, "up");
    running.signal(Signal::KILL);
    running.silence(SOON).await;
}

/// Covers the window between starting the command and sending its pid to the sentinel.
#[tokio::test]
async fn supervisor_killed_while_starting_leaves_no_process() {
    let sandbox = sandbox();
    let begin = Instant::now();
    assert_eq!(sandbox.run(&["internal", "supervise", "--", "true"]).await.code, Some(0));
    let whole = begin.elapsed();
    for step in 0..60 {
        let mut running = start(&sandbox, &[], "sleep 25 & sleep 25");
        // The kills are spread over a whole run and a little more.
        tokio::time::sleep(whole * step / 50).await;
        running.signal(Signal::KILL);
        running.silence(SOON).await;
    }
}

#[tokio::test]
async fn sentinel_kills_for_stopped_supervisor() {
    let sandbox = sandbox();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "100ms"];
    let mut running = start(&sandbox, &flags, "trap '' TERM; sleep 25 & echo $!; echo $$; wait");
    let (grandchild, child) = (running.line().await, running.line().await);
    let begin = Instant::now();
    running.signal(Signal::STOP);
    gone(&grandchild).await;
    gone(&child).await;
    assert!(begin.elapsed() > Duration::from_secs(2), "not before the deadline: {:?}", begin.elapsed());
    running.signal(Signal::CONT);
    assert_eq!(running.end().await.0, Some(122));
}

#[tokio::test]
async fn killed_sentinel_is_replaced() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &[], "echo up; sleep 25 & wait");
    assert_eq!(running.line().await, "up");
    let first = sentinel_of(&running);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(first, signal).unwrap();
    }
    kill_process(first, Signal::KILL).unwrap();
    running.hear("another one guards").await;
    assert_ne!(sentinel_of(&running), first);
    running.signal(Signal::KILL);
    running.silence(SOON).await;
}

/// The pipe of a stopped sentinel holds deadlines that have passed, and newer ones behind them: more bytes than one read returns.
#[tokio::test]
async fn continued_sentinel_leaves_a_renewed_command_alone() {
    let sandbox = sandbox();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "10ms"];
    let mut running = start(&sandbox, &flags, "trap 'exit 5' TERM; sleep 25 & echo up; wait");
    assert_eq!(running.line().await, "up");
    let sentinel = sentinel_of(&running);
    kill_process(sentinel, Signal::STOP).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    kill_process(sentinel, Signal::CONT).unwrap();
    // A sentinel that acts on the first deadline kills immediately.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(sentinel_of(&running), sentinel);
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(5));
}

#[tokio::test]
async fn stopped_sentinel_delays_nothing() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &[], "trap 'exit 5' TERM; sleep 25 & echo up; wait");
    assert_eq!(running.line().await, "up");
    kill_process(sentinel_of(&running), Signal::STOP).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(5));
}

#[tokio::test]
async fn remaining_process_is_named_and_awaited() {
    let sandbox = sandbox();
    let fifo = sandbox.path("fifo");
    let script = format!("mkfifo {fifo}; timeout --foreground 25 cat {fifo} & echo $!; exit 3");
    let mut running = start(&sandbox, &[], &script);
    let left = running.line().await;
    let named = running.hear("waiting for the processes that it left running").await;
    assert!(named.contains(&format!("{left} (")), "{named}");
    let feeding = tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap());
    assert_eq!(running.end().await.0, Some(3));
    tokio::time::timeout(RUN_DEADLINE, feeding).await.unwrap().unwrap();
}

#[tokio::test]
async fn signals_reach_remaining_processes() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &[], "sleep 25 & exit 3");
    running.hear("waiting for the processes that it left running").await;
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(3));
}

/// Each leaves the command's process group and prints a line once it runs outside. The reaper adopts the last one, and the command ends
/// before it.
const ESCAPES: [&str; 3] = ["timeout 25 $job", "setsid $job & wait", "(setsid $job &); exit 3"];

#[tokio::test]
async fn stop_reaches_processes_outside_the_group() {
    let sandbox = sandbox();
    for escape in ESCAPES {
        let script = escape.replace("$job", "sh -c 'echo up; exec sleep 25'");
        let mut running = start(&sandbox, &["--grace", "20s"], &script);
        assert_eq!(running.line().await, "up");
        running.signal(Signal::TERM);
        running.silence(SOON).await;
        assert!(matches!(running.end().await.0, Some(3 | 143)), "{escape}");
    }
}

#[tokio::test]
async fn daemon_of_command_is_named_and_awaited() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &[], "(setsid sleep 25 &); exit 3");
    let named = running.hear("waiting for the processes that it left running").await;
    // The process may be listed before it has executed `setsid` or `sleep`.
    assert!(["(sh)", "(setsid)", "(sleep)"].iter().any(|name| named.contains(name)), "{named}");
    running.signal(Signal::TERM);
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(3));
}

/// The reaper adopts and reaps: a command that starts many daemons leaves no zombies while it runs.
#[tokio::test]
async fn ended_orphans_are_reaped_early() {
    let sandbox = sandbox();
    let script = "for i in 1 2 3 4 5; do (setsid true &); done; echo up; read x";
    let mut running = sandbox.start_with_open_stdin(&["internal", "supervise", "--", "sh", "-c", script]);
    assert_eq!(running.line().await, "up");
    let reaper = helpers_of(&running, "reap")[0].as_raw_nonzero();
    let children = || std::fs::read_to_string(format!("/proc/{reaper}/task/{reaper}/children")).unwrap();
    let begin = Instant::now();
    while children().split_whitespace().count() != 1 {
        assert!(begin.elapsed() < SOON, "{}", children());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.feed(b"x\n").await;
    assert_eq!(running.end().await.0, Some(0));
}

/// A killed reaper ends its command, because without it the process tree cannot be followed.
#[tokio::test]
async fn killed_reaper_ends_the_command() {
    let sandbox = sandbox();
    let mut running = start(&sandbox, &[], "echo up; sleep 25 & wait");
    assert_eq!(running.line().await, "up");
    kill_process(helpers_of(&running, "reap")[0], Signal::KILL).unwrap();
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(137));
}
