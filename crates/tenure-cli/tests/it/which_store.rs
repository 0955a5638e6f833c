//! Which store is meant, and that it is never another one.

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::machine::Machine;

/// The value and the source of a setting, as `config show` tells them.
async fn setting(machine: &Machine, args: &[&str], name: &str) -> (String, String) {
    let shown = machine.json(&[args, &["config", "show"]].concat()).await;
    let settings = shown["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{shown}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&found["value"]), text(&found["source"]))
}

#[tokio::test]
async fn flags_beat_variables_beat_etcdctl_beats_the_file() {
    let machine = Machine::new();
    let file = machine.file(".config/tenure/config.toml", "endpoints = ['file:1']\nnamespace = 'shop'\n");
    assert_eq!(setting(&machine, &[], "store").await, ("etcd://file:1".into(), file.clone()));
    assert_eq!(setting(&machine, &[], "namespace").await, ("shop".into(), file));
    let machine = machine.with("ETCDCTL_ENDPOINTS", "etcdctl:1");
    assert_eq!(
        setting(&machine, &[], "store").await,
        ("etcd://etcdctl:1".into(), "ETCDCTL_ENDPOINTS".into())
    );
    let machine = machine.with("TENURE_STORE", "memory:");
    assert_eq!(setting(&machine, &[], "store").await, ("memory:".into(), "TENURE_STORE".into()));
    let flag = setting(&machine, &["--endpoints", "flag:1"], "store").await;
    assert_eq!(flag, ("etcd://flag:1".into(), "--endpoints".into()));
}

#[tokio::test]
async fn the_embedded_store_is_announced_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    let ran = machine.run(&["kv", "put", "/a", "1"]).await;
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("embedded"), "{ran:?}");
    let folder = machine.path(".local/state/tenure");
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    let ran = machine.run(&["kv", "get", "/a", "--local"]).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("1\n", ""), "said out loud, it needs no notice");
}

/// `tenure/eu` is not inside `tenure`: neither in the store nor, where there is one per namespace, as a file.
#[tokio::test]
async fn a_namespace_may_have_several_segments() {
    let etcd = Etcd::start();
    let on_etcd = Machine::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    for machine in [Machine::new(), on_etcd] {
        let machine = machine.with("PATH", "/usr/bin:/bin").with("TENURE_NAMESPACE", "/tenure/eu/");
        let args = ["lock", "a", "--", "sh", "-c", "echo $TENURE_NAMESPACE $TENURE_LOCK_KEY; read x"];
        let mut running = machine.start_with_open_stdin(&args);
        let told = running.line().await;
        assert!(told.starts_with("tenure/eu /tenure/eu/locks/a/"), "{told}");
        let is_held = async |namespace: &str| {
            machine.json(&["--namespace", namespace, "locks", "show", "a"]).await["held"] == true
        };
        assert!(is_held("tenure/eu").await && !is_held("tenure").await);
        running.feed(b"end\n").await;
        assert_eq!(running.end().await.0, Some(0));
    }
}

#[tokio::test]
async fn on_an_unattended_machine_the_embedded_store_needs_local() {
    for name in ["CI", "INVOCATION_ID", "KUBERNETES_SERVICE_HOST"] {
        let machine = Machine::new().with(name, "1");
        let ran = machine.run(&["kv", "put", "/a", "1"]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(name) && ran.stderr.contains("--local"), "{ran:?}");
        assert!(!std::path::Path::new(&machine.path(".local")).exists());
        machine.ok(&["kv", "put", "/a", "1", "--local"]).await;
        machine.ok(&["--store", "memory:", "kv", "put", "/a", "1"]).await;
    }
}

#[tokio::test]
async fn a_broken_configuration_is_an_error_and_no_fallback() {
    let machine = Machine::new();
    for text in ["endpoint = 'a:1'", "store = 'memory'", "store = "] {
        machine.file(".config/tenure/config.toml", text);
        let ran = machine.run(&["kv", "get", "/a"]).await;
        assert_eq!(ran.code, Some(2), "{text} {ran:?}");
        assert!(ran.stderr.contains("config.toml"), "{ran:?}");
    }
    assert!(!std::path::Path::new(&machine.path(".local")).exists());
}

#[tokio::test]
async fn global_flags_stand_anywhere_before_the_dashes() {
    let machine = Machine::new();
    let store = format!("file://{}", machine.path("own/store.db"));
    machine.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    assert_eq!(machine.ok(&["kv", "--store", &store, "get", "/a"]).await, "1");
    assert_eq!(machine.ok(&["kv", "get", "/a", "--store", &store]).await, "1");
    assert_eq!(machine.ok(&["kv", "get", "--store", &store, "--", "/a"]).await, "1");
}

#[tokio::test]
async fn no_secret_is_ever_shown() {
    const CANARY: &str = "canary-in-a-coal-mine";
    let machine = Machine::new()
        .with("ETCDCTL_USER", format!("ann:{CANARY}"))
        .with("ETCDCTL_PASSWORD", CANARY)
        .with("TENURE_ENDPOINTS", "127.0.0.1:1")
        .with("TENURE_LOG", "trace");
    let file = machine.file("password", CANARY);
    for args in [
        &["config", "show"][..],
        &["config", "show", "--json"],
        &["doctor"],
        &["doctor", "--json", "-vvv"],
        &["kv", "get", "/a", "-vv"],
        &["kv", "get", "/a", "--user", "bob", "--password-file", &file],
        &["kv", "get", "/a", "--user", &format!("bob:{CANARY}")],
        &["kv", "get", "/a", "--endpoints", &format!("http://bob:{CANARY}@127.0.0.1:1")],
        &["kv", "get", "/a", "--store", &format!("etcd://bob:{CANARY}@127.0.0.1:1")],
    ] {
        let ran = machine.run(args).await;
        assert!(!ran.stdout.contains(CANARY) && !ran.stderr.contains(CANARY), "{args:?} {ran:?}");
    }
    assert!(machine.ok(&["config", "show"]).await.contains("password\t(set)\tETCDCTL_PASSWORD"));
}

/// Every way in which an address can carry a password, and every way in which an address can be given.
#[tokio::test]
async fn password_in_an_address_reaches_no_output() {
    const CANARY: &str = "canary-in-a-coal-mine";
    let encoded: String = CANARY.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let machine = Machine::new();
    let shows = |text: &str| text.contains(CANARY) || text.contains(&encoded);
    for address in [
        format!("etcd://ann:{CANARY}@127.0.0.1:1"),
        format!("etcd://ann:{encoded}@127.0.0.1:1"),
        format!("etcd://ann:{encoded}%40127.0.0.1:1"),
        format!("etcd://ann:{CANARY}"),
        format!("http://:{CANARY}@127.0.0.1:1"),
        format!("redis://:{CANARY}%40a"),
        format!("127.0.0.1:1?password={CANARY}"),
        format!("ann:{CANARY}@127.0.0.1:1"),
        format!("file:ann:{CANARY}@x.db"),
    ] {
        for flag in ["--store", "--endpoints"] {
            for more in [&["-v"][..], &["-vvv"], &["--json"], &["--json", "-vv"]] {
                let ran = machine.run(&[&[flag, &address, "kv", "get", "/a"], more].concat()).await;
                assert_eq!(ran.code, Some(2), "{flag} {address} {ran:?}");
                assert!(!shows(&ran.stdout) && !shows(&ran.stderr), "{flag} {address} {ran:?}");
            }
        }
        let doctor = machine.run(&["doctor", "--store", &address]).await;
        let misplaced = machine.run(&[&address]).await;
        let config = machine.file(".config/tenure/config.toml", format!("store = '{address}'"));
        let from_file = machine.run(&["kv", "get", "/a", "-v"]).await;
        std::fs::remove_file(config).unwrap();
        for ran in [doctor, misplaced, from_file] {
            assert_eq!(ran.code, Some(2), "{address} {ran:?}");
            assert!(!shows(&ran.stdout) && !shows(&ran.stderr), "{address} {ran:?}");
        }
    }
}

#[tokio::test]
async fn a_password_file_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new();
    let file = machine.file("password", "pw");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let ran = machine
        .run(&["--endpoints", "127.0.0.1:1", "--user", "ann", "--password-file", &file, "kv", "get", "/a"])
        .await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("chmod 600"), "{ran:?}");
    let ran = machine.run(&["--endpoints", "127.0.0.1:1", "--user", "ann", "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(2), "nobody to ask: {ran:?}");
}

#[tokio::test]
async fn configuration_files_are_named_in_their_order() {
    let machine = Machine::new();
    machine.file(".config/tenure/config.toml", "");
    let shown = machine.ok(&["config", "path"]).await;
    let expected =
        format!("{}\texists\n/etc/tenure/config.toml\t", machine.path(".config/tenure/config.toml"));
    assert!(shown.starts_with(&expected), "{shown}");
}
