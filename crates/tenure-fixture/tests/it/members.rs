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
fn one_member_starts_healthy_on_loopback_in_a_private_folder() {
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
fn a_killed_member_comes_back_with_its_data_on_its_port() {
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
fn a_paused_member_keeps_its_sockets_and_does_not_answer_until_resumed() {
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
fn three_members_elect_another_leader_when_theirs_is_killed() {
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
fn all_members_killed_at_once_come_back_with_the_data() {
    let etcd = Etcd::cluster(3);
    put(etcd.member(0));
    etcd.kill_all();
    assert!(etcd.members().iter().all(|member| !member.is_running()));
    etcd.restart_all();
    assert!(has_value(etcd.member(2)));
}

#[test]
fn one_member_grows_to_three_and_then_survives_the_loss_of_the_first() {
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
fn requests_are_counted_by_the_server() {
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
fn the_default_timers_can_be_asked_for() {
    let etcd = Etcd::builder().timers(Timers::Default).start();
    assert!(etcd.member(0).log().contains("\"election-timeout\":\"1s\""));
}

#[test]
fn an_argument_that_etcd_does_not_know_fails_at_once_with_its_words() {
    let begun = Instant::now();
    let panic = std::panic::catch_unwind(|| Etcd::builder().arg("--no-such-flag").start()).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("no-such-flag") && text.contains("ended"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn quota_token_ttl_and_bcrypt_cost_are_known_to_every_line() {
    let etcd = Etcd::builder().quota_backend_bytes(8 << 20).auth_token_ttl_s(3).bcrypt_cost(4).start();
    assert!(etcd.member(0).log().contains("8388608"));
}

#[test]
fn with_tls_health_and_metrics_stay_readable_and_clients_must_encrypt() {
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
