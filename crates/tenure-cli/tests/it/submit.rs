//! Giving work from the shell: what is accepted, what is refused, and what the exit code says of its end.

use serde_json::{Value, json};
use tenure_fixture::Etcd;

use crate::crew::{Crew, on_file_and_etcd, task};
use crate::machine::Machine;

#[tokio::test]
async fn a_task_is_submitted_once_with_all_that_was_said_of_it() {
    on_file_and_etcd(async |crew| {
        let args = ["submit", "mail/1", "--kind", "mail", "--props", r#"{"to": "a"}"#, "--label", "weight=3"];
        assert_eq!(crew.machine.ok(&args).await, "mail/1");
        let dossier = crew.client().dossier(&task("mail/1")).await.unwrap();
        let record = dossier.task.as_ref().unwrap().record().unwrap();
        assert_eq!((record.kind.as_deref(), record.labels["weight"].as_str()), (Some("mail"), "3"));
        assert_eq!(dossier.props.unwrap(), r#"{"to": "a"}"#, "as it was given");
        let ran = crew.machine.run(&[&args[..], &["--json"]].concat()).await;
        assert_eq!((ran.code, &ran.error()["code"]), (Some(4), &json!("conflict")), "{ran:?}");
        let hint = ran.error()["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains("tenure task show mail/1") && hint.contains("tenure task rm mail/1"), "{hint}");
        assert_eq!(ran.stdout, "", "nothing was submitted");
    })
    .await;
}

#[tokio::test]
async fn without_an_id_a_new_one_is_made_and_printed() {
    let crew = Crew::new().await;
    let told = crew.machine.json(&["submit"]).await;
    let id = told["ids"][0].as_str().unwrap();
    assert_eq!(told, json!({"schema": "tenure.submit/v1", "submitted": 1, "ids": [id], "ended": []}));
    assert_eq!(crew.machine.json(&["task", "show", id]).await["id"], id);
    let many = crew.machine.ok(&["submit", "--count", "30"]).await;
    let mut ids: Vec<&str> = many.lines().collect();
    assert!(ids.is_sorted(), "{many}");
    ids.dedup();
    assert_eq!(ids.len(), 30);
}

#[tokio::test]
async fn many_alike_are_numbered_and_those_that_are_there_already_are_named() {
    on_file_and_etcd(async |crew| {
        crew.machine.ok(&["submit", "x-2"]).await;
        let ran = crew.machine.run(&["submit", "x", "--count", "4", "--json"]).await;
        assert_eq!(ran.code, Some(4), "{ran:?}");
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(told["ids"], json!(["x-0", "x-1", "x-3"]), "the others are submitted");
        let message = ran.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("1 of 4 tasks were not submitted (x-2)"), "{message}");
    })
    .await;
}

#[tokio::test]
async fn a_file_of_tasks_is_submitted_whole_or_not_at_all() {
    on_file_and_etcd(async |crew| {
    let good = "{\"id\":\"a\",\"kind\":\"mail\",\"props\":{\"n\":1},\"labels\":{\"weight\":\"2\"}}\n\n{\"id\":\"b\"}\n{}\n";
    let path = crew.machine.file("tasks.jsonl", good);
    let told = crew.machine.json(&["submit", "--file", &path]).await;
    assert_eq!((&told["submitted"], &told["ids"][0], &told["ids"][1]), (&json!(3), &json!("a"), &json!("b")));
    let shown = crew.machine.json(&["task", "show", "a"]).await;
    assert_eq!(
        (&shown["kind"], &shown["props"], &shown["labels"]["weight"]),
        (&json!("mail"), &json!({"n": 1}), &json!("2"))
    );

    let bad = "{\"id\":\"c\"}\n{\"id\":\"d\",\"prop\":1}\n{\"id\":\"c\"}\n{\"id\":\"\"}\nnot json\n{\"id\":\"a\\u0000\"}\n";
    let path = crew.machine.file("bad.jsonl", bad);
    let ran = crew.machine.run(&["submit", "--file", &path]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for said in [
        "line 2: unknown field `prop`",
        "line 3: 'c' is on line 1",
        "line 4: ",
        "line 5: ",
        "line 6: invalid id: a name must not contain control characters",
        "nothing was submitted",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
    }
    assert_eq!(crew.machine.run(&["task", "show", "c"]).await.code, Some(3), "not even the good line");
    let ran = crew.machine.run_with(&["submit", "--file", "-"], b"{\"id\":\"from stdin\"}").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "from stdin\n"), "{ran:?}");
    for empty in ["", "\n \n"] {
        let ran = crew.machine.run_with(&["submit", "--file", "-"], empty.as_bytes()).await;
        assert!(ran.code == Some(2) && ran.stderr.contains("the file has no task"), "{ran:?}");
    }
    }).await;
}

async fn the_exit_code_says_how_it_ended(crew: &Crew) {
    let worker = crew.join("w").await;
    let submit = async |id: &str, props: &str| {
        crew.machine.run(&["submit", id, "--props", props, "--wait", "--json"]).await
    };
    let ran = submit("good", r#""done""#).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let last: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        last,
        json!({"schema": "tenure.task/v1", "tasks": [{"id": "good", "state": "completed", "by": "w", "reason": null}]})
    );
    let ran = submit("bad", r#""fault""#).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(10), &json!("task_failed")), "{ran:?}");
    assert!(ran.error()["hint"].as_str().unwrap().contains("tenure task history bad"), "{ran:?}");
    let ran = crew.machine.run(&["submit", "slow", "--wait=200ms"]).await;
    assert_eq!(ran.code, Some(8), "{ran:?}");
    let mut waiting = crew.machine.start(&["task", "wait", "slow"]);
    crew.machine.ok(&["task", "kill", "slow", "--reason", "enough"]).await;
    assert_eq!(waiting.line().await, "slow\tkilled\tw");
    let (code, said) = waiting.end().await;
    assert!(code == Some(11) && said.contains("killed: enough"), "{code:?} {said}");
    worker.end().await;
}

#[tokio::test]
async fn submit_and_wait_say_by_their_exit_code_how_it_ended() {
    the_exit_code_says_how_it_ended(&Crew::new().await).await;
}

#[tokio::test]
async fn submit_and_wait_say_by_their_exit_code_how_it_ended_on_etcd() {
    let etcd = Etcd::start();
    the_exit_code_says_how_it_ended(&Crew::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn many_are_waited_for_together_and_the_worst_counts() {
    let crew = Crew::new().await;
    let worker = crew.join("w").await;
    let ran =
        crew.machine.run(&["submit", "x", "--count", "150", "--props", r#""done""#, "--wait=60s"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().filter(|line| line.ends_with("\tcompleted\tw")).count(), 150);
    let lines = "{\"id\":\"a\",\"props\":\"done\"}\n{\"id\":\"b\",\"props\":\"fault\"}\n";
    let ran = crew.machine.run_with(&["submit", "--file", "-", "--wait=60s"], lines.as_bytes()).await;
    assert_eq!(ran.code, Some(10), "{ran:?}");
    let ran = crew.machine.run(&["task", "wait", "a", "b", "nobody", "--wait", "60s"]).await;
    assert_eq!(ran.code, Some(3), "what was never there cannot end: {ran:?}");
    worker.end().await;
}

#[tokio::test]
async fn a_task_that_has_ended_is_accepted_again_and_runs_only_after_it_was_forgotten() {
    on_file_and_etcd(async |crew| {
        let mut worker = crew.join("w").await;
        let done = ["submit", "once", "--props", r#""done""#];
        crew.machine.ok(&[&done[..], &["--wait"]].concat()).await;
        worker.started(1).await;
        let ran = crew.machine.run(&[&done[..], &["--json"]].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("`tenure task forget once` lets it run"), "{ran:?}");
        let told: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(told["ended"], json!([{"id": "once", "state": "completed"}]));
        let show = crew.machine.run(&["task", "show", "once"]).await;
        assert!(show.stderr.contains("does not run"), "{show:?}");
        crew.machine.ok(&["task", "forget", "once"]).await;
        assert_eq!(worker.started(1).await, ["once"]);
        assert_eq!(crew.machine.ok(&["task", "wait", "once"]).await, "once\tcompleted\tw");
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn bad_input_is_2_and_nothing_is_asked_of_the_store() {
    // A store that cannot be reached: whoever asks it ends with 5.
    let machine = Machine::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    let large = format!("\"{}\"", "x".repeat(70_000));
    for (args, said) in [
        (&["submit", ""][..], "must not be empty"),
        (&["submit", &long], "300 bytes"),
        (&["submit", "a\nb"], "control characters"),
        (&["submit", "a", "--props", "{"], "line 1 column 1"),
        (&["submit", "a", "--props", ""], "props are JSON"),
        (&["submit", "a", "--count", "0"], "0"),
        (&["submit", "a", "--count", "-1"], "-1"),
        (&["submit", "a", "--count", "many"], "many"),
        (&["submit", "a", "--label", "x"], "x=VALUE"),
        (&["submit", "a", "--label", "=x"], "before '=' is missing"),
        (&["submit", "a", "--label", "x=1", "--label", "x=2"], "twice"),
        (&["submit", "a", "--wait=5"], "did you mean 5s"),
        (&["submit", "a", "--file", "x"], "exclude each other"),
        (&["submit", "--file", "/nowhere/tasks.jsonl"], "cannot be read"),
        (&["submit", "a", "--prop", "1"], "--props"),
        (&["submti", "a"], "`tenure submit`"),
    ] {
        let ran = machine.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(said), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    let ran = machine.run(&["submit", "a", "--props", &large]).await;
    assert_eq!(ran.code, Some(5), "70 kB are not too much: {ran:?}");
    let file = machine.file("large.jsonl", format!("{{\"props\":\"{}\"}}", "x".repeat(300_000)));
    let ran = machine.run(&["submit", "--file", &file]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("line 1: props of 300002 bytes"), "{ran:?}");
}
