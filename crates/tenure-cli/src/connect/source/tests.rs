//! Cases of the choice: which source decides, and what is refused.

use super::*;

/// `--flags`, `VARIABLES` and `user.key` / `etc.key` file entries, as they would be written.
fn sources(entries: &[(&str, &str)]) -> Sources {
    let mut sources = Sources::default();
    sources.env.insert("HOME".into(), "/home/ann".into());
    let by_name =
        |name: &str| Setting::ALL.into_iter().find(|setting| setting.name() == name.replace('-', "_"));
    let mut user = Values::new();
    let mut machine = Values::new();
    for &(name, value) in entries {
        if name == "--local" {
            sources.is_local = true;
        } else if let Some(flag) = name.strip_prefix("--") {
            sources.flags.insert(by_name(flag).unwrap(), value.into());
        } else if let Some(key) = name.strip_prefix("user.") {
            user.insert(by_name(key).unwrap(), value.into());
        } else if let Some(key) = name.strip_prefix("etc.") {
            machine.insert(by_name(key).unwrap(), value.into());
        } else {
            sources.env.insert(name.into(), value.into());
        }
    }
    sources.files = vec![("/home/ann/config.toml".into(), user), ("/etc/tenure/config.toml".into(), machine)];
    sources
}

fn store(entries: &[(&str, &str)]) -> (String, String) {
    let store = decide(&sources(entries)).unwrap().store.unwrap();
    (store.value.to_string(), store.origin.to_string())
}

fn store_refused(entries: &[(&str, &str)]) -> Failure {
    decide(&sources(entries)).unwrap().store.unwrap_err()
}

#[test]
fn strongest_source_names_the_store() {
    let all = [
        ("--endpoints", "flag:1"),
        ("TENURE_ENDPOINTS", "tenure:1"),
        ("ETCDCTL_ENDPOINTS", "etcdctl:1"),
        ("user.endpoints", "user:1"),
        ("etc.endpoints", "etc:1"),
    ];
    for (strongest, origin) in [
        "--endpoints",
        "TENURE_ENDPOINTS",
        "ETCDCTL_ENDPOINTS",
        "/home/ann/config.toml",
        "/etc/tenure/config.toml",
    ]
    .into_iter()
    .enumerate()
    {
        let host = all[strongest].1;
        assert_eq!(store(&all[strongest..]), (format!("etcd://{host}"), origin.to_owned()));
    }
}

#[test]
fn store_and_endpoints_are_one_setting_across_layers() {
    let entries = [("TENURE_STORE", "memory:"), ("ETCDCTL_ENDPOINTS", "a:1")];
    assert_eq!(store(&entries), ("memory:".into(), "TENURE_STORE".into()));
    let entries = [("--endpoints", "a:1"), ("TENURE_STORE", "memory:")];
    assert_eq!(store(&entries), ("etcd://a:1".into(), "--endpoints".into()));
    let failure = store_refused(&[("TENURE_STORE", "memory:"), ("TENURE_ENDPOINTS", "a:1")]);
    assert!(failure.message.contains("TENURE_STORE and TENURE_ENDPOINTS"), "{failure:?}");
}

#[test]
fn unconfigured_store_is_embedded_with_a_note() {
    let settings = decide(&sources(&[])).unwrap();
    let store = settings.store.unwrap();
    assert_eq!(store.value.to_string(), "file:///home/ann/.local/state/tenure/tenure/store.db");
    assert_eq!(store.origin, Origin::Default);
    assert_eq!(settings.notes.len(), 1);
    let (url, _) = self::store(&[("XDG_STATE_HOME", "/state")]);
    assert_eq!(url, "file:///state/tenure/tenure/store.db");
    let (url, _) = self::store(&[("XDG_STATE_HOME", "/state"), ("--namespace", "shop")]);
    assert_eq!(url, "file:///state/tenure/shop/store.db");
    let (url, _) = self::store(&[("XDG_STATE_HOME", "relative")]);
    assert_eq!(url, "file:///home/ann/.local/state/tenure/tenure/store.db");
}

#[test]
fn unattended_host_needs_local_flag() {
    for name in UNATTENDED {
        let failure = store_refused(&[(name, "1")]);
        assert!(failure.message.contains(name), "{failure:?}");
        assert!(failure.hint.unwrap().contains("--local"));
        assert_eq!(store(&[(name, "1"), ("--local", "")]).1, "--local");
        assert_eq!(store(&[(name, ""), ("--local", "")]).1, "--local");
        assert_eq!(store(&[(name, "1"), ("TENURE_STORE", "memory:")]).0, "memory:");
    }
    assert_eq!(store(&[("CI", "")]).1, "default");
}

#[test]
fn local_overrides_variables_but_no_flag() {
    assert_eq!(store(&[("--local", ""), ("TENURE_ENDPOINTS", "a:1")]).1, "--local");
    let failure = store_refused(&[("--local", ""), ("--store", "memory:")]);
    assert!(failure.message.contains("--local and --store"), "{failure:?}");
}

#[test]
fn invalid_address_never_falls_back() {
    for entries in [
        [("TENURE_STORE", "redis://a"), ("user.store", "memory:")],
        [("TENURE_ENDPOINTS", "a:port"), ("user.store", "memory:")],
        [("user.store", "file://relative"), ("etc.store", "memory:")],
    ] {
        assert_eq!(store_refused(&entries).code, Code::Usage);
    }
}

#[test]
fn empty_values_count_as_not_given() {
    assert_eq!(store(&[("TENURE_STORE", ""), ("ETCDCTL_ENDPOINTS", "a:1")]).1, "ETCDCTL_ENDPOINTS");
}

#[test]
fn each_setting_has_its_own_source() {
    let settings = decide(&sources(&[
        ("--cacert", "/flag.pem"),
        ("TENURE_CACERT", "/variable.pem"),
        ("ETCDCTL_CERT", "/cert.pem"),
        ("user.key", "/key.pem"),
        ("TENURE_NAMESPACE", "shop"),
        ("etc.node", "web-1"),
        ("ETCDCTL_NAMESPACE", "not read"),
        ("ETCDCTL_NODE", "nor this"),
    ]))
    .unwrap();
    let shown = |found: Option<Sourced<PathBuf>>| {
        found.map(|found| format!("{} {}", found.value.display(), found.origin))
    };
    assert_eq!(shown(settings.cacert).unwrap(), "/flag.pem --cacert");
    assert_eq!(shown(settings.cert).unwrap(), "/cert.pem ETCDCTL_CERT");
    assert_eq!(shown(settings.key).unwrap(), "/key.pem /home/ann/config.toml");
    assert_eq!(settings.namespace.value.as_str(), "shop");
    assert_eq!(settings.node.unwrap().value, "web-1");
    assert_eq!(decide(&sources(&[])).unwrap().namespace.value.as_str(), "tenure");
}

#[test]
fn certificate_without_key_is_refused() {
    assert!(decide(&sources(&[("--cert", "/c.pem")])).is_err());
    assert!(decide(&sources(&[("ETCDCTL_KEY", "/k.pem")])).is_err());
}

#[test]
fn certificates_enable_tls_for_bare_endpoints() {
    assert_eq!(store(&[("TENURE_ENDPOINTS", "a:1"), ("ETCDCTL_CACERT", "/ca.pem")]).0, "etcds://a:1");
    let settings = decide(&sources(&[("--store", "etcd://a:1"), ("--cacert", "/ca.pem")])).unwrap();
    assert!(settings.notes[0].contains("without TLS"), "{:?}", settings.notes);
}

#[test]
fn user_and_password_belong_together() {
    let check = |entries: &[(&str, &str)], user: &str, password: Option<&str>| {
        let settings = decide(&sources(entries)).unwrap();
        assert_eq!(settings.user.unwrap().value, user, "{entries:?}");
        let found = settings.password.map(|found| match found.value {
            Password::Text(Hidden(text)) => text,
            Password::File(path) => path.display().to_string(),
        });
        assert_eq!(found.as_deref(), password, "{entries:?}");
    };
    check(&[("ETCDCTL_USER", "ann:s3cret")], "ann", Some("s3cret"));
    check(&[("ETCDCTL_USER", "ann:s3:cret")], "ann", Some("s3:cret"));
    check(&[("ETCDCTL_USER", "ann"), ("ETCDCTL_PASSWORD", "pw")], "ann", Some("pw"));
    check(&[("--user", "bob"), ("ETCDCTL_USER", "ann:s3cret")], "bob", None);
    check(
        &[("--user", "bob"), ("TENURE_PASSWORD_FILE", "/pw"), ("ETCDCTL_PASSWORD", "x")],
        "bob",
        Some("/pw"),
    );
    check(&[("--user", "bob"), ("TENURE_PASSWORD", "not read")], "bob", None);
    assert!(decide(&sources(&[("--user", "bob:pw")])).is_err());
    assert!(decide(&sources(&[("user.user", "bob:pw")])).is_err());
}

#[test]
fn settings_show_no_password() {
    let entries = [("ETCDCTL_USER", "ann:canary-1"), ("ETCDCTL_PASSWORD", "canary-2")];
    let settings = decide(&sources(&entries)).unwrap();
    assert!(!format!("{settings:?}").contains("canary"), "{settings:?}");
    let failure = decide(&sources(&[("--user", "ann:canary-3")])).unwrap_err();
    assert!(!format!("{failure:?}").contains("canary"), "{failure:?}");
}

#[test]
fn each_namespace_has_its_own_folder() {
    for (namespace, folder) in
        [("/shop/", "shop"), ("shop/eu", "shop%2Feu"), ("shop%2Feu", "shop%252Feu"), ("..", "%2E%2E")]
    {
        let settings = decide(&sources(&[("--namespace", namespace), ("XDG_STATE_HOME", "/state")])).unwrap();
        assert_eq!(settings.namespace.value.as_str(), namespace.trim_matches('/'));
        let StoreUrl::File(path) = settings.store.unwrap().value else {
            panic!("the embedded store is a file")
        };
        assert_eq!(path, PathBuf::from(format!("/state/tenure/{folder}/store.db")));
    }
}

#[test]
fn namespace_cannot_contain_another() {
    for bad in ["a//b", "//a", "/", "a\n", "\0", "\u{202e}a"] {
        assert!(decide(&sources(&[("--namespace", bad)])).is_err(), "{bad:?}");
    }
}
