//! The `with-etcd` command: an etcd for the time of one command.

use std::process::{Command, Output};

use crate::is_running;

fn with_etcd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_with-etcd")).args(args).env("TENURE_STORE", "memory:").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn command_gets_endpoints_and_etcd_ends() {
    let output =
        with_etcd(&["--", "/bin/sh", "-c", "echo $TENURE_ENDPOINTS ${TENURE_STORE-unset} $TENURE_ETCD_PIDS"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let [endpoint, store, pid] = stdout.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{stdout}")
    };
    assert!(endpoint.starts_with("127.0.0.1:"), "{stdout}");
    assert_eq!(store, "unset");
    assert!(!is_running(pid.parse().unwrap()));
}

#[test]
fn exit_code_is_passed_through() {
    assert_eq!(with_etcd(&["--", "/bin/sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(with_etcd(&["--", "/bin/sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(with_etcd(&["--", "/no/such/command"]).status.code(), Some(127));
}

#[test]
fn invalid_arguments_start_nothing() {
    for args in [&["--members", "0", "--", "true"][..], &["--"], &[], &["--what", "--", "true"]] {
        let output = with_etcd(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("usage: with-etcd"), "{args:?}");
    }
}
