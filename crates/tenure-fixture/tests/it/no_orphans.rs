//! No etcd outlives the process that started it, however that process ends.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use tenure_fixture::{Etcd, EtcdMember};

use crate::{eventually, is_running};

#[test]
fn dropped_etcd_leaves_nothing() {
    let etcd = Etcd::cluster(3);
    let pids: Vec<u32> = etcd.members().iter().map(EtcdMember::pid).collect();
    let folder = etcd.folder().to_owned();
    assert!(pids.iter().all(|pid| is_running(*pid)));
    drop(etcd);
    assert!(!pids.iter().any(|pid| is_running(*pid)));
    assert!(!folder.exists());
}

#[test]
fn panicking_test_leaves_nothing() {
    let seen: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);
    let outcome = std::panic::catch_unwind(|| {
        let etcd = Etcd::start();
        etcd.member(0).pause();
        *seen.lock().unwrap() = Some((etcd.member(0).pid(), etcd.folder().to_owned()));
        panic!("as a failing test would");
    });
    assert!(outcome.is_err());
    let (pid, folder) = seen.into_inner().unwrap().unwrap();
    assert!(!is_running(pid));
    assert!(!folder.exists());
}

/// SIGKILL lets no destructor run: only the sentinels can clean up.
#[test]
fn killed_process_leaves_nothing() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_with-etcd"))
        .args(["--members", "3", "--", "/bin/sh", "-c"])
        .arg("echo $TENURE_ETCD_PIDS; echo $TENURE_ETCD_FOLDER; read line")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pids: Vec<u32> = lines.next().unwrap().unwrap().split(',').map(|pid| pid.parse().unwrap()).collect();
    let folder = lines.next().unwrap().unwrap();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| is_running(*pid)));

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("every etcd is gone", || !pids.iter().any(|pid| is_running(*pid)));
    eventually("the folder is gone", || !Path::new(&folder).exists());
}

/// Threads of a test end before the test does; the runtime's blocking threads even while it idles.
#[test]
fn etcd_outlives_its_starting_thread() {
    let etcd = std::thread::spawn(Etcd::start).join().unwrap();
    assert!(etcd.member(0).is_running());
    assert!(etcd.member(0).is_healthy());
}
