//! Seven ways in which TLS and permissions fail, each with its own message, next step and exit code.
//!
//! All of them were "access denied, check user and password", "broken pipe" or "connection reset by peer".

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;
use tenure_fixture::Etcd;

use crate::least_privilege::guarded;
use crate::sandbox::Sandbox;

/// A certificate authority for tests.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for a name that is valid until a year begins, and its key.
    fn sign(&self, name: &str, year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// An etcd with this certificate; with an authority for clients, it requires a client certificate.
fn server(sandbox: &Sandbox, file: &str, pair: (String, String), clients: Option<&Authority>) -> Etcd {
    let tls = tenure_fixture::Tls {
        cert: sandbox.file(&format!("{file}.pem"), pair.0).into(),
        key: sandbox.file(&format!("{file}.key"), pair.1).into(),
        client_ca: clients.map(|clients| sandbox.file(&format!("{file}.clients"), clients.0.pem()).into()),
    };
    Etcd::builder().tls(tls).start()
}

fn address(scheme: &str, etcd: &Etcd) -> String {
    format!("{scheme}://{}", etcd.member(0).client_addr())
}

/// One row: the address of the store, and what must be reported.
struct Row<'a> {
    name: &'a str,
    store: String,
    flags: Vec<&'a str>,
    exit: i32,
    message: &'a str,
    hint: &'a str,
    /// The check of `doctor` that fails.
    check: &'a str,
}

#[tokio::test]
async fn each_failure_has_message_hint_and_code() {
    let sandbox = Sandbox::without_user().with("PATH", "/usr/bin:/bin");
    let (ours, other) = (Authority::new(), Authority::new());
    let (ca, wrong_ca) = (sandbox.file("ca.pem", ours.0.pem()), sandbox.file("wrong.pem", other.0.pem()));
    let plain = Etcd::builder().without_auth().start();
    let good = server(&sandbox, "good", ours.sign("127.0.0.1", 4000), None);
    let named = server(&sandbox, "named", ours.sign("etcd.internal", 4000), None);
    let expired = server(&sandbox, "expired", ours.sign("127.0.0.1", 2020), None);
    let strict = server(&sandbox, "strict", ours.sign("127.0.0.1", 4000), Some(&ours));
    let (certificate, key) = ours.sign("ann", 4000);
    let (certificate, key) = (sandbox.file("ann.pem", certificate), sandbox.file("ann.key", key));
    let auth = guarded();
    let password = sandbox.file("password", "eve");

    // Each server works with the correct address and certificates.
    let trusted = ["--cacert", &ca];
    let identity = ["--cacert", &ca, "--cert", &certificate, "--key", &key];
    for (store, flags) in [
        (address("etcd", &plain), &[][..]),
        (address("etcds", &good), &trusted),
        (address("etcds", &strict), &identity),
    ] {
        sandbox.ok(&[&["--store", &store, "kv", "put", "/tenure/a", "1"], flags].concat()).await;
        let doctor = sandbox.json(&[&["--store", &store, "doctor"], flags].concat()).await;
        assert_eq!(state(&doctor, "tls"), "ok", "{doctor}");
        assert_eq!(state(&doctor, "access"), "ok", "{doctor}");
    }

    let rows = [
        Row {
            name: "etcds:// to a plain server",
            store: address("etcds", &plain),
            flags: trusted.to_vec(),
            exit: 5,
            message: "the server does not speak TLS",
            hint: "--store etcd://127.0.0.1",
            check: "tls",
        },
        Row {
            name: "etcd:// to a TLS server",
            store: address("etcd", &good),
            flags: vec![],
            exit: 5,
            message: "the server speaks TLS",
            hint: "--store etcds://127.0.0.1",
            check: "tls",
        },
        Row {
            name: "wrong CA",
            store: address("etcds", &good),
            flags: vec!["--cacert", &wrong_ca],
            exit: 6,
            message: "no trusted authority signed the server's certificate",
            hint: "--cacert FILE",
            check: "tls",
        },
        Row {
            name: "wrong host name",
            store: address("etcds", &named),
            flags: trusted.to_vec(),
            exit: 6,
            message: "etcd.internal",
            hint: "use a name of the certificate",
            check: "tls",
        },
        Row {
            name: "expired certificate",
            store: address("etcds", &expired),
            flags: trusted.to_vec(),
            exit: 6,
            message: "it expired",
            hint: "renew the server's certificate",
            check: "tls",
        },
        Row {
            name: "missing client certificate",
            store: address("etcds", &strict),
            flags: trusted.to_vec(),
            exit: 6,
            message: "the server requires a client certificate, and none is configured",
            hint: "--cert FILE and --key FILE",
            check: "tls",
        },
        Row {
            name: "role without the prefix",
            store: address("etcd", &auth),
            flags: vec!["--user", "eve", "--password-file", &password],
            exit: 6,
            message: "user \"eve\" lacks the permission",
            hint: "etcdctl role grant-permission ROLE readwrite --prefix=true /tenure/",
            check: "access",
        },
    ];
    for row in &rows {
        check(&sandbox, row).await;
    }
}

async fn check(sandbox: &Sandbox, row: &Row<'_>) {
    let name = row.name;
    let store = row.store.as_str();
    let run = async |args: &[&str]| {
        let args = [&["--store", store], args, &row.flags[..]].concat();
        sandbox.run(&args).await
    };
    let ran = run(&["kv", "put", "/tenure/a", "1"]).await;
    assert_eq!(ran.code, Some(row.exit), "{name}: {ran:?}");
    assert!(ran.stderr.contains(row.message), "{name}: {ran:?}");
    assert!(ran.stderr.contains("hint: ") && ran.stderr.contains(row.hint), "{name}: {ran:?}");
    assert!(!ran.stderr.contains("password"), "{name} mentions a password: {ran:?}");
    assert_eq!(ran.stderr.matches("error:").count(), 1, "{name} is reported once: {ran:?}");
    // With --json every line of stderr is an object, and the last one is the same failure.
    let ran = run(&["kv", "put", "/tenure/a", "1", "--json", "-v"]).await;
    assert_eq!(ran.code, Some(row.exit), "{name}: {ran:?}");
    assert!(ran.error()["message"].as_str().unwrap().contains(row.message), "{name}: {ran:?}");
    for line in ran.stderr.lines() {
        let object: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{name} {error}: {line}"));
        assert!(object.is_object(), "{name}: {line}");
    }
    // A wrapper does not start its command.
    let marker = sandbox.path("marker");
    let lock = [&["--store", store], &row.flags[..], &["lock", "a", "--wait", "5s", "--", "touch", &marker]];
    let ran = sandbox.run(&lock.concat()).await;
    assert_eq!(ran.code, Some(125), "{name}: {ran:?}");
    assert!(ran.stderr.contains(row.message), "{name}: {ran:?}");
    assert!(!std::path::Path::new(&marker).exists(), "{name}");
    // The doctor reports the same failure at the right check, and the check occurs once.
    let ran = run(&["doctor", "--json"]).await;
    assert_eq!(ran.code, Some(row.exit), "{name}: {ran:?}");
    let doctor: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(state(&doctor, row.check), "fail", "{name}: {doctor}");
    if row.check == "tls" {
        let checks = doctor["checks"].as_array().unwrap();
        let tls = checks.iter().filter(|check| check["name"] == "tls").count();
        assert_eq!(tls, 1, "{name}: {doctor}");
    }
}

fn state<'a>(doctor: &'a Value, name: &str) -> &'a str {
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("no {name} in {doctor}"))["state"].as_str().unwrap()
}

/// The message once was the TLS library's `KeyMismatch`.
#[tokio::test]
async fn key_of_another_certificate_is_named() {
    let sandbox = Sandbox::new();
    let authority = Authority::new();
    let (certificate, _) = authority.sign("ann", 4000);
    let (_, key) = authority.sign("ben", 4000);
    let (certificate, key) = (sandbox.file("ann.pem", certificate), sandbox.file("ben.key", key));
    let ca = sandbox.file("ca.pem", authority.0.pem());
    let args = ["--store", "etcds://127.0.0.1:1", "--cacert", &ca, "--cert", &certificate, "--key", &key];
    let ran = sandbox.run(&[&args[..], &["kv", "get", "/a"]].concat()).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("certificate and its key do not belong together"), "{ran:?}");
    assert!(ran.stderr.contains("hint:") && !ran.stderr.contains("KeyMismatch"), "{ran:?}");
}

/// The message once was "frame with invalid size".
#[tokio::test]
async fn redis_port_is_no_etcd() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let mut stream = stream;
                // The reply of Redis to the first line of HTTP/2.
                let _ = stream.read(&mut [0; 256]);
                let _ = stream
                    .write_all(b"-ERR unknown command 'PRI', with args beginning with: '*' 'HTTP/2.0'\r\n");
            });
        }
    });
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", address);
    let ran = sandbox.run(&["kv", "get", "/a"]).await;
    assert_eq!(ran.code, Some(5), "{ran:?}");
    assert!(ran.stderr.contains("does not speak HTTP/2 and may not be etcd"), "{ran:?}");
    assert!(ran.stderr.contains("-ERR unknown command"), "{ran:?}");
}
