//! The examples that the README promises something about, run as their users run them: as processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_fixture::Etcd;

/// How long the next line may take on a busy machine. What is waited for takes a few seconds at most.
const LINE_WITHIN: Duration = Duration::from_secs(30);

/// An example that runs, and what it says.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Running {
    fn start(example: &str, arguments: &[&str]) -> Running {
        let mut child = Command::new(binary(example))
            .args(arguments)
            .env_remove("TENURE_STORE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Running { child, lines, said: Vec::new() }
    }

    /// Waits for a line with each of these words. The lines of the session's task and those of the example come from two tasks, so
    /// neighbours may change places.
    fn says(&mut self, promised: &[&str]) {
        let deadline = Instant::now() + LINE_WITHIN;
        let mut missing = promised.to_vec();
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line with {missing:?}; it said\n{}", self.said.join("\n"));
            };
            missing.retain(|words| !line.contains(words));
            self.said.push(line);
        }
    }

    /// Ends as after Ctrl-C, or by itself, and without a failure.
    fn ends(mut self) -> Vec<String> {
        let status = self.child.wait().unwrap();
        self.said.extend(self.lines.iter());
        assert!(status.success(), "{status}; it said\n{}", self.said.join("\n"));
        std::mem::take(&mut self.said)
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // After a failed assertion; one that has ended cannot be killed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Examples are built into a folder beside that of the tests: by nextest with them, otherwise before them.
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

/// What the log under a heading of docs/registration.md says: each text once, in the order of the first lines with it, without times and fields.
///
/// The lines of the etcd client are left out: when its streams notice that the store is gone or back is no part of the story.
fn promised(heading: &str) -> Vec<&'static str> {
    let readme = include_str!("../../../../docs/registration.md");
    let section = readme.split_once(heading).expect("the guide has the heading").1;
    let log = section.split("```").nth(1).expect("a log follows");
    let mut texts = Vec::new();
    for line in log.lines() {
        let Some((_, said)) = line.split_once("INFO ").or_else(|| line.split_once("WARN ")) else { continue };
        let fields = said.split(' ').find(|word| word.contains('='));
        let text = fields.map_or(said, |first| said[..said.find(first).unwrap_or(0)].trim_end());
        if !text.starts_with("watches") && !text.starts_with("keep-alive") && !texts.contains(&text) {
            texts.push(text);
        }
    }
    assert!(texts.len() >= 3, "the log under {heading:?} promises little: {texts:?}");
    texts
}

/// The texts up to the last one with this word, and those after it.
fn split_after<'a>(texts: &'a [&'static str], word: &str) -> (&'a [&'static str], &'a [&'static str]) {
    texts.split_at(texts.iter().rposition(|text| text.contains(word)).unwrap() + 1)
}

#[test]
fn shared_lease_example_on_memory() {
    let said = Running::start("shared_lease", &[]).ends();
    assert!(said.last().unwrap().ends_with("is gone"), "{said:?}");
    assert_eq!(said.iter().filter(|line| line.starts_with("registered")).count(), 3);
}

#[test]
fn shared_lease_example_on_etcd() {
    let etcd = Etcd::start();
    let said = Running::start("shared_lease", &[&format!("etcd://{}", etcd.endpoints())]).ends();
    let leases: std::collections::BTreeSet<&str> =
        said.iter().filter_map(|line| line.split_once("under lease ")).map(|(_, lease)| lease).collect();
    assert_eq!(leases.len(), 1, "{said:?}");
    assert!(said.last().unwrap().ends_with("is gone"), "{said:?}");
}

#[test]
fn etcd_retry_logs_short_outage_as_documented() {
    let etcd = Etcd::start();
    let mut example = Running::start("etcd_retry", &[&format!("etcd://{}", etcd.endpoints())]);
    example.says(&promised("### Start it"));
    etcd.member(0).kill();
    let log = promised("### A short outage");
    let (down, up) = split_after(&log, "suspect");
    example.says(down);
    etcd.member(0).restart();
    example.says(up);
    example.interrupt();
    let said = example.ends();
    assert!(!said.iter().any(|line| line.contains("lost")), "{said:?}");
    assert!(said.last().unwrap().contains("session closed, nothing is left in the store"), "{said:?}");
}

#[test]
fn etcd_retry_logs_long_outage_as_documented() {
    let etcd = Etcd::start();
    let mut example = Running::start("etcd_retry", &[&format!("etcd://{}", etcd.endpoints()), "8"]);
    example.says(&promised("### Start it"));
    etcd.member(0).kill();
    let log = promised("### A long outage");
    let (down, up) = split_after(&log, "lost");
    example.says(down);
    etcd.member(0).restart();
    example.says(up);
    example.interrupt();
    let said = example.ends();
    assert!(said.last().unwrap().contains("session closed, nothing is left in the store"), "{said:?}");
}

#[test]
fn guarded_write_refuses_late_holder() {
    let etcd = Etcd::start();
    for address in ["memory:".to_owned(), format!("etcd://{}", etcd.endpoints())] {
        let said = Running::start("guarded_write", &[&address]).ends();
        let tail: Vec<&str> =
            said.iter().map(|line| line.split_once(": ").map_or("", |(_, rest)| rest)).collect();
        assert_eq!(tail[2], "second wrote true, first wrote false, it holds Some(\"90\")");
        assert!(tail[3].contains("is stale") && tail[3].ends_with("it holds 90"), "{said:?}");
        assert_eq!(tail[4], "second changed 1 row, first changed 0, it holds 90");
        assert_eq!(tail[5], "second got 204, first got 412, no token got 428, it holds 90");
    }
}

#[test]
fn leader_only_ends_with_its_work() {
    let said = Running::start("leader_only", &["memory:", "web-1", "2"]).ends();
    assert!(said[1].starts_with("web-1 leads"), "{said:?}");
    assert_eq!(said.iter().filter(|line| line.contains("works")).count(), 2);
}

#[test]
fn leader_only_has_successor_after_kill_and_stop() {
    let etcd = Etcd::start();
    let address = format!("etcd://{}", etcd.endpoints());
    let candidate = |name: &str| Running::start("leader_only", &[&address, name]);
    let mut first = candidate("one");
    first.says(&["one leads", "one works"]);
    let mut second = candidate("two");
    second.says(&["two is a candidate"]);
    // Killed: the next one leads when the lease is over, without being told.
    first.child.kill().unwrap();
    second.says(&["two leads", "two works"]);
    let mut third = candidate("three");
    third.says(&["three is a candidate"]);
    second.interrupt();
    third.says(&["three leads", "three works"]);
    let said = second.ends();
    assert_eq!(said.last().map(String::as_str), Some("two stops"));
    third.interrupt();
    third.ends();
}

#[test]
fn two_workers_continue_from_checkpoint() {
    let said = Running::start("two_workers", &["memory:"]).ends();
    let lines = |words: &str| said.iter().filter(|line| line.contains(words)).count();
    assert_eq!((lines("goes on at 0,"), lines("goes on at")), (12, 18), "{}", said.join("\n"));
    assert_eq!(said.last().unwrap(), "all 12 tasks are completed");
}

#[test]
fn custom_balancer_prefers_own_zone() {
    let said = Running::start("custom_balancer", &[]).ends();
    assert_eq!(said.len(), 2, "{}", said.join("\n"));
    for (line, zone, other) in [(&said[0], "eu", "us-"), (&said[1], "us", "eu-")] {
        assert!(line.starts_with(&format!("{zone} runs ")) && !line.contains(other), "{}", said.join("\n"));
    }
    assert_eq!(said.iter().map(|line| line.matches("asia-").count()).sum::<usize>(), 3);
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
        let processes: Vec<Running> = (0..3).map(|_| Running::start("fenced_transfer", &[address])).collect();
        let mut said: Vec<String> = processes.into_iter().flat_map(Running::ends).collect();
        said.sort();
        for (line, balance) in said.iter().zip(1..) {
            assert!(line.starts_with(&format!("balance {balance}, token ")), "{said:?}");
        }
        assert_eq!(said.len(), 3, "{said:?}");
    });
}

#[test]
fn limited_exports_run_three_at_a_time() {
    on_file_and_etcd(|address| {
        let said = Running::start("limited_exports", &[address]).ends();
        assert_eq!(said.len(), 10, "{said:?}");
        let allowed = ["of 1", "of 2", "of 3"];
        assert!(said.iter().all(|line| allowed.iter().any(|end| line.ends_with(end))), "{said:?}");
        assert!(said.iter().any(|line| line.ends_with("of 3")), "{said:?}");
    });
}

#[test]
fn once_a_day_runs_in_one_process() {
    on_file_and_etcd(|address| {
        let today = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 3_600);
        let day = today();
        let first = Running::start("once_a_day", &[address]).ends();
        let second = Running::start("once_a_day", &[address]).ends();
        if today() != day {
            // Midnight came between them: the second may have run too.
            return;
        }
        assert!(first[0].ends_with(" bytes"), "{first:?}");
        assert!(second[0].starts_with("done already at "), "{second:?}");
    });
}

#[test]
fn scheduler_health_says_who_leads() {
    on_file_and_etcd(|address| {
        let said = Running::start("scheduler_health", &[address, "web-1"]).ends();
        assert_eq!(said.first().unwrap(), "well=true leader=false");
        assert_eq!(said.last().unwrap(), "well=true leader=false");
        let ticks = said.iter().filter(|line| line.starts_with("tick"));
        assert_eq!(ticks.filter(|line| line.ends_with("well=true leader=true")).count(), 5, "{said:?}");
    });
}

#[test]
fn own_ttl_storage_conforms_and_has_a_leader() {
    let output = Running::start("own_ttl_storage", &[]).ends();
    assert_eq!(output.last().unwrap(), "42 pages, written by the leader");
    assert!(output[0].starts_with("0 of "), "{output:?}");
}

#[test]
fn redis_election_writes_one_report() {
    let redis = tenure_fixture::Redis::start();
    let output = Running::start("redis_election", &[&redis.url()]).ends();
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
