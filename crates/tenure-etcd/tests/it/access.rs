//! Users, passwords and tokens.

use std::time::Duration;

use tenure_etcd::{Client, Config, Denied, Error, KeyRange, Op, RequiredAccess, Secret, Txn};
use tenure_fixture::{Etcd, Permission, Proxy};

use crate::{bytes, connect, get, put};

/// Enables authentication: `root` may do everything, `ann` may use `app/`.
pub(crate) fn guarded(etcd: &Etcd) {
    let access = etcd.access();
    access.add_root("root-password").add_user("ann", "ann-password");
    access.add_role("app").grant("app", Permission::ReadWrite, "app/").give_role("ann", "app").enable();
}

fn config(urls: Vec<String>, name: &str, password: &str) -> Config {
    Config::new(urls).with_user(name, Secret::new(password))
}

#[tokio::test]
async fn user_is_limited_to_its_permissions() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let client = Client::connect(config(etcd.client_urls(), "ann", "ann-password")).await.unwrap();
    client.put(put("app/1", "v")).await.unwrap();
    assert_eq!(client.range(get("app/1")).await.unwrap().count, 1);
    let denied = |access| {
        let ranges = vec![KeyRange { key: bytes("other"), end: bytes("") }];
        Error::Denied(Denied::Permission { user: Some("ann".to_owned()), access, ranges })
    };
    assert_eq!(client.put(put("other", "v")).await.unwrap_err(), denied(RequiredAccess::Write));
    assert_eq!(client.range(get("other")).await.unwrap_err(), denied(RequiredAccess::Read));
    let txn = Txn { then: vec![Op::Put(put("app/1", "w")), Op::Put(put("other", "w"))], ..Txn::default() };
    let text = client.txn(txn).await.unwrap_err().to_string();
    assert!(text.contains("\"ann\"") && text.contains("\"write\"") && text.contains("other"), "{text}");
    let error = client.compact(1).await.unwrap_err();
    assert!(
        matches!(&error, Error::Denied(Denied::Permission { access: RequiredAccess::Root, .. })),
        "what needs root names it: {error:?}"
    );
}

/// The list of leases reads a key first that only root may read, unless another way is taken.
#[tokio::test]
async fn member_catches_up_without_any_permission() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let client = Client::connect(config(etcd.client_urls(), "ann", "ann-password")).await.unwrap();
    client.catch_up().await.unwrap();
    assert_eq!(client.leases().await.unwrap(), Vec::<i64>::new());
}

#[tokio::test]
async fn wrong_password_is_denied_and_hidden() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let start = std::time::Instant::now();
    let error = Client::connect(config(etcd.client_urls(), "ann", "canary-password")).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    let text = format!("{error} {error:?} {error:#?}");
    assert!(matches!(error, Error::Denied(_)), "{text}");
    assert!(text.contains("wrong user name or password") && !text.contains("canary"), "{text}");
}

/// A member that hashes many passwords signs in slowly. A client that abandoned the request and
/// tried again added to that work. Of many clients that started at once, none was ever signed in.
#[tokio::test]
async fn slow_sign_in_of_working_member_is_awaited() {
    let etcd = Etcd::builder().bcrypt_cost(13).start();
    guarded(&etcd);
    let mut config = config(etcd.client_urls(), "ann", "ann-password");
    // Far less than the member needs for a password, and enough for any other reply.
    config.per_try = Duration::from_millis(150);
    config.deadline = Duration::from_secs(60);
    let client = Client::connect(config).await.unwrap();
    client.put(put("app/1", "v")).await.unwrap();
}

#[tokio::test]
async fn call_without_user_is_denied() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let client = connect(&etcd).await;
    let error = client.range(get("app/1")).await.unwrap_err();
    assert!(matches!(&error, Error::Denied(denied) if denied.to_string().contains("user")), "{error:?}");
}

#[tokio::test]
async fn user_without_server_auth_is_refused() {
    let etcd = Etcd::start();
    let error = Client::connect(config(etcd.client_urls(), "ann", "ann-password")).await.unwrap_err();
    assert!(
        matches!(&error, Error::Denied(denied) if denied.to_string().contains("switched off")),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_renewed_once() {
    let etcd = Etcd::builder().bcrypt_cost(4).auth_token_ttl_s(2).start();
    guarded(&etcd);
    let client = Client::connect(config(etcd.client_urls(), "ann", "ann-password")).await.unwrap();
    client.put(put("app/1", "v")).await.unwrap();
    let signed_in = sign_ins(&etcd);
    // The server forgets idle tokens by its own clock; there is no event to wait for.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let callers: Vec<_> = (0..20)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.put(put(&format!("app/{n}"), "w")).await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    assert_eq!(sign_ins(&etcd) - signed_in, 1.0, "twenty callers, one sign-in");
}

#[tokio::test]
async fn user_change_keeps_other_users_working() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let ann = Client::connect(config(etcd.client_urls(), "ann", "ann-password")).await.unwrap();
    let root = Client::connect(config(etcd.client_urls(), "root", "root-password")).await.unwrap();
    let access = etcd.access().signed_in("root", "root-password");
    for n in 0..5 {
        access.add_user(&format!("user{n}"), "x");
        ann.put(put("app/1", "v")).await.unwrap();
        root.put(put("elsewhere", "v")).await.unwrap();
    }
}

#[tokio::test]
async fn client_and_errors_hide_secrets() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    guarded(&etcd);
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let config = config(vec![proxy.url()], "ann", "ann-password").with_deadline(Duration::from_secs(1));
    let client = Client::connect(config).await.unwrap();
    client.put(put("app/1", "v")).await.unwrap();
    proxy.set(tenure_fixture::Mode::CutReset);
    let error = client.range(get("app/1")).await.unwrap_err();
    let shown = format!("{client:?} {client:#?} {error} {error:?}");
    assert!(!shown.contains("ann-password"), "{shown}");
}

fn sign_ins(etcd: &Etcd) -> f64 {
    etcd.member(0).metric_with("grpc_server_handled_total", "grpc_method=\"Authenticate\"")
}
