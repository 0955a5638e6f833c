//! The command on real etcd: the same verbs, passwords, certificates, and dead members.

use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tenure_fixture::{Etcd, Mode, Proxy};

use crate::sandbox::Sandbox;

fn sandbox(etcd: &Etcd) -> Sandbox {
    Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// One check of `doctor`.
fn check<'a>(output: &'a Value, name: &str) -> &'a Value {
    let checks = output["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {output}"))
}

#[tokio::test]
async fn verbs_work_on_etcd_as_on_file() {
    let etcd = Etcd::start();
    let sandbox = sandbox(&etcd);
    let ran = sandbox.run(&["kv", "put", "/tenure/a", "1", "--create"]).await;
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(0), ""),
        "a configured store is not announced: {ran:?}"
    );
    let first = ran.stdout.trim();
    assert_eq!(sandbox.run(&["kv", "put", "/tenure/a", "2", "--create"]).await.code, Some(4));
    let second = sandbox.ok(&["kv", "put", "/tenure/a", "2", "--if-mod", first]).await;
    assert_eq!(sandbox.ok(&["kv", "get", "/tenure/a", "--at", first]).await, "1");
    assert_eq!(sandbox.run(&["kv", "get", "/tenure/missing"]).await.code, Some(3));
    let put = sandbox.json(&["kv", "put", "/tenure/leased", "x", "--ttl", "60s"]).await;
    assert_eq!(put["ttl_seconds"], json!(60.0));
    assert_eq!(sandbox.json(&["kv", "get", "/tenure/leased"]).await["lease"], put["lease"]);
    let output = sandbox.ok(&["kv", "watch", "--prefix", "/tenure/", "--after", first, "--count", "1"]).await;
    assert_eq!(output, format!("{second}\tput\t/tenure/a\t2"));
    let txn = br#"{"when":[{"key":"/tenure/a","value":"2"}],"then":[{"delete":{"prefix":"/tenure/"}}]}"#;
    let ran = sandbox.run_with(&["kv", "txn"], txn).await;
    assert!(ran.code == Some(0) && ran.stdout.contains(r#""deleted":2"#), "{ran:?}");
    // etcd lets only the role root compact its history.
    let administrator = Sandbox::administrator().with("TENURE_ENDPOINTS", etcd.endpoints());
    administrator.ok(&["kv", "compact", &second]).await;
    let ran = sandbox.run(&["kv", "watch", "/tenure/a", "--after", "1", "--json"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(1), &json!("compacted")), "{ran:?}");
    let ran = sandbox.run_with(&["kv", "put", "/tenure/big", "-", "--json"], &vec![b'x'; 2 << 20]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(2), &json!("invalid")), "{ran:?}");
}

#[tokio::test]
async fn watch_runs_until_interrupted() {
    let etcd = Etcd::start();
    let sandbox = sandbox(&etcd);
    let mut watch = sandbox.start(&["kv", "watch", "--prefix", "/tenure/w/", "--json"]);
    watch.hear("watching").await;
    for n in 0..3 {
        let revision = sandbox.ok(&["kv", "put", &format!("/tenure/w/{n}"), "x"]).await;
        let event: Value = serde_json::from_str(&watch.line().await).unwrap();
        assert_eq!(event["revision"], revision.as_str());
    }
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn wrong_password_exits_6_and_stays_secret() {
    let etcd = Etcd::builder().without_auth().bcrypt_cost(4).start();
    etcd.access().add_root("canary-right").enable();

    let sandbox = Sandbox::without_user().with("TENURE_ENDPOINTS", etcd.endpoints());
    let right = sandbox.file("right", "canary-right\n");
    let wrong = sandbox.file("wrong", "canary-wrong\n");
    sandbox.ok(&["--user", "root", "--password-file", &right, "kv", "put", "/a", "1"]).await;
    let found =
        check(&sandbox.json(&["--user", "root", "--password-file", &right, "doctor"]).await, "auth").clone();
    assert_eq!(found["state"], "ok", "{found}");
    for args in [
        &["--user", "root", "--password-file", &wrong, "kv", "get", "/a"][..],
        &["--user", "root", "--password-file", &wrong, "-vvv", "kv", "put", "/a", "2"],
        &["--user", "root", "--password-file", &wrong, "doctor"],
        &["--user", "unknown", "--password-file", &right, "kv", "get", "/a"],
        &["kv", "get", "/a"],
        &["doctor"],
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(6), "{args:?} {ran:?}");
        assert!(!ran.stdout.contains("canary") && !ran.stderr.contains("canary"), "{args:?} {ran:?}");
    }
    let sandbox = sandbox.with("ETCDCTL_USER", "root:canary-right");
    assert_eq!(sandbox.ok(&["kv", "get", "/a"]).await, "1", "in the form of etcdctl");
}

#[tokio::test]
async fn foreign_certificate_exits_6() {
    let authority = || {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, stranger) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ours).unwrap();
    let sandbox = Sandbox::without_user();
    let tls = tenure_fixture::Tls {
        cert: sandbox.file("server.pem", certificate.pem()).into(),
        key: sandbox.file("server.key", key.serialize_pem()).into(),
        client_ca: None,
    };
    let etcd = Etcd::builder().tls(tls).start();
    let endpoints = etcd.member(0).client_addr().to_string();
    let right = sandbox.file("right.pem", ours.pem());
    let wrong = sandbox.file("wrong.pem", stranger.pem());

    sandbox.ok(&["--endpoints", &endpoints, "--cacert", &right, "kv", "put", "/a", "1"]).await;
    sandbox.ok(&["--store", &format!("etcds://{endpoints}"), "--cacert", &right, "kv", "get", "/a"]).await;
    let output = sandbox.json(&["--endpoints", &endpoints, "--cacert", &right, "doctor"]).await;
    assert_eq!(check(&output, "tls")["state"], "ok");
    let begin = Instant::now();
    let ran = sandbox.run(&["--endpoints", &endpoints, "--cacert", &wrong, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(ran.stderr.to_lowercase().contains("certificate"), "{ran:?}");
    assert!(begin.elapsed() < Duration::from_secs(6));
    let ran = sandbox.run(&["--endpoints", &format!("http://{endpoints}"), "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(5), "plaintext to a TLS port: {ran:?}");
    let ran = sandbox.run(&["--endpoints", &endpoints, "--cacert", "/nowhere.pem", "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[tokio::test]
async fn silent_server_exits_5_within_6_seconds() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    proxy.set(Mode::BlackHole);
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", proxy.addr().to_string());
    for args in [&["kv", "get", "/a"][..], &["kv", "put", "/a", "1"], &["doctor"]] {
        let begin = Instant::now();
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(5), "{args:?} {ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{args:?} took {:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn one_dead_member_of_three_is_harmless() {
    let etcd = Etcd::cluster(3);
    let sandbox = sandbox(&etcd);
    sandbox.ok(&["kv", "put", "/tenure/a", "1"]).await;
    etcd.member(0).kill();
    for _ in 0..3 {
        assert_eq!(sandbox.ok(&["kv", "get", "/tenure/a"]).await, "1");
    }
    let output = sandbox.json(&["doctor"]).await;
    assert!(check(&output, "members")["detail"].as_str().unwrap().contains("3 voting"), "{output}");
    assert_eq!(check(&output, "server")["state"], "ok", "{output}");
}
