//! Tasks seen and told something from the shell.

use serde_json::{Value, json};
use tenure_core::task::TaskState;
use tenure_fixture::Etcd;

use crate::crew::{Crew, on_file_and_etcd, task};
use crate::machine::Machine;

#[tokio::test]
async fn listings_have_what_scripts_rely_on_and_filters_hold() {
    on_file_and_etcd(async |crew| {
    assert_eq!(crew.machine.json(&["task", "ls"]).await["tasks"], json!([]), "none is an answer too");
    crew.machine.ok(&["submit", "idle", "--kind", "mail"]).await;
    let mut worker = crew.join_for("run", "w").await;
    crew.machine.ok(&["submit", "busy", "--kind", "run"]).await;
    worker.started(1).await;
    let listed = crew.machine.json(&["task", "ls"]).await;
    assert_eq!((&listed["schema"], listed["revision"].is_string()), (&json!("tenure.task/v1"), true));
    let busy = &listed["tasks"][0];
    assert!(busy["token"].is_string() && busy["submitted_at"].as_str().unwrap().ends_with('Z'), "{busy}");
    assert_eq!(
        *busy,
        json!({"id": "busy", "kind": "run", "state": "runnable", "owner": "w", "token": busy["token"], "attempt": 1,
               "submitted_at": busy["submitted_at"], "updated_at": null})
    );
    assert_eq!((&listed["tasks"][1]["owner"], &listed["tasks"][1]["token"]), (&Value::Null, &Value::Null));
    let ids = async |flags: &[&str]| {
        let listed = crew.machine.json(&[&["task", "ls"], flags].concat()).await;
        listed["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--kind", "mail"]).await, ["idle"]);
    assert_eq!(ids(&["--node", "w"]).await, ["busy"]);
    assert_eq!(ids(&["--node", "w", "--kind", "mail"]).await, Vec::<Value>::new());
    assert_eq!(ids(&["--state", "runnable"]).await, ["busy", "idle"]);
    assert_eq!(ids(&["--state", "paused", "--state", "killed"]).await, Vec::<Value>::new());
    crew.machine.ok(&["task", "kill", "busy"]).await;
    assert_eq!(ids(&[]).await, ["idle"]);
    assert_eq!(ids(&["--state", "killed"]).await, ["busy"], "its state stays");
    assert_eq!(ids(&["--ended"]).await, ["busy", "idle"]);
    let text = crew.machine.ok(&["task", "ls"]).await;
    assert!(text.starts_with("idle\tmail\trunnable\t-\t-\t1\t20"), "{text}");
    worker.end().await;
    }).await;
}

async fn commands_are_acknowledged(crew: &Crew) {
    let mut worker = crew.join("w").await;
    crew.machine.ok(&["submit", "x", "--props", r#""count""#]).await;
    worker.started(1).await;
    let told = crew.machine.json(&["task", "pause", "x"]).await;
    let seconds = told["ack_seconds"].as_f64().unwrap();
    assert!((0.0..10.0).contains(&seconds), "{told}");
    assert_eq!(
        told,
        json!({"schema": "tenure.task/v1", "id": "x", "message": "pause", "from": "runnable", "to": "paused",
               "acknowledged_by": "w", "ack_seconds": told["ack_seconds"], "command": told["command"]})
    );
    assert_eq!(crew.machine.json(&["task", "show", "x"]).await["owner"], "w", "a paused task has its owner");
    let ran = crew.machine.run(&["task", "resume", "x"]).await;
    assert!(ran.stdout.starts_with("x\tpaused\trunnable\tw\t") && ran.stdout.ends_with(" ms\n"), "{ran:?}");
    assert!(ran.stderr.contains("run of 'x' acknowledged by w in "), "{ran:?}");
    worker.started(1).await;
    let told = crew.machine.json(&["task", "checkpoint", "x"]).await;
    assert_eq!((&told["from"], &told["to"]), (&json!("runnable"), &json!("runnable")));
    let told = crew.machine.json(&["task", "sleep", "x", "2h"]).await;
    assert_eq!(told["to"], "sleeping");
    let told = crew.machine.json(&["task", "sleep", "x", "2050-01-01T01:00:00+01:00"]).await;
    assert_eq!((&told["from"], &told["to"]), (&json!("sleeping"), &json!("sleeping")));
    let shown = crew.machine.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["state"], &shown["until"]), (&json!("sleeping"), &json!("2050-01-01T00:00:00.000Z")));
    let told = crew.machine.json(&["task", "kill", "x", "--reason", "enough"]).await;
    assert_eq!(
        (&told["from"], &told["to"], &told["acknowledged_by"]),
        (&json!("sleeping"), &json!("killed"), &json!("w"))
    );
    let history = crew.machine.json(&["task", "history", "x"]).await;
    let steps: Vec<[&Value; 4]> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| [&step["from"], &step["message"], &step["to"], &step["by"]])
        .collect();
    assert_eq!(
        json!(steps),
        json!([
            ["runnable", "pause", "paused", "w"],
            ["paused", "run", "runnable", "w"],
            ["runnable", "sleep", "sleeping", "w"],
            ["sleeping", "sleep", "sleeping", "w"],
            ["sleeping", "kill", "killed", "w"],
        ])
    );
    let shown = crew.machine.json(&["task", "show", "x"]).await;
    assert_eq!((&shown["reason"], &shown["updated_by"]), (&json!("enough"), &json!("w")));
    worker.end().await;
}

#[tokio::test]
async fn commands_say_who_acknowledged_them_and_how_soon() {
    commands_are_acknowledged(&Crew::new().await).await;
}

#[tokio::test]
async fn commands_say_who_acknowledged_them_and_how_soon_on_etcd() {
    let etcd = Etcd::start();
    commands_are_acknowledged(&Crew::on_etcd(&etcd).await).await;
}

#[tokio::test]
async fn a_released_task_goes_to_somebody_else() {
    let crew = Crew::new().await;
    let mut first = crew.join("first").await;
    crew.machine.ok(&["submit", "x"]).await;
    first.started(1).await;
    let mut second = crew.join("second").await;
    let told = crew.machine.json(&["task", "release", "x"]).await;
    assert_eq!((&told["acknowledged_by"], &told["to"]), (&json!("first"), &json!("runnable")));
    assert_eq!(second.started(1).await, ["x"]);
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn what_cannot_be_done_says_why_by_its_exit_code() {
    on_file_and_etcd(async |crew| {
        let failed = async |args: &[&str], code: i32, word: &str| {
            let ran = crew.machine.run(&[&["task"], args, &["--json"]].concat()).await;
            assert_eq!((ran.code, &ran.error()["code"]), (Some(code), &json!(word)), "{args:?} {ran:?}");
            let hint = ran.error()["hint"].as_str().unwrap_or_default().to_owned();
            assert!(hint.contains("tenure "), "{args:?} {ran:?}");
            ran.error()["message"].as_str().unwrap().to_owned()
        };
        for verb in
            ["show", "pause", "resume", "kill", "release", "checkpoint", "history", "wait", "rm", "forget"]
        {
            failed(&[verb, "nobody"], 3, "not_found").await;
        }
        failed(&["sleep", "nobody", "5m"], 3, "not_found").await;

        // Nobody is there who could acknowledge anything.
        crew.machine.ok(&["submit", "x"]).await;
        let said = failed(&["pause", "x", "--wait", "300ms"], 8, "timed_out").await;
        assert!(said.contains("the task has no owner"), "{said}");
        let shown = crew.machine.json(&["task", "show", "x"]).await;
        assert_eq!(
            (&shown["command"]["command"], shown["command"]["by"].as_str().unwrap().ends_with("@desk")),
            (&json!("pause"), true)
        );
        failed(&["forget", "x"], 3, "not_found").await;
        // The command stands: another one replaces it, and says so.
        let told = crew.machine.json(&["task", "sleep", "x", "1h", "--no-wait"]).await;
        assert_eq!(
            (&told["acknowledged_by"], &told["ack_seconds"], &told["replaced"]["command"]),
            (&Value::Null, &Value::Null, &json!("pause"))
        );

        let worker = crew.join("w").await;
        let told = crew.machine.json(&["task", "resume", "x"]).await;
        assert_eq!(told["to"], "runnable");
        crew.machine.ok(&["task", "pause", "x"]).await;
        // The machine of states takes no completion from outside, and a paused task no error: the table says so.
        let refused =
            crew.client().command(&task("x"), tenure_core::task::TaskMessage::Complete).await.unwrap();
        assert_eq!(refused.wait(crate::machine::PATIENCE).await.unwrap().from, Some(TaskState::Paused));
        failed(&["forget", "x"], 4, "conflict").await;
        crew.machine.ok(&["task", "kill", "x"]).await;
        let said = failed(&["pause", "x"], 4, "conflict").await;
        assert!(said.contains("it is killed"), "{said}");
        failed(&["rm", "x"], 3, "not_found").await;
        crew.machine.ok(&["task", "forget", "x"]).await;
        failed(&["show", "x"], 3, "not_found").await;
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_sender_whose_command_is_replaced_or_whose_task_is_deleted_is_told() {
    on_file_and_etcd(async |crew| {
        crew.machine.ok(&["submit", "x"]).await;
        let first = crew.machine.start(&["task", "pause", "x", "--wait", "60s"]);
        // The command lies there as soon as `show` shows it.
        while crew.machine.json(&["task", "show", "x"]).await["command"].is_null() {}
        let second = crew.machine.start(&["task", "kill", "x", "--wait", "60s"]);
        let (code, said) = first.end().await;
        assert!(code == Some(4) && said.contains("sent another command"), "{code:?} {said}");
        assert_eq!(crew.machine.ok(&["task", "rm", "x"]).await, "x");
        let (code, said) = second.end().await;
        assert!(code == Some(4) && said.contains("the task was deleted"), "{code:?} {said}");
    })
    .await;
}

#[tokio::test]
async fn a_deleted_task_stops_and_its_neighbours_go_on() {
    on_file_and_etcd(async |crew| {
        let mut worker = crew.join("w").await;
        crew.machine.ok(&["submit", "t1"]).await;
        crew.machine.ok(&["submit", "t10"]).await;
        assert_eq!(worker.started(2).await, ["t1", "t10"]);
        let deleted = crew.machine.json(&["task", "rm", "t1"]).await;
        assert_eq!(deleted, json!({"schema": "tenure.task/v1", "id": "t1", "owner": "w"}));
        assert_eq!(crew.machine.json(&["task", "ls"]).await["tasks"][0]["id"], "t10");
        worker.end().await;
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_is_named_and_never_shown() {
    on_file_and_etcd(async |crew| {
        crew.machine.ok(&["submit", "good"]).await;
        crew.machine.ok(&["kv", "put", "/tenure/tasks/bad", "s3cret"]).await;
        crew.machine.ok(&["kv", "put", "/tenure/tasks/odd", "{}"]).await;
        crew.machine.ok(&["kv", "put", "/tenure/state/odd", "s3cret"]).await;
        let ran = crew.machine.run(&["task", "ls"]).await;
        assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 3), "{ran:?}");
        assert!(ran.stderr.contains("task 'bad' cannot be read completely: its record: not JSON"), "{ran:?}");
        assert!(ran.stderr.contains("task 'odd' cannot be read completely: its state: not JSON"), "{ran:?}");
        assert!(!format!("{ran:?}").contains("s3cret"), "{ran:?}");
        let shown = crew.machine.json(&["task", "show", "odd"]).await;
        assert_eq!(shown["state"], Value::Null);
        assert_eq!(crew.machine.run(&["task", "history", "odd"]).await.code, Some(1));
        crew.machine.ok(&["task", "forget", "odd"]).await;
        assert_eq!(crew.machine.json(&["task", "show", "odd"]).await["state"], "runnable");
    })
    .await;
}

#[tokio::test]
async fn bad_input_is_2_and_misspelt_words_get_a_suggestion() {
    let machine = Machine::new().with("TENURE_ENDPOINTS", "127.0.0.1:1");
    let long = "n".repeat(300);
    for (args, said) in [
        (&["show", ""][..], "must not be empty"),
        (&["pause", &long], "300 bytes"),
        (&["kill", "a\nb"], "control characters"),
        (&["wait"], "ID"),
        (&["wait", "a", ""], "must not be empty"),
        (
            &["ls", "--state", "dead"],
            "use one of runnable, sleeping, fault, paused, completed, failed, killed",
        ),
        (&["ls", "--node", ""], "must not be empty"),
        (&["pause", "a", "--wait", "5"], "did you mean 5s"),
        (&["pause", "a", "--wait", "5s", "--no-wait"], "exclude each other"),
        (&["sleep", "a"], "DUR|TIME"),
        (&["sleep", "a", "60"], "did you mean 60s"),
        (&["sleep", "a", "soon"], "not a duration"),
        (&["sleep", "a", "2020-01-01T00:00:00Z"], "has passed"),
        (&["sleep", "a", "2050-01-01"], "is not a time"),
        (&["sleep", "a", "0s"], "has passed"),
        (&["puase", "a"], "`tenure task pause`"),
        (&["shwo", "a"], "`tenure task show`"),
        (&["forgte", "a"], "`tenure task forget`"),
        (&[], "checkpoint"),
    ] {
        let ran = machine.run(&[&["task"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(said), "{args:?} {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert_eq!(machine.run(&["task", "ls"]).await.code, Some(5));
    assert_eq!(machine.run(&["taks", "ls"]).await.code, Some(2));
}
