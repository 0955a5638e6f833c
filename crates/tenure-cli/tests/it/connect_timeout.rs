//! Connecting obeys `--wait` and `--connect-timeout`: the command waits for a store that is silent or absent for a while.

use std::time::{Duration, Instant};

use tenure_fixture::{Etcd, Mode, Proxy};

use crate::sandbox::Sandbox;

fn sandbox(etcd: &Etcd) -> Sandbox {
    Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints()).with("PATH", "/usr/bin:/bin")
}

/// One second of silence once ended the command with 125, regardless of `--wait`.
#[tokio::test]
async fn lock_survives_a_paused_store_at_its_start() {
    let etcd = Etcd::start();
    let sandbox = sandbox(&etcd);
    for silent in [Duration::from_millis(1_200), Duration::from_secs(4)] {
        etcd.member(0).pause();
        let begin = Instant::now();
        let running = sandbox.start(&["lock", "a", "--wait", "30s", "--", "true"]);
        tokio::time::sleep(silent).await;
        etcd.member(0).resume();
        let (code, stderr) = running.end().await;
        assert_eq!(code, Some(0), "silent for {silent:?}: {stderr}");
        assert!(begin.elapsed() < silent + Duration::from_secs(8), "{:?}", begin.elapsed());
    }
}

/// The run of the period was once skipped.
#[tokio::test]
async fn once_and_reading_verbs_survive_a_paused_store() {
    let etcd = Etcd::start();
    let sandbox = sandbox(&etcd);
    let marker = sandbox.path("marker");
    for args in [&["once", "a", "--every", "1h", "--", "touch", &marker][..], &["locks", "ls"]] {
        etcd.member(0).pause();
        let running = sandbox.start(args);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        etcd.member(0).resume();
        let (code, stderr) = running.end().await;
        assert_eq!(code, Some(0), "{args:?} {stderr}");
    }
    assert!(std::path::Path::new(&marker).exists());
}

#[tokio::test]
async fn refused_connection_is_retried_only_with_wait() {
    let etcd = Etcd::start();
    let sandbox = sandbox(&etcd);
    etcd.member(0).kill();
    for args in [&["kv", "get", "/a"][..], &["status"], &["lock", "a", "--", "true"]] {
        let begin = Instant::now();
        let ran = sandbox.run(args).await;
        assert!(matches!(ran.code, Some(5 | 125)), "{args:?} {ran:?}");
        assert!(ran.stderr.contains("Connection refused") && ran.stderr.contains("hint:"), "{ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{args:?} took {:?}", begin.elapsed());
    }
    let begin = Instant::now();
    let ran = sandbox.run(&["lock", "a", "--wait", "2s", "--", "true"]).await;
    assert_eq!(ran.code, Some(125), "{ran:?}");
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(6), "{took:?}");
    let running = sandbox.start(&["lock", "a", "--wait", "60s", "--", "true"]);
    etcd.member(0).restart();
    let (code, stderr) = running.end().await;
    assert_eq!(code, Some(0), "{stderr}");
}

#[tokio::test]
async fn connect_timeout_limits_connecting() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    proxy.set(Mode::BlackHole);
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", proxy.addr().to_string());
    for args in [&["kv", "get", "/a"][..], &["doctor"], &["lock", "a", "--wait", "60s", "--", "true"]] {
        let begin = Instant::now();
        let ran = sandbox.run(&[&["--connect-timeout", "1500ms"], args].concat()).await;
        assert!(matches!(ran.code, Some(5 | 125)), "{args:?} {ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{args:?} took {:?}", begin.elapsed());
    }
}
