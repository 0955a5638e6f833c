//! Commands under supervision, with deadlines from the command line: what happens to them and to everything they start.
//!
//! Every script ends by itself within half a minute, so that a failing test leaves nothing behind either.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::process::Command;

use crate::machine::{Machine, PATIENCE, Running, binary};

/// Far less than the scripts' own half minute, and far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

fn machine() -> Machine {
    Machine::new().with("PATH", "/usr/bin:/bin")
}

/// Starts a script of sh under supervision.
fn start(machine: &Machine, flags: &[&str], script: &str) -> Running {
    machine.start(&[&["internal", "supervise"], flags, &["--", "sh", "-c", script]].concat())
}

/// Waits until a process of whoever is gone.
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
async fn the_exit_code_is_the_commands_own() {
    let machine = machine();
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
    {
        let ran = machine.run(&["internal", "supervise", "--", "sh", "-c", script]).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), ""), "{script}");
    }
}

#[tokio::test]
async fn stdin_and_arguments_arrive_as_they_are() {
    let machine = machine();
    let input: Vec<u8> = (0..=255).cycle().take(100_000).map(|byte: u8| byte.max(1) & 0x7f).collect();
    let ran = machine.run_with(&["internal", "supervise", "--", "cat"], &input).await;
    assert_eq!((ran.code, ran.stdout.as_bytes()), (Some(0), &input[..]));
    let args = ["internal", "supervise", "--", "printf", "%s|", "a b", "", "--json", "--", "*", "-v"];
    assert_eq!(machine.ok(&args).await, "a b||--json|--|*|-v|");
}

#[tokio::test]
async fn a_script_without_an_interpreter_line_runs_and_a_missing_interpreter_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let machine = machine();
    let place = |name: &str, text: &str| {
        let path = machine.file(name, text);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let plain = place("plain", "exit 5\n");
    assert_eq!(machine.run(&["internal", "supervise", "--", &plain]).await.code, Some(5));
    let broken = place("broken", "#!/nowhere/interpreter\n");
    let ran = machine.run(&["internal", "supervise", "--", &broken]).await;
    assert_eq!(ran.code, Some(127), "{ran:?}");
    assert!(ran.stderr.contains("interpreter"), "{ran:?}");
}

#[tokio::test]
async fn signals_are_passed_on_to_the_whole_group() {
    let machine = machine();
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
        let mut running = start(&machine, &[], &script);
        assert_eq!(running.line().await, "up");
        running.signal(signal);
        assert_eq!(running.line().await, format!("got {name}"));
        assert_eq!(running.end().await.0, Some(9), "{name}");
    }
}

#[tokio::test]
async fn a_signal_that_was_ignored_at_our_start_stays_ignored() {
    let tenure = binary();
    let script = format!(
        "trap '' HUP; exec {tenure} internal supervise -- sh -c 'kill -HUP $$; echo alive; read x; exit 6'"
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script]).env_clear().env("PATH", "/usr/bin:/bin").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Machine::run_on(command);
    assert_eq!(running.line().await, "alive");
    running.signal(Signal::HUP);
    running.feed(b"x\n").await;
    assert_eq!(running.end().await.0, Some(6));
}

#[tokio::test]
async fn a_second_ctrl_c_kills() {
    let machine = machine();
    let script = "trap 'echo int' INT; echo up; while :; do sleep 25 & wait; done";
    let mut running = start(&machine, &[], script);
    assert_eq!(running.line().await, "up");
    running.interrupt();
    assert_eq!(running.line().await, "int");
    running.interrupt();
    assert_eq!(running.end().await.0, Some(137));
}

#[tokio::test]
async fn the_grace_ends_what_does_not_end() {
    let machine = machine();
    let mut running = start(&machine, &["--grace", "300ms"], "trap '' TERM; echo up; sleep 25");
    assert_eq!(running.line().await, "up");
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(137));
    let mut running =
        start(&machine, &["--grace", "300ms", "--stop-after", "1ms"], "trap '' TERM; echo up; sleep 25");
    running.silence(SOON).await;
    assert!(matches!(running.end().await.0, Some(137 | 143)), "before or after the trap");
}

#[tokio::test]
async fn the_deadlines_stop_the_command_and_that_is_122() {
    let machine = machine();
    for script in ["sleep 25", "trap '' TERM; sleep 25", "trap 'exit 0' TERM; sleep 25 & wait"] {
        let begin = Instant::now();
        let mut running = start(&machine, &["--term-after", "400ms", "--kill-after", "800ms"], script);
        running.silence(SOON).await;
        assert_eq!(running.end().await.0, Some(122), "{script}");
        assert!(begin.elapsed() >= Duration::from_millis(400), "{script}");
    }
    let mut running = start(&machine, &["--lose-after", "100ms"], "trap '' TERM; sleep 25");
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(122));
}

#[tokio::test]
async fn renewed_in_time_it_runs_past_every_single_deadline() {
    let machine = machine();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "100ms"];
    let running = start(&machine, &flags, "sleep 4; exit 3");
    assert_eq!(running.end().await.0, Some(3));
}

#[tokio::test]
async fn killed_with_9_we_leave_nobody_behind() {
    let machine = machine();
    let script = "sleep 25 & sh -c 'sleep 25 & trap \"\" TERM HUP; wait' & echo up; wait";
    let mut running = start(&machine, &[], script);
    assert_eq!(running.line().await, "up");
    running.signal(Signal::KILL);
    running.silence(SOON).await;
}

/// The window between starting the command and telling the sentinel: whenever we are killed, nobody stays.
#[tokio::test]
async fn killed_at_any_moment_of_the_start_we_leave_nobody_behind() {
    let machine = machine();
    let begin = Instant::now();
    assert_eq!(machine.run(&["internal", "supervise", "--", "true"]).await.code, Some(0));
    let whole = begin.elapsed();
    for step in 0..60 {
        let mut running = start(&machine, &[], "sleep 25 & sleep 25");
        // Spread over a whole run and a little more.
        tokio::time::sleep(whole * step / 50).await;
        running.signal(Signal::KILL);
        running.silence(SOON).await;
    }
}

#[tokio::test]
async fn stopped_past_the_end_the_sentinel_kills_for_us() {
    let machine = machine();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "100ms"];
    let mut running = start(&machine, &flags, "trap '' TERM; sleep 25 & echo $!; echo $$; wait");
    let (grandchild, child) = (running.line().await, running.line().await);
    let begin = Instant::now();
    running.signal(Signal::STOP);
    gone(&grandchild).await;
    gone(&child).await;
    assert!(begin.elapsed() > Duration::from_secs(2), "not before the end: {:?}", begin.elapsed());
    running.signal(Signal::CONT);
    assert_eq!(running.end().await.0, Some(122));
}

#[tokio::test]
async fn a_sentinel_is_deaf_to_polite_signals_and_replaced_when_it_is_killed() {
    let machine = machine();
    let mut running = start(&machine, &[], "echo up; sleep 25 & wait");
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

/// Its pipe holds deadlines that have passed, and newer ones behind them: several kilobytes, more than one read takes.
#[tokio::test]
async fn continued_sentinel_leaves_a_renewed_command_alone() {
    let machine = machine();
    let flags = ["--term-after", "2s", "--kill-after", "3s", "--renew-every", "10ms"];
    let mut running = start(&machine, &flags, "trap 'exit 5' TERM; sleep 25 & echo up; wait");
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
async fn a_sentinel_that_somebody_stopped_does_not_keep_us() {
    let machine = machine();
    let mut running = start(&machine, &[], "trap 'exit 5' TERM; sleep 25 & echo up; wait");
    assert_eq!(running.line().await, "up");
    kill_process(sentinel_of(&running), Signal::STOP).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(5));
}

#[tokio::test]
async fn what_the_command_leaves_running_is_named_and_waited_for() {
    let machine = machine();
    let fifo = machine.path("fifo");
    let script = format!("mkfifo {fifo}; timeout --foreground 25 cat {fifo} & echo $!; exit 3");
    let mut running = start(&machine, &[], &script);
    let left = running.line().await;
    let named = running.hear("waiting for the processes that it left running").await;
    assert!(named.contains(&format!("{left} (")), "{named}");
    let feeding = tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap());
    assert_eq!(running.end().await.0, Some(3));
    tokio::time::timeout(PATIENCE, feeding).await.unwrap().unwrap();
}

#[tokio::test]
async fn signals_still_reach_what_the_command_left_running() {
    let machine = machine();
    let mut running = start(&machine, &[], "sleep 25 & exit 3");
    running.hear("waiting for the processes that it left running").await;
    running.signal(Signal::TERM);
    assert_eq!(running.end().await.0, Some(3));
}

/// Each leaves the command's process group; the last one is adopted by the reaper, and the command ends before it.
/// Each prints a line once it runs outside the group.
const ESCAPES: [&str; 3] = ["timeout 25 $job", "setsid $job & wait", "(setsid $job &); exit 3"];

#[tokio::test]
async fn stop_reaches_what_left_the_process_group() {
    let machine = machine();
    for escape in ESCAPES {
        let script = escape.replace("$job", "sh -c 'echo up; exec sleep 25'");
        let mut running = start(&machine, &["--grace", "20s"], &script);
        assert_eq!(running.line().await, "up");
        running.signal(Signal::TERM);
        running.silence(SOON).await;
        assert!(matches!(running.end().await.0, Some(3 | 143)), "{escape}");
    }
}

#[tokio::test]
async fn daemon_of_the_command_is_named_and_waited_for() {
    let machine = machine();
    let mut running = start(&machine, &[], "(setsid sleep 25 &); exit 3");
    let named = running.hear("waiting for the processes that it left running").await;
    // It may be listed before it has become `sleep`.
    assert!(named.contains("(sleep)") || named.contains("(setsid)"), "{named}");
    running.signal(Signal::TERM);
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(3));
}

/// The reaper adopts and reaps: a command that starts many daemons leaves no zombies while it runs.
#[tokio::test]
async fn orphans_that_ended_are_reaped_while_the_command_runs() {
    let machine = machine();
    let script = "for i in 1 2 3 4 5; do (setsid true &); done; echo up; read x";
    let mut running = machine.start_with_open_stdin(&["internal", "supervise", "--", "sh", "-c", script]);
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

/// A reaper that an operator kills takes its command with it: without it the tree could not be followed.
#[tokio::test]
async fn killed_reaper_ends_the_command() {
    let machine = machine();
    let mut running = start(&machine, &[], "echo up; sleep 25 & wait");
    assert_eq!(running.line().await, "up");
    kill_process(helpers_of(&running, "reap")[0], Signal::KILL).unwrap();
    running.silence(SOON).await;
    assert_eq!(running.end().await.0, Some(137));
}
