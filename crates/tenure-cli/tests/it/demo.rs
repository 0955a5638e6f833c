//! The demo is the first thing a stranger runs: it needs nothing, leaves nothing, and its numbers hold.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::machine::Machine;

/// A machine whose temporary folder is its own.
fn machine() -> Machine {
    let machine = Machine::new();
    let temporary = machine.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    machine.with("TMPDIR", temporary)
}

fn check(told: &Value, tasks: u64) {
    assert_eq!((&told["schema"], &told["ok"]), (&json!("tenure.demo/v1"), &json!(true)), "{told}");
    assert_eq!(
        (&told["ran_twice"], &told["lost"], &told["tasks"]),
        (&json!(0), &json!(0), &json!(tasks)),
        "{told}"
    );
    let number = |name: &str| told[name].as_u64().unwrap();
    assert!(number("max_per_node") - number("min_per_node") <= 2, "{told}");
    assert!(number("max_per_node_before") - number("min_per_node_before") <= 2, "{told}");
    assert!(number("killed_tasks") + 2 >= tasks / number("nodes"), "{told}");
    assert!(
        told["reclaimed_seconds"].as_f64().unwrap() > 1.0,
        "nobody else has them before the lease is over: {told}"
    );
    assert_ne!(told["leader"], told["killed"], "{told}");
    assert!(
        told["verdict"].as_str().unwrap().contains(" · 0 ran twice at once · 0 lost · max/min per node "),
        "{told}"
    );
}

#[tokio::test]
async fn the_numbers_hold_and_nothing_is_left() {
    // Also where no store is configured, or another one that must not be touched.
    let machine = machine().with("CI", "true").with("TENURE_STORE", "etcd://127.0.0.1:1");
    let told = machine.json(&["demo"]).await;
    check(&told, 1_000);
    assert_eq!(told["backend"], "file");
    assert_eq!(std::fs::read_dir(machine.path("tmp")).unwrap().count(), 0, "the demo left something behind");
    assert!(!std::path::Path::new(&machine.path(".local")).exists());
}

#[tokio::test]
async fn on_a_store_that_was_named_it_tidies_up_after_itself() {
    let etcd = Etcd::start();
    let machine = machine();
    let url = format!("etcd://{}", etcd.endpoints());
    let told = machine.json(&["demo", "--store", &url, "--tasks", "200", "--nodes", "4"]).await;
    check(&told, 200);
    assert_eq!((&told["backend"], &told["nodes"]), (&json!("etcd"), &json!(4)));
    let administrator = Machine::administrator();
    assert_eq!(administrator.ok(&["kv", "range", "", "--store", &url]).await, "", "no key is left");
}

#[tokio::test]
async fn people_are_told_a_story_and_scripts_one_line() {
    let machine = machine();
    let ran = machine.run(&["demo", "--tasks", "30", "--nodes", "2"]).await;
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
    let machine = machine();
    for (flags, words) in [
        (&["--nodes", "1"][..], "2..=32"),
        (&["--tasks", "0"], "1..=100000"),
        (&["--ttl", "3"], "did you mean 3s?"),
        (&["--ttl", "10ms"], "longer --ttl"),
        (&["--store", "memory:"], "for one process"),
    ] {
        let ran = machine.run(&[&["demo"], flags].concat()).await;
        assert_eq!(ran.code, Some(2), "{flags:?} {ran:?}");
        assert!(ran.stderr.contains(words), "{flags:?} {ran:?}");
    }
    assert_eq!(std::fs::read_dir(machine.path("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn interrupted_it_leaves_nothing_either() {
    let machine = machine();
    let mut running = machine.start(&["demo", "--tasks", "100"]);
    running.hear("tasks submitted").await;
    running.interrupt();
    running.silence(std::time::Duration::from_secs(15)).await;
    assert_eq!(running.end().await.0, Some(130));
    assert_eq!(std::fs::read_dir(machine.path("tmp")).unwrap().count(), 0);
}
