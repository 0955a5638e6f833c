//! How the command selects its store, and that it never falls back to another one.

use serde_json::Value;
use tenure_fixture::Etcd;

use crate::sandbox::Sandbox;

/// The value and the source of a setting in `config show`.
async fn setting(sandbox: &Sandbox, args: &[&str], name: &str) -> (String, String) {
    let shown = sandbox.json(&[args, &["config", "show"]].concat()).await;
    let settings = shown["settings"].as_array().unwrap();
    let found = settings.iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{shown}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&found["value"]), text(&found["source"]))
}

#[tokio::test]
async fn flags_beat_variables_beat_etcdctl_beats_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.file(".config/tenure/config.toml", "endpoints = ['file:1']\nnamespace = 'shop'\n");
    assert_eq!(setting(&sandbox, &[], "store").await, ("etcd://file:1".into(), file.clone()));
    assert_eq!(setting(&sandbox, &[], "namespace").await, ("shop".into(), file));
    let sandbox = sandbox.with("ETCDCTL_ENDPOINTS", "etcdctl:1");
    assert_eq!(
        setting(&sandbox, &[], "store").await,
        ("etcd://etcdctl:1".into(), "ETCDCTL_ENDPOINTS".into())
    );
    let sandbox = sandbox.with("TENURE_STORE", "memory:");
    assert_eq!(setting(&sandbox, &[], "store").await, ("memory:".into(), "TENURE_STORE".into()));
    let flag = setting(&sandbox, &["--endpoints", "flag:1"], "store").await;
    assert_eq!(flag, ("etcd://flag:1".into(), "--endpoints".into()));
}

#[tokio::test]
async fn embedded_store_is_announced_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["kv", "put", "/a", "1"]).await;
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("embedded"), "{ran:?}");
    let folder = sandbox.path(".local/state/tenure");
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    let ran = sandbox.run(&["kv", "get", "/a", "--local"]).await;
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("1\n", ""),
        "an explicit --local prints no notice"
    );
}

/// `tenure/eu` is not inside `tenure`: neither in the store nor, where there is one per namespace, as a file.
#[tokio::test]
async fn namespace_may_have_several_segments() {
    let etcd = Etcd::start();
    let on_etcd = Sandbox::new().with("TENURE_ENDPOINTS", etcd.endpoints());
    for sandbox in [Sandbox::new(), on_etcd] {
        let sandbox = sandbox.with("PATH", "/usr/bin:/bin").with("TENURE_NAMESPACE", "/tenure/eu/");
        let args = ["lock", "a", "--", "sh", "-c", "echo $TENURE_NAMESPACE $TENURE_LOCK_KEY; read x"];
        let mut running = sandbox.start_with_open_stdin(&args);
        let output = running.line().await;
        assert!(output.starts_with("tenure/eu /tenure/eu/locks/a/"), "{output}");
        let is_held = async |namespace: &str| {
            sandbox.json(&["--namespace", namespace, "locks", "show", "a"]).await["held"] == true
        };
        assert!(is_held("tenure/eu").await && !is_held("tenure").await);
        running.feed(b"end\n").await;
        assert_eq!(running.end().await.0, Some(0));
    }
}

#[tokio::test]
async fn unattended_host_requires_local_flag() {
    for name in ["CI", "INVOCATION_ID", "KUBERNETES_SERVICE_HOST"] {
        let sandbox = Sandbox::new().with(name, "1");
        let ran = sandbox.run(&["kv", "put", "/a", "1"]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(name) && ran.stderr.contains("--local"), "{ran:?}");
        assert!(!std::path::Path::new(&sandbox.path(".local")).exists());
        sandbox.ok(&["kv", "put", "/a", "1", "--local"]).await;
        sandbox.ok(&["--store", "memory:", "kv", "put", "/a", "1"]).await;
    }
}

#[tokio::test]
async fn broken_configuration_is_an_error() {
    let sandbox = Sandbox::new();
    for text in ["endpoint = 'a:1'", "store = 'memory'", "store = "] {
        sandbox.file(".config/tenure/config.toml", text);
        let ran = sandbox.run(&["kv", "get", "/a"]).await;
        assert_eq!(ran.code, Some(2), "{text} {ran:?}");
        assert!(ran.stderr.contains("config.toml"), "{ran:?}");
    }
    assert!(!std::path::Path::new(&sandbox.path(".local")).exists());
}

#[tokio::test]
async fn global_flags_work_anywhere_before_separator() {
    let sandbox = Sandbox::new();
    let store = format!("file://{}", sandbox.path("own/store.db"));
    sandbox.ok(&["--store", &store, "kv", "put", "/a", "1"]).await;
    assert_eq!(sandbox.ok(&["kv", "--store", &store, "get", "/a"]).await, "1");
    assert_eq!(sandbox.ok(&["kv", "get", "/a", "--store", &store]).await, "1");
    assert_eq!(sandbox.ok(&["kv", "get", "--store", &store, "--", "/a"]).await, "1");
}

#[tokio::test]
async fn secrets_are_never_shown() {
    const CANARY: &str = "canary-in-a-coal-mine";
    let sandbox = Sandbox::new()
        .with("ETCDCTL_USER", format!("ann:{CANARY}"))
        .with("ETCDCTL_PASSWORD", CANARY)
        .with("TENURE_ENDPOINTS", "127.0.0.1:1")
        .with("TENURE_LOG", "trace");
    let file = sandbox.file("password", CANARY);
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
        let ran = sandbox.run(args).await;
        assert!(!ran.stdout.contains(CANARY) && !ran.stderr.contains(CANARY), "{args:?} {ran:?}");
    }
    assert!(sandbox.ok(&["config", "show"]).await.contains("password\t(set)\tETCDCTL_PASSWORD"));
}

/// Each form of an address with a password, given in each way.
#[tokio::test]
async fn password_in_an_address_reaches_no_output() {
    const CANARY: &str = "canary-in-a-coal-mine";
    let encoded: String = CANARY.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let sandbox = Sandbox::new();
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
                let ran = sandbox.run(&[&[flag, &address, "kv", "get", "/a"], more].concat()).await;
                assert_eq!(ran.code, Some(2), "{flag} {address} {ran:?}");
                assert!(!shows(&ran.stdout) && !shows(&ran.stderr), "{flag} {address} {ran:?}");
            }
        }
        let doctor = sandbox.run(&["doctor", "--store", &address]).await;
        let misplaced = sandbox.run(&[&address]).await;
        let config = sandbox.file(".config/tenure/config.toml", format!("store = '{address}'"));
        let from_file = sandbox.run(&["kv", "get", "/a", "-v"]).await;
        std::fs::remove_file(config).unwrap();
        for ran in [doctor, misplaced, from_file] {
            assert_eq!(ran.code, Some(2), "{address} {ran:?}");
            assert!(!shows(&ran.stdout) && !shows(&ran.stderr), "{address} {ran:?}");
        }
    }
}

#[tokio::test]
async fn readable_password_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let file = sandbox.file("password", "pw");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let ran = sandbox
        .run(&["--endpoints", "127.0.0.1:1", "--user", "ann", "--password-file", &file, "kv", "get", "/a"])
        .await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("chmod 600"), "{ran:?}");
    let ran = sandbox.run(&["--endpoints", "127.0.0.1:1", "--user", "ann", "kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(2), "no terminal to prompt on: {ran:?}");
}

#[tokio::test]
async fn configuration_files_are_listed_in_order() {
    let sandbox = Sandbox::new();
    sandbox.file(".config/tenure/config.toml", "");
    let shown = sandbox.ok(&["config", "path"]).await;
    let expected =
        format!("{}\texists\n/etc/tenure/config.toml\t", sandbox.path(".config/tenure/config.toml"));
    assert!(shown.starts_with(&expected), "{shown}");
}
