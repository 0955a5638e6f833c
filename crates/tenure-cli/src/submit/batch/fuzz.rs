//! Fuzz target: every line of a file is a task, or nothing is submitted and the message names the line.

use std::collections::BTreeSet;

use super::tasks;

fn file(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
    match tasks(bytes) {
        Ok(tasks) => {
            assert_eq!(tasks.len(), lines, "a line was skipped");
            let ids: BTreeSet<_> = tasks.iter().map(|task| task.0.clone()).collect();
            assert_eq!(ids.len(), lines, "one task twice");
            format!("{} tasks", lines.min(8))
        }
        Err(why) => {
            assert!(why.starts_with("line ") || lines == 0, "no line is named: {why}");
            let reason = why.split_once(": ").map_or(why.as_str(), |(_, why)| why);
            reason.split(|c: char| c.is_ascii_digit() || c == '"').next().unwrap_or_default().to_owned()
        }
    }
}

#[test]
fn batches_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "task_file", file);
}
