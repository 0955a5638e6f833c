//! The documented examples, run as their users run them: as processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_fixture::Etcd;

/// How long the next line may take on a busy machine. What is waited for takes a few seconds at most.
const LINE_WITHIN: Duration = Duration::from_secs(30);

/// A running example, and its output.
struct RunningExample {
    child: Child,
    lines: mpsc::Receiver<String>,
    output: Vec<String>,
}

impl RunningExample {
    fn start(example: &str, arguments: &[&str]) -> RunningExample {
        let mut child = Command::new(binary(example))
            .args(arguments)
            .env_remove("TENURE_STORE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        RunningExample { child, lines, output: Vec::new() }
    }

    /// Waits for a line with each of these texts. The lines of the session and those of the example come from two tasks, so
    /// adjacent lines may be swapped.
    fn expect_lines(&mut self, promised: &[&str]) {
        let deadline = Instant::now() + LINE_WITHIN;
        let mut missing = promised.to_vec();
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line with {missing:?} in\n{}", self.output.join("\n"));
            };
            missing.retain(|text| !line.contains(text));
            self.output.push(line);
        }
    }

    /// Ends as after Ctrl-C, or by itself, and without a failure.
    fn finish(mut self) -> Vec<String> {
        let status = self.child.wait().unwrap();
        self.output.extend(self.lines.iter());
        assert!(status.success(), "{status}, output\n{}", self.output.join("\n"));
        std::mem::take(&mut self.output)
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
}

impl Drop for RunningExample {
    fn drop(&mut self) {
        // After a failed assertion. Killing a process that has ended is an error without consequence.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Examples are built into a folder next to that of the tests: by nextest with them, otherwise before them.
fn binary(example: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(
        built.exists(),
        "{} was not built: `cargo build --workspace --all-features --examples` builds it",
        built.display()
    );
    built
}

/// The log under a heading of docs/registration.md: each message once, in the order of its first line, without times and fields.
///
/// The lines of the etcd client are left out: the moment at which its streams notice an outage is not documented.
fn promised(heading: &str) -> Vec<&'static str> {
    let readme = include_str!("../../../../docs/registration.md");
    let section = readme.split_once(heading).expect("the guide has the heading").1;
    let log = section.split("```").nth(1).expect("a log follows");
    let mut texts = Vec::new();
    for line in log.lines() {
        let Some((_, output)) = line.split_once("INFO ").or_else(|| line.split_once("WARN ")) else {
            continue;
        };
        let fields = output.split(' ').find(|word| word.contains('='));
        let text = fields.map_or(output, |first| output[..output.find(first).unwrap_or(0)].trim_end());
        if !text.starts_with("watch stream")
            && !text.starts_with("keep-alive stream")
            && !texts.contains(&text)
        {
            texts.push(text);
        }
    }
    assert!(texts.len() >= 3, "the log under {heading:?} is short: {texts:?}");
    texts
}

/// The messages up to the last one with this word, and those after it.
fn split_after<'a>(texts: &'a [&'static str], word: &str) -> (&'a [&'static str], &'a [&'static str]) {
    texts.split_at(texts.iter().rposition(|text| text.contains(word)).unwrap() + 1)
}

#[test]
fn shared_lease_example_on_memory() {
    let output = RunningExample::start("shared_lease", &[]).finish();
    assert!(output.last().unwrap().ends_with("is gone"), "{output:?}");
    assert_eq!(output.iter().filter(|line| line.starts_with("registered")).count(), 3);
}

#[test]
fn shared_lease_example_on_etcd() {
    let etcd = Etcd::start();
    let output = RunningExample::start("shared_lease", &[&format!("etcd://{}", etcd.endpoints())]).finish();
    let leases: std::collections::BTreeSet<&str> =
        output.iter().filter_map(|line| line.split_once("under lease ")).map(|(_, lease)| lease).collect();
    assert_eq!(leases.len(), 1, "{output:?}");
    assert!(output.last().unwrap().ends_with("is gone"), "{output:?}");
}

#[test]
fn etcd_retry_logs_short_outage_as_documented() {
    let etcd = Etcd::start();
    let mut example = RunningExample::start("etcd_retry", &[&format!("etcd://{}", etcd.endpoints())]);
    example.expect_lines(&promised("### Start it"));
    etcd.member(0).kill();
    let log = promised("### A short outage");
    let (down, up) = split_after(&log, "suspect");
    example.expect_lines(down);
    etcd.member(0).restart();
    example.expect_lines(up);
    example.interrupt();
    let output = example.finish();
    assert!(!output.iter().any(|line| line.contains("lost")), "{output:?}");
    assert!(output.last().unwrap().contains("session closed, nothing is left in the store"), "{output:?}");
}

#[test]
fn etcd_retry_logs_long_outage_as_documented() {
    let etcd = Etcd::start();
    let mut example = RunningExample::start("etcd_retry", &[&format!("etcd://{}", etcd.endpoints()), "8"]);
    example.expect_lines(&promised("### Start it"));
    etcd.member(0).kill();
    let log = promised("### A long outage");
    let (down, up) = split_after(&log, "lost");
    example.expect_lines(down);
    etcd.member(0).restart();
    example.expect_lines(up);
    example.interrupt();
    let output = example.finish();
    assert!(output.last().unwrap().contains("session closed, nothing is left in the store"), "{output:?}");
}

#[test]
fn guarded_write_refuses_late_holder() {
    let etcd = Etcd::start();
    for address in ["memory:".to_owned(), format!("etcd://{}", etcd.endpoints())] {
        let output = RunningExample::start("guarded_write", &[&address]).finish();
        let tail: Vec<&str> =
            output.iter().map(|line| line.split_once(": ").map_or("", |(_, rest)| rest)).collect();
        assert_eq!(tail[2], "second wrote true, first wrote false, it holds Some(\"90\")");
        assert!(tail[3].contains("is stale") && tail[3].ends_with("it holds 90"), "{output:?}");
        assert_eq!(tail[4], "second changed 1 row, first changed 0, it holds 90");
        assert_eq!(tail[5], "second got 204, first got 412, no token got 428, it holds 90");
    }
}

#[test]
fn leader_only_ends_with_its_work() {
    let output = RunningExample::start("leader_only", &["memory:", "web-1", "2"]).finish();
    assert!(output[1].starts_with("web-1 leads"), "{output:?}");
    assert_eq!(output.iter().filter(|line| line.contains("works")).count(), 2);
}

#[test]
fn leader_only_has_successor_after_kill_and_stop() {
    let etcd = Etcd::start();
    let address = format!("etcd://{}", etcd.endpoints());
    let candidate = |name: &str| RunningExample::start("leader_only", &[&address, name]);
    let mut first = candidate("one");
    first.expect_lines(&["one leads", "one works"]);
    let mut second = candidate("two");
    second.expect_lines(&["two is a candidate"]);
    // Killed: the next one leads when the lease expires.
    first.child.kill().unwrap();
    second.expect_lines(&["two leads", "two works"]);
    let mut third = candidate("three");
    third.expect_lines(&["three is a candidate"]);
    second.interrupt();
    third.expect_lines(&["three leads", "three works"]);
    let output = second.finish();
    assert_eq!(output.last().map(String::as_str), Some("two stops"));
    third.interrupt();
    third.finish();
}

#[test]
fn two_workers_continue_from_checkpoint() {
    let output = RunningExample::start("two_workers", &["memory:"]).finish();
    let lines = |text: &str| output.iter().filter(|line| line.contains(text)).count();
    assert_eq!((lines("goes on at 0,"), lines("goes on at")), (12, 18), "{}", output.join("\n"));
    assert_eq!(output.last().unwrap(), "all 12 tasks are completed");
}

#[test]
fn custom_balancer_prefers_own_zone() {
    let output = RunningExample::start("custom_balancer", &[]).finish();
    assert_eq!(output.len(), 2, "{}", output.join("\n"));
    for (line, zone, other) in [(&output[0], "eu", "us-"), (&output[1], "us", "eu-")] {
        assert!(line.starts_with(&format!("{zone} runs ")) && !line.contains(other), "{}", output.join("\n"));
    }
    assert_eq!(output.iter().map(|line| line.matches("asia-").count()).sum::<usize>(), 3);
}

/// The addresses of a file and of real etcd, for examples that several processes share.
fn on_file_and_etcd(claim: impl Fn(&str)) {
    let folder = tempfile::tempdir().unwrap();
    claim(&format!("file://{}/store.db", folder.path().display()));
    let etcd = Etcd::start();
    claim(&format!("etcd://{}", etcd.endpoints()));
}

#[test]
fn fenced_transfers_of_several_processes_add_up() {
    on_file_and_etcd(|address| {
        let processes: Vec<RunningExample> =
            (0..3).map(|_| RunningExample::start("fenced_transfer", &[address])).collect();
        let mut output: Vec<String> = processes.into_iter().flat_map(RunningExample::finish).collect();
        output.sort();
        for (line, balance) in output.iter().zip(1..) {
            assert!(line.starts_with(&format!("balance {balance}, token ")), "{output:?}");
        }
        assert_eq!(output.len(), 3, "{output:?}");
    });
}

#[test]
fn limited_exports_run_three_at_a_time() {
    on_file_and_etcd(|address| {
        let output = RunningExample::start("limited_exports", &[address]).finish();
        assert_eq!(output.len(), 10, "{output:?}");
        let allowed = ["of 1", "of 2", "of 3"];
        assert!(output.iter().all(|line| allowed.iter().any(|end| line.ends_with(end))), "{output:?}");
        assert!(output.iter().any(|line| line.ends_with("of 3")), "{output:?}");
    });
}

#[test]
fn once_a_day_runs_in_one_process() {
    on_file_and_etcd(|address| {
        let today = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 3_600);
        let day = today();
        let first = RunningExample::start("once_a_day", &[address]).finish();
        let second = RunningExample::start("once_a_day", &[address]).finish();
        if today() != day {
            // Midnight came between them: the second may have run too.
            return;
        }
        assert!(first[0].ends_with(" bytes"), "{first:?}");
        assert!(second[0].starts_with("done already at "), "{second:?}");
    });
}

#[test]
fn worker_fleet_imports_and_retries() {
    on_file_and_etcd(|address| {
        let output = RunningExample::start("worker_fleet", &[address]).finish();
        for line in [
            "eu-1 paused it",
            "imported 500 rows of a.csv",
            "import-1 is completed",
            "3 mails are completed",
            "0 killed, 0 failed",
        ] {
            assert!(output.iter().any(|printed| printed == line), "{line}: {output:?}");
        }
        let retried =
            output.iter().filter(|line| line.starts_with("sent to ") && line.ends_with("attempt 2"));
        assert_eq!(retried.count(), 1, "{output:?}");
    });
}

#[test]
fn scheduler_health_reports_the_leader() {
    on_file_and_etcd(|address| {
        let output = RunningExample::start("scheduler_health", &[address, "web-1"]).finish();
        assert_eq!(output.first().unwrap(), "well=true leader=false");
        assert_eq!(output.last().unwrap(), "well=true leader=false");
        let ticks = output.iter().filter(|line| line.starts_with("tick"));
        assert_eq!(ticks.filter(|line| line.ends_with("well=true leader=true")).count(), 5, "{output:?}");
    });
}

#[test]
fn own_ttl_storage_conforms_and_has_a_leader() {
    let output = RunningExample::start("own_ttl_storage", &[]).finish();
    assert_eq!(output.last().unwrap(), "42 pages, written by the leader");
    assert!(output[0].starts_with("0 of "), "{output:?}");
}

#[test]
fn redis_election_writes_one_report() {
    let redis = tenure_fixture::Redis::start();
    let output = RunningExample::start("redis_election", &[&redis.url()]).finish();
    assert_eq!(output, ["42 pages, written by the leader"]);
}

#[test]
fn environment_variable_names_store() {
    let folder = tempfile::tempdir().unwrap();
    let run = |store: Option<String>| {
        let mut command = Command::new(binary("fenced_transfer"));
        command.env_remove("TENURE_STORE").envs(store.map(|store| ("TENURE_STORE", store)));
        command.output().unwrap()
    };
    let named = run(Some(format!("file://{}/store.db", folder.path().display())));
    assert!(named.status.success(), "{named:?}");
    for unnamed in [run(None), run(Some(String::new()))] {
        assert!(!unnamed.status.success(), "{unnamed:?}");
        assert!(String::from_utf8_lossy(&unnamed.stderr).contains("NoStore"), "{unnamed:?}");
    }
}
