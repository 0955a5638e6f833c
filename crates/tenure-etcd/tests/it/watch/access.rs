//! Watches under a user: tokens that run out, and ranges that are not for us.

use std::time::Duration;

use tenure_etcd::{Client, Config, Error, Secret, WatchFrom};
use tenure_fixture::{Etcd, Permission, Proxy};

use crate::observe::{one_key, prefix, put, revisions, until, watch};

/// A server with a root user and a user `ann` with access to `a/`. Tokens are forgotten after three
/// idle seconds.
fn guarded() -> Etcd {
    let etcd = Etcd::builder().auth_token_ttl_s(3).bcrypt_cost(4).start();
    let access = etcd.access();
    access.add_root("root").add_user("ann", "ann");
    access.add_role("a").grant("a", Permission::ReadWrite, "a/").give_role("ann", "a").enable();
    etcd
}

/// Its watchdog sleeps: every question of it would keep the token alive.
async fn sign_in(urls: Vec<String>, name: &str) -> Client {
    let mut config = Config::new(urls).with_user(name, Secret::new(name));
    config.watch_ask_after = Duration::from_secs(60);
    Client::connect(config).await.unwrap()
}

/// The server forgets a token that was unused for three seconds. There is no event for it: only
/// time passes.
async fn let_the_token_run_out() {
    tokio::time::sleep(Duration::from_millis(4_500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unpermitted_range_is_denied_alone() {
    let etcd = guarded();
    let client = sign_in(etcd.client_urls(), "ann").await;
    let mut ours = watch(&client, prefix("a/", WatchFrom::Now)).await;
    for start in [WatchFrom::Now, WatchFrom::After(0)] {
        let error = client.watch(prefix("b/", start)).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        let error = client.watch(one_key("b", start)).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
    }
    let revision = put(&client, "a/1", "").await;
    assert_eq!(revisions(&mut ours, 1).await, [revision]);
    let opened = etcd.member(0).metric_with("grpc_server_started_total", "grpc_method=\"Watch\"");
    assert_eq!(opened, 1.0, "the stream is not abandoned for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_renewed_for_watches() {
    let etcd = guarded();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let client = sign_in(vec![proxy.url()], "ann").await;
    let mut first = watch(&client, prefix("a/", WatchFrom::Now)).await;
    let begin = put(&client, "a/1", "").await;
    assert_eq!(revisions(&mut first, 1).await, [begin]);

    let_the_token_run_out().await;
    // The stream still carries the old token: a creation on it is refused.
    let mut second = watch(&client, prefix("a/", WatchFrom::After(begin - 1))).await;
    assert_eq!(revisions(&mut second, 1).await, [begin]);
    let both = put(&client, "a/2", "").await;
    assert_eq!(revisions(&mut first, 1).await, [both]);
    assert_eq!(revisions(&mut second, 1).await, [both]);

    let_the_token_run_out().await;
    // And a broken stream is resumed with a new one.
    proxy.cut();
    until("a new connection", || proxy.connections_open() > 0).await;
    let resumed = put(&client, "a/3", "").await;
    assert_eq!(revisions(&mut first, 1).await, [resumed]);
}
