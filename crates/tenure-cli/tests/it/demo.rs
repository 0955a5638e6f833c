//! The demo is the first command a new user runs: it requires no setup, leaves nothing, and reports checked numbers.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;

/// A sandbox with a temporary folder of its own.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let temporary = sandbox.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    sandbox.with("TMPDIR", temporary)
}

fn check(output: &Value, tasks: u64) {
    assert_eq!((&output["schema"], &output["ok"]), (&json!("tenure.demo/v1"), &json!(true)), "{output}");
    assert_eq!(
        (&output["ran_twice"], &output["lost"], &output["tasks"]),
        (&json!(0), &json!(0), &json!(tasks)),
        "{output}"
    );
    let number = |name: &str| output[name].as_u64().unwrap();
    assert!(number("max_per_node") - number("min_per_node") <= 2, "{output}");
    assert!(number("max_per_node_before") - number("min_per_node_before") <= 2, "{output}");
    assert!(number("killed_tasks") + 2 >= tasks / number("nodes"), "{output}");
    assert!(
        output["reclaimed_seconds"].as_f64().unwrap() > 1.0,
        "no other worker can claim them before the lease ends: {output}"
    );
    assert_ne!(output["leader"], output["killed"], "{output}");
    assert!(
        output["verdict"].as_str().unwrap().contains(" · 0 ran twice at once · 0 lost · max/min per node "),
        "{output}"
    );
}

#[tokio::test]
async fn demo_numbers_hold_and_nothing_remains() {
    // The configured store must not be touched, and must not be needed.
    let sandbox = sandbox().with("CI", "true").with("TENURE_STORE", "etcd://127.0.0.1:1");
    let output = sandbox.json(&["demo"]).await;
    check(&output, 1_000);
    assert_eq!(output["backend"], "file");
    assert_eq!(std::fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0, "the demo left files");
    assert!(!std::path::Path::new(&sandbox.path(".local")).exists());
}

#[tokio::test]
async fn demo_on_given_etcd_deletes_its_keys() {
    let etcd = Etcd::start();
    let sandbox = sandbox();
    let url = format!("etcd://{}", etcd.endpoints());
    let output = sandbox.json(&["demo", "--store", &url, "--tasks", "200", "--nodes", "4"]).await;
    check(&output, 200);
    assert_eq!((&output["backend"], &output["nodes"]), (&json!("etcd"), &json!(4)));
    let administrator = Sandbox::administrator();
    assert_eq!(administrator.ok(&["kv", "range", "", "--store", &url]).await, "", "no key is left");
}

#[tokio::test]
async fn story_on_stderr_result_on_stdout() {
    let sandbox = sandbox();
    let ran = sandbox.run(&["demo", "--tasks", "30", "--nodes", "2"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
    assert!(
        ran.stdout.starts_with("balanced in ") && ran.stdout.ends_with("max/min per node 30/30\n"),
        "{ran:?}"
    );
    for chapter in [
        "2 workers have joined",
        "30 tasks submitted",
        ", the leader, with 15 tasks",
        "run on other workers after",
    ] {
        assert!(ran.stderr.contains(chapter), "{chapter}: {ran:?}");
    }
}

#[tokio::test]
async fn bad_input_is_refused() {
    let sandbox = sandbox();
    for (flags, words) in [
        (&["--nodes", "1"][..], "2..=32"),
        (&["--tasks", "0"], "1..=100000"),
        (&["--ttl", "3"], "did you mean 3s?"),
        (&["--ttl", "10ms"], "longer --ttl"),
        (&["--store", "memory:"], "for one process"),
    ] {
        let ran = sandbox.run(&[&["demo"], flags].concat()).await;
        assert_eq!(ran.code, Some(2), "{flags:?} {ran:?}");
        assert!(ran.stderr.contains(words), "{flags:?} {ran:?}");
    }
    assert_eq!(std::fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn interrupted_demo_leaves_nothing() {
    let sandbox = sandbox();
    let mut running = sandbox.start(&["demo", "--tasks", "100"]);
    running.hear("tasks submitted").await;
    running.interrupt();
    running.silence(std::time::Duration::from_secs(15)).await;
    assert_eq!(running.end().await.0, Some(130));
    assert_eq!(std::fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0);
}
