//! Names and values that attack the terminal or the script that lists them.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::sandbox::{RUN_DEADLINE, Sandbox};

const ATTACK: &str = "\x1b]0;owned\x07\x1b[2Jrm\r\nfake\tline";

#[tokio::test]
async fn listing_cannot_be_forged() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_with(&["kv", "put", "/h/a", "-"], ATTACK.as_bytes()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let listed = sandbox.ok(&["kv", "range", "/h/"]).await;
    assert_eq!(listed, r"/h/a	\u{1b}]0;owned\u{7}\u{1b}[2Jrm\r\nfake\tline");
    assert_eq!(sandbox.ok(&["kv", "get", "/h/a"]).await, ATTACK, "a pipe gets the bytes unchanged");
    assert_eq!(sandbox.json(&["kv", "get", "/h/a"]).await["value"], ATTACK);
}

#[tokio::test]
async fn value_never_controls_terminal() {
    let sandbox = Sandbox::new();
    sandbox.run_with(&["kv", "put", "/h/a", "-"], ATTACK.as_bytes()).await;
    for args in [&["kv", "get", "/h/a"][..], &["kv", "range", "/h/"], &["kv", "get", "/h/a", "--json"]] {
        let shown = on_a_terminal(&sandbox, args).await;
        assert!(shown.contains("owned"), "{shown:?}");
        assert!(!shown.contains(['\x1b', '\x07']), "{args:?} {shown:?}");
    }
}

#[tokio::test]
async fn key_in_error_message_is_escaped() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["kv", "get", "--key-b64", "G1swbQ=="]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(!ran.stderr.contains('\x1b'), "{ran:?}");
    let ran = sandbox.run(&["kv", "get", "/\x1b[0m"]).await;
    assert!(ran.code == Some(2) && !ran.stderr.contains('\x1b'), "{ran:?}");
}

#[tokio::test]
async fn oversized_input_is_refused_with_both_numbers() {
    let sandbox = Sandbox::new();
    let before = sandbox.ok(&["kv", "put", "/a", "1"]).await;
    let ran = sandbox.run_with(&["kv", "put", "/big", "-", "--json"], &vec![b'x'; 2 << 20]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(2), &"invalid".into()), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("2097") && message.contains("1572864"), "{message}");
    let puts: Vec<_> = (0..129).map(|n| format!(r#"{{"put":{{"key":"/{n}","value":""}}}}"#)).collect();
    let ran = sandbox
        .run_with(&["kv", "txn", "--json"], format!(r#"{{"then":[{}]}}"#, puts.join(",")).as_bytes())
        .await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("129") && message.contains("128"), "{message}");
    let empty = br#"{"then":[{"put":{"key":"","value":""}}]}"#;
    assert_eq!(sandbox.run_with(&["kv", "txn"], empty).await.code, Some(2));
    let now = sandbox.json(&["kv", "range", ""]).await;
    assert_eq!(now["revision"], before.as_str());
}

#[tokio::test]
async fn colour_is_used_only_on_terminals() {
    let sandbox = Sandbox::new().with("TERM", "xterm");
    assert!(on_a_terminal(&sandbox, &["doctor", "--local"]).await.contains('\x1b'));
    assert!(!on_a_terminal(&sandbox, &["doctor", "--local", "--color", "never"]).await.contains('\x1b'));
    let quiet = Sandbox::new().with("NO_COLOR", "1").with("TERM", "xterm");
    assert!(!on_a_terminal(&quiet, &["doctor", "--local"]).await.contains('\x1b'));
    assert!(!sandbox.ok(&["doctor", "--local"]).await.contains('\x1b'));
    assert!(sandbox.ok(&["doctor", "--local", "--color", "always"]).await.contains('\x1b'));
}

/// The output of the command on a terminal.
async fn on_a_terminal(sandbox: &Sandbox, args: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
    let mut command = sandbox.command(args);
    let mut child = command.stdout(Stdio::from(slave)).stderr(Stdio::null()).spawn().unwrap();
    // The parent's copy of the terminal must be closed too, or the read never ends.
    drop(command);
    let reading = tokio::task::spawn_blocking(move || {
        let mut shown = Vec::new();
        // After the last writer has closed a terminal, its reader gets the remaining bytes and then an error.
        let _ = File::from(master).read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    });
    tokio::time::timeout(RUN_DEADLINE, child.wait()).await.unwrap().unwrap();
    tokio::time::timeout(RUN_DEADLINE, reading).await.unwrap().unwrap()
}

#[tokio::test]
async fn control_characters_in_kind_and_labels_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["kv", "put", "/x", "1"]).await;
    for args in [&["submit", "a", "--kind", "a\nb"][..], &["submit", "a", "--label", "zone=\u{1b}[2J"]] {
        let refused = sandbox.run(args).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("must not contain control characters"), "{refused:?}");
        assert!(refused.stderr.contains("hint: ") && !refused.stderr.contains('\u{1b}'), "{refused:?}");
    }
    let lines = sandbox.file("tasks", "{\"id\":\"a\"}\n{\"id\":\"b\",\"kind\":\"a\\u0000b\"}\n");
    let refused = sandbox.run(&["submit", "--file", &lines]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("line 2: the kind must not contain control characters"), "{refused:?}");
    assert!(sandbox.json(&["task", "ls"]).await["tasks"].as_array().unwrap().is_empty());
}
