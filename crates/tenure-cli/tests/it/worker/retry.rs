//! Ended tasks: shown as submitted, run again, and deleted after `--keep`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{is, on_both, on_file, start};
use crate::sandbox::{RUN_DEADLINE, Sandbox};

/// Fails while the file `broken` exists.
fn script(sandbox: &Sandbox) -> String {
    format!("if test -e {}; then echo no disk >&2; exit 3; fi", sandbox.path("broken"))
}

async fn ended_ids(sandbox: &Sandbox, flags: &[&str]) -> Vec<Value> {
    let listed = sandbox.json(&[&["task", "ls"], flags].concat()).await;
    listed["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect()
}

/// An ended task once showed no kind, labels and props, and could not be run again.
#[tokio::test]
async fn failed_task_is_shown_whole_and_retried() {
    on_both(async |sandbox| {
        sandbox.file("broken", "");
        let worker = start(&sandbox, "w", &script(&sandbox), &["--retries", "0"]).await;
        sandbox.ok(&["submit", "m", "--kind", "mail", "--label", "zone=eu", "--props", r#"{"to": 1}"#]).await;
        let failed = is(&sandbox, "m", "failed").await;
        let (kind, labels, props) = (json!("mail"), json!({"zone": "eu"}), json!({"to": 1}));
        assert_eq!((&failed["kind"], &failed["labels"], &failed["props"]), (&kind, &labels, &props));
        assert!(failed["submitted_at"].is_string(), "{failed}");
        assert_eq!(failed["attempts"][0]["end"], "failed");
        assert_eq!(ended_ids(&sandbox, &["--state", "failed", "--kind", "mail", "--node", "w"]).await, ["m"]);
        assert_eq!(ended_ids(&sandbox, &["--state", "failed", "--kind", "video"]).await, Vec::<Value>::new());

        let again = sandbox.run(&["task", "retry", "m"]).await;
        assert!(again.stderr.contains("'m' was failed and runs again"), "{again:?}");
        is(&sandbox, "m", "failed").await;
        std::fs::remove_file(sandbox.path("broken")).unwrap();
        let refused = sandbox.run(&["task", "retry", "--kind", "mail"]).await;
        assert_eq!(refused.code, Some(2), "a filter needs --yes: {refused:?}");
        sandbox.ok(&["task", "retry", "--kind", "mail", "--yes"]).await;
        let done = is(&sandbox, "m", "completed").await;
        assert_eq!((&done["kind"], &done["labels"], &done["props"]), (&kind, &labels, &props));
        assert_eq!(done["submitted_at"], failed["submitted_at"]);
        let ends: Vec<&Value> = done["attempts"].as_array().unwrap().iter().map(|one| &one["end"]).collect();
        assert_eq!(ends, ["failed", "failed", "completed"]);

        let none = sandbox.run(&["task", "retry", "--kind", "mail", "--yes"]).await;
        assert!(none.stderr.contains("there is no task to retry with --kind mail"), "{none:?}");
        sandbox.ok(&["task", "retry", "--kind", "mail", "--state", "completed", "--yes"]).await;
        assert_eq!(sandbox.run(&["task", "retry", "other"]).await.code, Some(3));
        worker.interrupt();
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn task_that_has_not_ended_is_not_retried() {
    let sandbox = on_file();
    sandbox.ok(&["submit", "m"]).await;
    let refused = sandbox.run(&["task", "retry", "m"]).await;
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("it has not ended, it is runnable"), "{refused:?}");
    assert!(refused.stderr.contains("hint: "), "{refused:?}");
}

/// The states of ended tasks once stayed for ever.
#[tokio::test]
async fn ended_tasks_are_deleted_after_keep() {
    on_both(async |sandbox| {
        let worker = start(&sandbox, "w", "true", &["--keep", "2s"]).await;
        sandbox.ok(&["submit", "a", "--props", "1"]).await;
        is(&sandbox, "a", "completed").await;
        let begin = Instant::now();
        while sandbox.run(&["task", "show", "a"]).await.code != Some(3) {
            assert!(begin.elapsed() < RUN_DEADLINE, "it is still there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let left = sandbox.json(&["kv", "range", "/tenure/"]).await.to_string();
        assert!(!left.contains("/ended/") && !left.contains("/state/"), "{left}");
        let events = sandbox.ok(&["events"]).await;
        assert!(events.contains("forgotten"), "{events}");
        worker.interrupt();
        worker.end().await;
    })
    .await;
}
