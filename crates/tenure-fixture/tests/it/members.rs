//! Members start, die, stop, come back and grow.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tenure_fixture::{Etcd, EtcdMember, Timers, Tls};

/// `a` and `1` in the gateway's base64.
const PUT: &str = r#"{"key":"YQ==","value":"MQ=="}"#;
const RANGE: &str = r#"{"key":"YQ=="}"#;

fn put(member: &EtcdMember) {
    member.post("/v3/kv/put", PUT).unwrap();
}

fn has_value(member: &EtcdMember) -> bool {
    member.post("/v3/kv/range", RANGE).unwrap().contains("\"value\":\"MQ==\"")
}

#[test]
fn one_member_starts_healthy() {
    let etcd = Etcd::start();
    let member = etcd.member(0);
    assert!(member.is_healthy());
    assert!(member.client_addr().ip().is_loopback());
    assert!((20_000..32_000).contains(&member.client_addr().port()));
    assert_eq!(member.client_url(), format!("http://{}", member.client_addr()));
    assert_eq!(etcd.endpoints(), member.client_addr().to_string());
    let mode = std::fs::metadata(etcd.folder()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn killed_member_restarts_with_its_data() {
    let etcd = Etcd::start();
    let member = etcd.member(0);
    put(member);
    let (pid, addr) = (member.pid(), member.client_addr());
    member.kill();
    assert!(!member.is_running());
    assert!(!crate::is_running(pid), "kill returned before the process was gone");
    assert!(std::net::TcpStream::connect(addr).is_err());
    member.restart();
    assert_ne!(member.pid(), pid);
    assert_eq!(member.client_addr(), addr);
    assert!(has_value(member));
}

#[test]
fn paused_member_is_silent_until_resumed() {
    let etcd = Etcd::start();
    let member = etcd.member(0);
    put(member);
    member.pause();
    assert!(member.is_running());
    let mut stream = std::net::TcpStream::connect(member.client_addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    std::io::Write::write_all(&mut stream, b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    let silence = std::io::Read::read(&mut stream, &mut [0; 64]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    member.resume();
    member.wait_until_healthy();
    assert!(has_value(member));
}

#[test]
fn killed_leader_is_succeeded() {
    let etcd = Etcd::cluster(3);
    assert_eq!(etcd.members().len(), 3);
    let leader = etcd.leader();
    put(etcd.member(leader));
    etcd.member(leader).kill();
    let next = etcd.leader();
    assert_ne!(next, leader);
    assert!(has_value(etcd.member(next)));
    etcd.member(leader).restart();
    assert!(has_value(etcd.member(leader)));
}

#[test]
fn cluster_restarts_with_its_data() {
    let etcd = Etcd::cluster(3);
    put(etcd.member(0));
    etcd.kill_all();
    assert!(etcd.members().iter().all(|member| !member.is_running()));
    etcd.restart_all();
    assert!(has_value(etcd.member(2)));
}

#[test]
fn cluster_grows_to_three_members() {
    let mut etcd = Etcd::builder().timers(Timers::Cluster).start();
    put(etcd.member(0));
    etcd.grow();
    etcd.grow();
    assert_eq!(etcd.members().len(), 3);
    assert!(has_value(etcd.member(2)));
    etcd.member(0).kill();
    let leader = etcd.leader();
    assert!(has_value(etcd.member(leader)));
}

#[test]
fn server_counts_requests() {
    let etcd = Etcd::start();
    let member = etcd.member(0);
    let before = member.metric_with("grpc_server_handled_total", "grpc_method=\"Put\"");
    for _ in 0..5 {
        put(member);
    }
    let after = member.metric_with("grpc_server_handled_total", "grpc_method=\"Put\"");
    assert!((after - before - 5.0).abs() < f64::EPSILON, "{before} {after}");
    assert!(member.metric("grpc_server_handled_total") >= after);
    assert!(member.is_leader());
}

#[test]
fn default_timers_are_selectable() {
    let etcd = Etcd::builder().timers(Timers::Default).start();
    assert!(etcd.member(0).log().contains("\"election-timeout\":\"1s\""));
}

#[test]
fn unknown_etcd_argument_fails_with_its_message() {
    let begun = Instant::now();
    let panic = std::panic::catch_unwind(|| Etcd::builder().arg("--no-such-flag").start()).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("no-such-flag") && text.contains("ended"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn etcd_options_work_on_every_version() {
    let etcd = Etcd::builder().quota_backend_bytes(8 << 20).auth_token_ttl_s(3).bcrypt_cost(4).start();
    assert!(etcd.member(0).log().contains("8388608"));
}

#[test]
fn tls_covers_only_client_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let tls = Tls { cert: path("cert.pem"), key: path("key.pem"), client_ca: Some(path("cert.pem")) };
    let etcd = Etcd::builder().tls(tls).start();
    let member = etcd.member(0);
    assert!(member.client_url().starts_with("https://127.0.0.1:"));
    assert!(member.is_healthy() && member.is_leader());

    let mut plain = std::net::TcpStream::connect(member.client_addr()).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    std::io::Write::write_all(&mut plain, b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    // A reset is as good a refusal as a status.
    let _ = std::io::Read::read_to_string(&mut plain, &mut answer);
    assert!(!answer.contains("etcdserver"), "{answer}");
}
