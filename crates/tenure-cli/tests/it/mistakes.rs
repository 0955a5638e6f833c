//! Common mistakes on the command line, and what each reports: what is wrong, why, and what to type next.
//!
//! One row: the line after `tenure`, the exit code, then a text from each of the three parts in that order.
//! What and why are in the message, the next step is in the hint. `'…'` quotes a word with spaces.

use crate::sandbox::{Ran, Sandbox};

/// A line, its exit code, what, why, next.
type Row = (&'static str, i32, &'static str, &'static str, &'static str);

const COMMAND_LINES: &[Row] = &[
    // Verbs and nouns of other tools.
    ("frobnicate", 2, "no command 'frobnicate'", "`tenure`", "`tenure --help` lists"),
    ("versoin", 2, "no command 'versoin'", "`tenure`", "did you mean `tenure version`"),
    ("workers", 2, "no command 'workers'", "`tenure`", "`tenure node ls`"),
    ("get /a", 2, "no command 'get'", "`tenure`", "`tenure kv get"),
    ("task cancel x", 2, "no command 'cancel'", "`tenure task`", "`tenure task kill ID`"),
    ("task create x", 2, "no command 'create'", "`tenure task`", "`tenure submit ID"),
    ("node delete a", 2, "no command 'delete'", "`tenure node`", "`tenure node drain ID`"),
    ("locks release a", 2, "no command 'release'", "`tenure locks`", "`tenure locks break NAME`"),
    (
        "service register a",
        2,
        "no command 'register'",
        "`tenure service`",
        "`tenure register NAME/INSTANCE=ADDRESS`",
    ),
    ("task", 2, "needs a command", "none was given", "add one of ls, show"),
    ("tasks delete x", 3, "no task 'x'", "to delete", "`tenure task ls`"),
    ("nodes describe a", 3, "node 'a'", "is not alive", "`tenure node ls`"),
    ("services get web", 3, "web has no instances", "none is registered", "`tenure register web/1=ADDRESS`"),
    ("register ls", 2, "\"ls\" has no '='", "each key with its value", "`tenure service ls`"),
    // Verbs in the place of a name.
    ("lock ls", 125, "'ls' is used as a name", "would hold a lock", "`tenure locks ls`"),
    ("lock list", 125, "'list' is used as a name", "would hold a lock", "`tenure locks ls`"),
    ("lock show deploy", 125, "'show' is used as a name", "would hold a lock", "`tenure locks show deploy`"),
    ("lock help", 125, "'help' is used as a name", "would hold a lock", "`tenure lock --help`"),
    ("elect ls", 125, "'ls' is used as a name", "would lead an election", "`tenure election ls`"),
    ("submit ls", 2, "'ls' is used as a name", "would submit a task", "`tenure task ls`"),
    ("worker ls", 2, "takes no argument 'ls'", "`tenure worker`", "`tenure node ls`"),
    // Flags and values.
    ("task ls -o json", 2, "takes no argument '-o'", "`tenure task ls`", "add --json"),
    ("kv get", 2, "`tenure kv get` needs <KEY>", "was not given", "write it as `tenure kv get <KEY>`"),
    ("kv put /a 1 --ttl 15", 2, "--ttl 15", "no unit", "did you mean 15s?"),
    ("status --color blue", 2, "--color blue", "unknown value", "auto, always, never"),
    ("lock a --try --wait 5s -- true", 125, "--try", "exclude each other", "leave one of them out"),
    ("lock a --wait -5s -- true", 125, "--wait -5s", "negative", "500ms, 15s, 2m or 1h30m"),
    ("lock a --wait -5s true", 125, "--wait -5s", "negative", "500ms, 15s, 2m or 1h30m"),
    (
        "worker -- ./job.sh",
        2,
        "takes no argument './job.sh'",
        "given with --exec",
        "`tenure worker --exec './job.sh'`",
    ),
    ("worker --id w1 --exec true", 2, "takes no argument '--id'", "`tenure worker`", "--node ID"),
    (
        "worker --capcity 4 --exec true",
        2,
        "takes no argument '--capcity'",
        "`tenure worker`",
        "did you mean --capacity?",
    ),
    ("task ls --state running", 2, "--state running", "there is no state", "runnable"),
    (
        "lock a --ttl 200ms -- true",
        125,
        "a TTL of 200ms is too short",
        "before a renewal",
        "--ttl 2s or longer",
    ),
    (
        "lock a -- 'echo hi && ls'",
        127,
        "no command echo hi && ls",
        "the name of one program",
        "sh -c 'echo hi && ls'",
    ),
    ("lock a -- nosuch", 127, "no command nosuch", "no folder of PATH has it", "spelling"),
    ("lock a -- ./nosuch", 127, "no command ./nosuch", "no such file", "current folder"),
    // Stores.
    (
        "--store http://a:2379 status",
        2,
        "unknown store \"http://a:2379\"",
        "does not begin with",
        "etcd://a:2379?",
    ),
    ("--store https://a:2379 status", 2, "unknown store", "does not begin with", "etcds://a:2379?"),
    ("--store a:2379 status", 2, "unknown store \"a:2379\"", "does not begin with", "etcd://a:2379?"),
    (
        "--store /var/x.db status",
        2,
        "unknown store \"/var/x.db\"",
        "does not begin with",
        "file:///var/x.db?",
    ),
    // Verbs that destroy.
    ("kv del --prefix ''", 2, "empty prefix", "every key in the store", "add --all"),
    ("kv del --prefix /a/", 2, "deleting every key under '/a/'", "no terminal", "add --yes"),
    ("locks break a", 2, "breaking 'a'", "no terminal", "add --yes"),
    (
        "task kill --kind mail",
        2,
        "killing every task with --kind mail",
        "no terminal",
        "`tenure task ls --kind mail`",
    ),
    ("task rm --state paused", 2, "deleting every task with --state paused", "no terminal", "add --yes"),
    (
        "task forget --state killed",
        2,
        "forgetting every task with --state killed",
        "no terminal",
        "add --yes",
    ),
    ("task rm", 2, "`tenure task rm` needs", "was not given", "write it as"),
    ("task kill x --kind mail", 2, "--kind", "exclude each other", "leave one of them out"),
    ("lease revoke 1f", 2, "revoking lease 1f", "no terminal", "add --yes"),
];

/// The arguments of a line, split as a shell does it with single quotes.
fn arguments(line: &str) -> Vec<String> {
    let mut words = vec![];
    let (mut word, mut is_quoted, mut has_word) = (String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (is_quoted, has_word) = (!is_quoted, true),
            ' ' if !is_quoted => {
                if std::mem::take(&mut has_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                has_word = true;
            }
        }
    }
    if has_word {
        words.push(word);
    }
    words
}

async fn run(sandbox: &Sandbox, line: &str, flags: &[&str]) -> Ran {
    let words = arguments(line);
    let words: Vec<&str> = flags.iter().copied().chain(words.iter().map(String::as_str)).collect();
    sandbox.run(&words).await
}

/// Every row, in text and in JSON: the same code, the same three parts, printed once.
async fn check(sandbox: &Sandbox, rows: &[Row]) {
    for (line, code, what, why, next) in rows {
        let ran = run(sandbox, line, &["--json"]).await;
        assert_eq!(ran.code, Some(*code), "{line}: {ran:?}");
        let error = ran.error();
        let message = error["message"].as_str().unwrap_or_default();
        let hint = error["hint"].as_str().unwrap_or_default();
        assert!(message.contains(what) && message.contains(why), "{line}: {message}");
        assert!(hint.contains(next), "{line}: {hint}");
        for text in ran.stderr.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{line}: {text}");
        }
        let ran = run(sandbox, line, &[]).await;
        assert_eq!(ran.code, Some(*code), "{line}: {ran:?}");
        assert_eq!(ran.stderr.matches(message).count(), 1, "{line}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("tenure: error: ") && ran.stderr.contains("\n  hint: "),
            "{line}: {ran:?}"
        );
        let has_prefix = |line: &str| line.starts_with("tenure: ") || line.starts_with("  hint: ");
        assert!(ran.stderr.lines().all(has_prefix), "{line}: {}", ran.stderr);
    }
}

fn sandbox() -> Sandbox {
    Sandbox::new().with("PATH", "/usr/bin:/bin").with("TENURE_NODE", "web-1")
}

#[tokio::test]
async fn mistyped_line_reports_what_why_and_next() {
    check(&sandbox(), COMMAND_LINES).await;
}

/// Task files that are not one JSON object per line.
#[tokio::test]
async fn wrong_task_file_reports_what_why_and_next() {
    let sandbox = sandbox();
    let rows: [(&str, &str, [&str; 3]); 5] = [
        (
            "array",
            "[{\"id\":\"a\"},\n{\"id\":\"b\"}]\n",
            ["nothing was submitted", "JSON array", "jq -c '.[]'"],
        ),
        (
            "csv",
            "id,kind\na,mail\n",
            ["nothing was submitted", "line 1: \"id,kind\" is not a JSON object", "each line is an object"],
        ),
        ("number", "{\"id\":7}\n", ["nothing was submitted", "the id is a number", "each line is an object"]),
        (
            "label",
            "{\"labels\":{\"a\":{}}}\n",
            ["nothing was submitted", "the label \"a\" is an object", "each line is an object"],
        ),
        ("cut", "{\"id\":\"a\"\n", ["nothing was submitted", "at column", "each line is an object"]),
    ];
    for (name, content, [what, why, next]) in rows {
        let path = sandbox.file(name, content);
        let ran = sandbox.run(&["submit", "--file", &path, "--json"]).await;
        assert_eq!(ran.code, Some(2), "{name} {ran:?}");
        let (message, hint) = (ran.error()["message"].clone(), ran.error()["hint"].clone());
        let (message, hint) = (message.as_str().unwrap(), hint.as_str().unwrap());
        assert!(message.contains(what) && message.contains(why), "{name}: {message}");
        assert!(hint.contains(next), "{name}: {hint}");
    }
}

/// A misspelt variable named a store, and the command once used the embedded store without a message.
#[tokio::test]
async fn misspelt_variable_is_no_embedded_store() {
    let sandbox = sandbox().with("TENURE_ENDPOINT", "127.0.0.1:1");
    check(
        &sandbox,
        &[(
            "status",
            2,
            "the variable TENURE_ENDPOINT is set",
            "no setting has this name",
            "TENURE_ENDPOINTS",
        )],
    )
    .await;
    assert!(!std::path::Path::new(&sandbox.path(".local")).exists());
}

/// A store that a newer program wrote, with the cause and the next step, once.
#[tokio::test]
async fn newer_store_format_requires_newer_program() {
    let sandbox = sandbox();
    let store = format!("file://{}", sandbox.path("s.db"));
    sandbox.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    // SQLite keeps the format at this place of the first page.
    let path = sandbox.path("s.db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&9_u32.to_be_bytes());
    std::fs::write(&path, bytes).unwrap();
    let ran = sandbox.run(&["--store", &store, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 2, "the error once, and its hint: {ran:?}");
    for part in ["has format 9", "a newer tenure wrote it", "hint: install a tenure as new"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
}

/// Lines that work but are probably a mistake: a warning with what, why and what to type, and the command's own exit code.
#[tokio::test]
async fn doubtful_line_runs_with_warning() {
    let sandbox = sandbox();
    let rows = [
        ("lock a --ttl 1d -- true", 0, ["a TTL of 1d", "if this host dies", "--ttl 15s"]),
        ("register a=1 --ttl 1d -- true", 0, ["a TTL of 1d", "if this host dies", "--ttl 15s"]),
        (
            "lock a sh --ttl 5s",
            2,
            ["--ttl is passed to sh", "after the command's name", "`tenure lock NAME --ttl … -- sh …`"],
        ),
    ];
    for (line, code, parts) in rows {
        let ran = run(&sandbox, line, &[]).await;
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        let warning = ran.stderr.lines().find(|text| text.starts_with("tenure: warning: "));
        let warning = warning.unwrap_or_else(|| panic!("{line}: {ran:?}"));
        assert!(parts.iter().all(|part| warning.contains(part)), "{line}: {warning}");
    }
    for line in ["lock a --ttl 15s -- true", "lock a -- sh -c : --ttl 5s", "lock a -q --ttl 1d -- true"] {
        let ran = run(&sandbox, line, &[]).await;
        assert!(!ran.stderr.contains("warning"), "{line}: {ran:?}");
    }
}

/// cron mails what a job prints, so a host that comes too late prints nothing.
#[tokio::test]
async fn quiet_once_that_was_run_prints_nothing() {
    let sandbox = sandbox();
    let once = async |flags: &[&str]| {
        sandbox.run(&[&["once", "a", "--every", "36500d"], flags, &["--", "true"]].concat()).await
    };
    assert_eq!(once(&["-q"]).await.code, Some(0));
    for (flags, code) in [(&["-q", "-E", "0"][..], 0), (&["-q"], 124), (&["-q", "--json"], 124)] {
        let ran = once(flags).await;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(code), "", ""), "{flags:?}");
    }
    assert!(once(&[]).await.stderr.contains("has already run in this period"));
}

/// With `--json` notes, warnings and log lines on stderr are objects, too.
#[tokio::test]
async fn json_stderr_holds_only_objects() {
    let sandbox = sandbox();
    for line in [
        "lock a --ttl 1d -vv -- true",
        "elect a -vv -- true",
        "register web/1=a -vv -- true",
        "submit t -vv",
        "kv put /a 1 --ttl 1s -v",
        "status -vv",
    ] {
        let ran = run(&sandbox, line, &["--json"]).await;
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{line}: nothing was checked");
        for text in ran.stderr.lines() {
            let object = serde_json::from_str::<serde_json::Value>(text);
            assert!(object.is_ok_and(|object| object.is_object()), "{line}: {text}");
        }
    }
}

/// A filter selects what it names, and nothing else.
#[tokio::test]
async fn filtered_removal_spares_other_tasks() {
    let sandbox = sandbox();
    sandbox.ok(&["submit", "m", "--kind", "mail", "--count", "20"]).await;
    sandbox.ok(&["submit", "v", "--kind", "video"]).await;
    let removed = sandbox.ok(&["task", "rm", "--kind", "mail", "--yes"]).await;
    assert_eq!(removed.lines().count(), 20, "{removed}");
    assert!(sandbox.ok(&["task", "ls"]).await.starts_with("v\t"));
    assert_eq!(sandbox.ok(&["task", "rm", "--kind", "mail", "--yes"]).await, "");
}

/// `tenure lock ls` once held a lock called ls, and `tenure submit ls` submitted a task.
#[tokio::test]
async fn verb_as_name_acts_only_after_separator() {
    let sandbox = sandbox();
    sandbox.ok(&["lock", "ls", "--", "true"]).await;
    sandbox.ok(&["lock", "ls", "true"]).await;
    assert_eq!(sandbox.ok(&["submit", "--", "ls"]).await, "ls");
    assert_eq!(sandbox.ok(&["submit", "help", "--kind", "mail"]).await, "help");
}

/// Aliases do what their names do.
#[tokio::test]
async fn alias_runs_the_same_verb() {
    let sandbox = sandbox();
    sandbox.ok(&["submit", "a"]).await;
    for line in [
        "tasks list",
        "task get a",
        "nodes list",
        "leases list",
        "elections ls",
        "services list",
        "locks list",
    ] {
        let words = arguments(line);
        sandbox.ok(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    assert_eq!(sandbox.ok(&["tasks", "delete", "a"]).await, "a");
}
