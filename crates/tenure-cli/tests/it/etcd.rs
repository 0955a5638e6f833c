//! On real etcd: the same verbs, passwords, certificates, and members that are gone.

use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tenure_etcd::{Client, Config, Secret};
use tenure_fixture::{Etcd, Mode, Proxy};

use crate::machine::Machine;

fn machine(etcd: &Etcd) -> Machine {
    Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints())
}

/// What the doctor says about one thing.
fn check<'a>(told: &'a Value, name: &str) -> &'a Value {
    let checks = told["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {told}"))
}

#[tokio::test]
async fn every_verb_works_on_etcd_as_on_a_file() {
    let etcd = Etcd::start();
    let machine = machine(&etcd);
    let ran = machine.run(&["kv", "put", "/a", "1", "--create"]).await;
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(0), ""),
        "a configured store is not announced: {ran:?}"
    );
    let first = ran.stdout.trim();
    assert_eq!(machine.run(&["kv", "put", "/a", "2", "--create"]).await.code, Some(4));
    let second = machine.ok(&["kv", "put", "/a", "2", "--if-mod", first]).await;
    assert_eq!(machine.ok(&["kv", "get", "/a", "--at", first]).await, "1");
    assert_eq!(machine.run(&["kv", "get", "/missing"]).await.code, Some(3));
    let put = machine.json(&["kv", "put", "/leased", "x", "--ttl", "60s"]).await;
    assert_eq!(put["ttl_seconds"], json!(60.0));
    assert_eq!(machine.json(&["kv", "get", "/leased"]).await["lease"], put["lease"]);
    let told = machine.ok(&["kv", "watch", "--prefix", "/", "--after", first, "--count", "1"]).await;
    assert_eq!(told, format!("{second}\tput\t/a\t2"));
    let txn = br#"{"when":[{"key":"/a","value":"2"}],"then":[{"delete":{"prefix":""}}]}"#;
    let ran = machine.run_with(&["kv", "txn"], txn).await;
    assert!(ran.code == Some(0) && ran.stdout.contains(r#""deleted":2"#), "{ran:?}");
    machine.ok(&["kv", "compact", &second]).await;
    let ran = machine.run(&["kv", "watch", "/a", "--after", "1", "--json"]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(1), &json!("compacted")), "{ran:?}");
    let ran = machine.run_with(&["kv", "put", "/big", "-", "--json"], &vec![b'x'; 2 << 20]).await;
    assert_eq!((ran.code, &ran.error()["code"]), (Some(2), &json!("invalid")), "{ran:?}");
}

#[tokio::test]
async fn a_watch_goes_on_until_it_is_interrupted() {
    let etcd = Etcd::start();
    let machine = machine(&etcd);
    let mut watch = machine.start(&["kv", "watch", "--prefix", "/w/", "--json"]);
    watch.hear("watching").await;
    for n in 0..3 {
        let revision = machine.ok(&["kv", "put", &format!("/w/{n}"), "x"]).await;
        let event: Value = serde_json::from_str(&watch.line().await).unwrap();
        assert_eq!(event["revision"], revision.as_str());
    }
    watch.interrupt();
    assert_eq!(watch.end().await.0, Some(130));
}

#[tokio::test]
async fn the_wrong_password_is_6_and_never_shown() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    let client = Client::connect(Config::new(etcd.client_urls())).await.unwrap();
    client.user_add("root", &Secret::new("canary-right")).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.auth_enable().await.unwrap();

    let machine = machine(&etcd);
    let right = machine.file("right", "canary-right\n");
    let wrong = machine.file("wrong", "canary-wrong\n");
    machine.ok(&["--user", "root", "--password-file", &right, "kv", "put", "/a", "1"]).await;
    let found =
        check(&machine.json(&["--user", "root", "--password-file", &right, "doctor"]).await, "auth").clone();
    assert_eq!(found["state"], "ok", "{found}");
    for args in [
        &["--user", "root", "--password-file", &wrong, "kv", "get", "/a"][..],
        &["--user", "root", "--password-file", &wrong, "-vvv", "kv", "put", "/a", "2"],
        &["--user", "root", "--password-file", &wrong, "doctor"],
        &["--user", "nobody", "--password-file", &right, "kv", "get", "/a"],
        &["kv", "get", "/a"],
        &["doctor"],
    ] {
        let ran = machine.run(args).await;
        assert_eq!(ran.code, Some(6), "{args:?} {ran:?}");
        assert!(!ran.stdout.contains("canary") && !ran.stderr.contains("canary"), "{args:?} {ran:?}");
    }
    let machine = machine.with("ETCDCTL_USER", "root:canary-right");
    assert_eq!(machine.ok(&["kv", "get", "/a"]).await, "1", "as etcdctl understands it");
}

#[tokio::test]
async fn a_certificate_of_a_stranger_is_6_and_the_right_one_is_trusted() {
    let authority = || {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, stranger) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ours).unwrap();
    let machine = Machine::new();
    let tls = tenure_fixture::Tls {
        cert: machine.file("server.pem", certificate.pem()).into(),
        key: machine.file("server.key", key.serialize_pem()).into(),
        client_ca: None,
    };
    let etcd = Etcd::builder().tls(tls).start();
    let endpoints = etcd.member(0).client_addr().to_string();
    let right = machine.file("right.pem", ours.pem());
    let wrong = machine.file("wrong.pem", stranger.pem());

    machine.ok(&["--endpoints", &endpoints, "--cacert", &right, "kv", "put", "/a", "1"]).await;
    machine.ok(&["--store", &format!("etcds://{endpoints}"), "--cacert", &right, "kv", "get", "/a"]).await;
    let told = machine.json(&["--endpoints", &endpoints, "--cacert", &right, "doctor"]).await;
    assert_eq!(check(&told, "tls")["state"], "ok");
    let begin = Instant::now();
    let ran = machine.run(&["--endpoints", &endpoints, "--cacert", &wrong, "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(6), "{ran:?}");
    assert!(ran.stderr.to_lowercase().contains("certificate"), "{ran:?}");
    assert!(begin.elapsed() < Duration::from_secs(6));
    let ran = machine.run(&["--endpoints", &format!("http://{endpoints}"), "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(5), "in the clear to a TLS port: {ran:?}");
    let ran = machine.run(&["--endpoints", &endpoints, "--cacert", "/nowhere.pem", "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[tokio::test]
async fn a_server_that_swallows_everything_is_5_within_6_seconds() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    proxy.set(Mode::BlackHole);
    let machine = Machine::new().with("TENURE_ENDPOINTS", proxy.addr().to_string());
    for args in [&["kv", "get", "/a"][..], &["kv", "put", "/a", "1"], &["doctor"]] {
        let begin = Instant::now();
        let ran = machine.run(args).await;
        assert_eq!(ran.code, Some(5), "{args:?} {ran:?}");
        assert!(begin.elapsed() < Duration::from_secs(6), "{args:?} took {:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn one_dead_member_of_three_is_not_noticed() {
    let etcd = Etcd::cluster(3);
    let machine = machine(&etcd);
    machine.ok(&["kv", "put", "/a", "1"]).await;
    etcd.member(0).kill();
    for _ in 0..3 {
        assert_eq!(machine.ok(&["kv", "get", "/a"]).await, "1");
    }
    let told = machine.json(&["doctor"]).await;
    assert!(check(&told, "members")["detail"].as_str().unwrap().contains("3 voting"), "{told}");
    assert_eq!(check(&told, "server")["state"], "ok", "{told}");
}

#[tokio::test]
async fn the_benchmark_stands_beside_hand_written_calls_and_cleans_up() {
    let etcd = Etcd::start();
    let machine = machine(&etcd);
    let ran = machine.run(&["bench", "store", "--engines", "etcd", "--n", "50", "--seconds-max", "1"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |workload: &str, engine: &str| {
        objects
            .iter()
            .find(|row| row["workload"] == workload && row["engine"] == engine && row.get("n").is_some())
    };
    for workload in [
        "put",
        "put_64",
        "put_256",
        "get",
        "put_10000_in_txns",
        "claims_batch_100",
        "claims_one_by_one",
        "watch",
    ] {
        for engine in ["etcd", "raw"] {
            let row =
                row(workload, engine).unwrap_or_else(|| panic!("{workload} {engine} in {}", ran.stdout));
            assert!(row["requests"].is_u64(), "{row}");
        }
    }
    let (batch, single) =
        (row("claims_batch_100", "etcd").unwrap(), row("claims_one_by_one", "etcd").unwrap());
    let per_claim = |row: &Value| row["requests"].as_f64().unwrap() / row["n"].as_f64().unwrap();
    assert!(per_claim(batch) < 0.1 && per_claim(single) >= 1.0, "{batch} {single}");
    let verdicts = objects.iter().filter(|object| object.get("goal").is_some());
    assert!(verdicts.filter(|verdict| verdict["reference"] == "raw").all(|v| v["met"].is_boolean()));
    assert_eq!(machine.ok(&["kv", "range", "", "--keys-only"]).await, "", "the benchmark left keys behind");
}
