//! Names and values that were made to harm whoever lists them.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::machine::{Machine, PATIENCE};

const ATTACK: &str = "\x1b]0;owned\x07\x1b[2Jrm\r\nfake\tline";

#[tokio::test]
async fn a_listing_cannot_be_forged() {
    let machine = Machine::new();
    let ran = machine.run_with(&["kv", "put", "/h/a", "-"], ATTACK.as_bytes()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let listed = machine.ok(&["kv", "range", "/h/"]).await;
    assert_eq!(listed, r"/h/a	\u{1b}]0;owned\u{7}\u{1b}[2Jrm\r\nfake\tline");
    assert_eq!(machine.ok(&["kv", "get", "/h/a"]).await, ATTACK, "a pipe gets the very bytes");
    assert_eq!(machine.json(&["kv", "get", "/h/a"]).await["value"], ATTACK);
}

#[tokio::test]
async fn a_terminal_is_not_driven_by_a_value() {
    let machine = Machine::new();
    machine.run_with(&["kv", "put", "/h/a", "-"], ATTACK.as_bytes()).await;
    for args in [&["kv", "get", "/h/a"][..], &["kv", "range", "/h/"], &["kv", "get", "/h/a", "--json"]] {
        let shown = on_a_terminal(&machine, args).await;
        assert!(shown.contains("owned"), "{shown:?}");
        assert!(!shown.contains(['\x1b', '\x07']), "{args:?} {shown:?}");
    }
}

#[tokio::test]
async fn a_key_in_an_error_message_is_escaped() {
    let machine = Machine::new();
    let ran = machine.run(&["kv", "get", "--key-b64", "G1swbQ=="]).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(!ran.stderr.contains('\x1b'), "{ran:?}");
    let ran = machine.run(&["kv", "get", "/\x1b[0m"]).await;
    assert!(ran.code == Some(2) && !ran.stderr.contains('\x1b'), "{ran:?}");
}

#[tokio::test]
async fn what_no_store_takes_is_refused_with_both_numbers_and_changes_nothing() {
    let machine = Machine::new();
    let before = machine.ok(&["kv", "put", "/a", "1"]).await;
    let ran = machine.run_with(&["kv", "put", "/big", "-", "--json"], &vec![b'x'; 2 << 20]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(2), &"invalid".into()), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("2097") && message.contains("1572864"), "{message}");
    let puts: Vec<_> = (0..129).map(|n| format!(r#"{{"put":{{"key":"/{n}","value":""}}}}"#)).collect();
    let ran = machine
        .run_with(&["kv", "txn", "--json"], format!(r#"{{"then":[{}]}}"#, puts.join(",")).as_bytes())
        .await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("129") && message.contains("128"), "{message}");
    let empty = br#"{"then":[{"put":{"key":"","value":""}}]}"#;
    assert_eq!(machine.run_with(&["kv", "txn"], empty).await.code, Some(2));
    let now = machine.json(&["kv", "range", ""]).await;
    assert_eq!(now["revision"], before.as_str());
}

#[tokio::test]
async fn colour_is_only_for_terminals_that_want_it() {
    let machine = Machine::new().with("TERM", "xterm");
    assert!(on_a_terminal(&machine, &["doctor", "--local"]).await.contains('\x1b'));
    assert!(!on_a_terminal(&machine, &["doctor", "--local", "--color", "never"]).await.contains('\x1b'));
    let quiet = Machine::new().with("NO_COLOR", "1").with("TERM", "xterm");
    assert!(!on_a_terminal(&quiet, &["doctor", "--local"]).await.contains('\x1b'));
    assert!(!machine.ok(&["doctor", "--local"]).await.contains('\x1b'));
    assert!(machine.ok(&["doctor", "--local", "--color", "always"]).await.contains('\x1b'));
}

/// What a terminal would show.
async fn on_a_terminal(machine: &Machine, args: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave: OwnedFd = File::options().read(true).write(true).open(name).unwrap().into();
    let mut command = machine.command(args);
    let mut child = command.stdout(Stdio::from(slave)).stderr(Stdio::null()).spawn().unwrap();
    // Ours must go too, or the terminal never ends.
    drop(command);
    let reading = tokio::task::spawn_blocking(move || {
        let mut shown = Vec::new();
        // A terminal whose last user left ends with an error, after everything was read.
        let _ = File::from(master).read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    });
    tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap()
}

#[tokio::test]
async fn control_characters_in_kind_and_labels_are_refused() {
    let machine = Machine::new();
    machine.ok(&["kv", "put", "/x", "1"]).await;
    for args in [&["submit", "a", "--kind", "a\nb"][..], &["submit", "a", "--label", "zone=\u{1b}[2J"]] {
        let refused = machine.run(args).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("must not contain control characters"), "{refused:?}");
        assert!(refused.stderr.contains("hint: ") && !refused.stderr.contains('\u{1b}'), "{refused:?}");
    }
    let lines = machine.file("tasks", "{\"id\":\"a\"}\n{\"id\":\"b\",\"kind\":\"a\\u0000b\"}\n");
    let refused = machine.run(&["submit", "--file", &lines]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("line 2: the kind must not contain control characters"), "{refused:?}");
    assert!(machine.json(&["task", "ls"]).await["tasks"].as_array().unwrap().is_empty());
}
