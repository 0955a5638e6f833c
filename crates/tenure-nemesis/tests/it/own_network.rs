//! Faults that need a network of our own, or a clock: that each is one, that they break nothing, and that nothing of them stays.
//!
//! Where the machine does not allow them the rig reports that and goes on, and then the report is
//! checked.
#![allow(clippy::print_stderr, reason = "what a machine does not allow is reported")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_nemesis::rig::way_in;

fn rig(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-nemesis"));
    command.args(["--store", "etcd", "--folder"]).arg(folder);
    command
}

/// The output of the rig.
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The numbers in a sentence.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn link_and_clock_faults_begin_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let text = output_of(rig(folder.path()).arg("--show"));
    if let Err(why) = way_in() {
        eprintln!("LEFT OUT: {why}");
        assert!(text.contains(&why), "{text}");
        return;
    }
    // Sent, heard, answered, and after how many milliseconds half of the answers were there.
    type Bites = fn(&[u64]) -> bool;
    let wanted: [(&str, Bites); 12] = [
        ("silence", |seen| seen[1..3] == [0, 0]),
        ("silence-one", |seen| seen[1..3] == [0, 0]),
        ("mute", |seen| seen[0] == 100 && seen[1..3] == [0, 0]),
        ("deaf", |seen| seen[1..3] == [100, 0]),
        ("unplug", |seen| seen[..3] == [0, 0, 0]),
        ("wire m1 to m2", |seen| seen[1..3] == [0, 0]),
        ("wire m2 to m1, seen from m1", |seen| seen[1..3] == [100, 0]),
        ("loss", |seen| (20..95).contains(&seen[2])),
        ("narrow", |seen| seen[2] < 60),
        ("lag", |seen| seen[3] > 100),
        ("reorder", |seen| seen[3] > 15),
        ("duplicate", |seen| seen[2] > 105),
    ];
    for (name, bites) in wanted {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let Some(line) = line else {
            let is_told = text.lines().any(|line| line.starts_with("LEFT OUT") && line.contains(name));
            assert!(is_told, "{name} was neither shown nor left out:\n{text}");
            eprintln!("LEFT OUT: {name}");
            continue;
        };
        let (during, after) = line.split_once("; afterwards: ").unwrap();
        assert!(bites(&numbers(during)), "{name}: {line}");
        assert_eq!(numbers(after)[..3], [100, 100, 100], "{name}: {line}");
    }
    assert!(
        text.contains("clock-step: +3600, -3600, +0 s") || text.contains("LEFT OUT: clock-step"),
        "{text}"
    );
}

#[test]
fn link_and_clock_faults_break_nothing_on_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let faults = "silence,silence-one,mute,deaf,unplug,loss,narrow,lag,reorder,duplicate,clock-step,\
                  isolate-leader,isolate-member,mute-leader,deaf-leader,bridge";
    let text = output_of(rig(folder.path()).args(["--seconds", "12", "--seed", "3", "--faults", faults]));
    assert!(text.contains("      0 violations"), "{text}");
    let done = text.lines().find(|line| line.ends_with(" faults")).map(numbers).unwrap();
    assert!(done[0] >= 3, "{text}");
}

/// Namespaces without names go with their last process, and the sentinels see to it that there is none.
#[test]
fn killed_rig_leaves_no_network() {
    if let Err(why) = way_in() {
        eprintln!("LEFT OUT: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut rig = rig(folder.path()).args(["--seconds", "60"]).stdout(Stdio::null()).spawn().unwrap();
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The rig's own and a few of its houses: what is being built when it dies goes too. All of them run something that names our folder.
    let networks = loop {
        let networks: BTreeSet<PathBuf> =
            networks(|command| command.contains(&folder.path().display().to_string()));
        if networks.iter().filter(|network| **network != ours).count() >= 4 {
            break networks;
        }
        assert!(Instant::now() < deadline, "the rig did not build its network");
        std::thread::sleep(Duration::from_millis(20));
    };
    rig.kill().unwrap();
    rig.wait().unwrap();
    loop {
        let left: Vec<PathBuf> = networks.iter().filter(|network| **network != ours).cloned().collect();
        let there = self::networks(|_| true);
        if left.iter().all(|network| !there.contains(network)) {
            return;
        }
        assert!(Instant::now() < deadline, "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The network namespaces of all processes with a matching command.
fn networks(is_wanted: impl Fn(&str) -> bool) -> BTreeSet<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let of_one = |process: PathBuf| {
        let command = std::fs::read(process.join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if !is_wanted(&command) {
            return None;
        }
        std::fs::read_link(process.join("ns/net")).ok()
    };
    processes.filter_map(of_one).collect()
}
