//! Short words for the tests of the streams: write, watch, and wait with a deadline.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_etcd::{
    Client, Config, Delete, Op, Put, Txn, WatchError, WatchFrom, WatchItem, WatchSpec, Watcher,
};
use tenure_fixture::Etcd;

/// Nothing in these tests takes this long on a machine that works.
const DEADLINE: Duration = Duration::from_secs(30);

/// What a watcher delivered, in short form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Saw {
    Batch(i64, Vec<String>),
    Progress(i64),
    Compacted(i64),
    Lost(String),
    Over,
}

pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {DEADLINE:?} for {what}"),
    }
}

/// Waits until a condition holds that has no notification.
pub(crate) async fn until(what: &str, mut claim: impl FnMut() -> bool) {
    within(what, async {
        while !claim() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn client(etcd: &Etcd) -> Client {
    client_of(etcd.client_urls()).await
}

pub(crate) async fn client_of(urls: Vec<String>) -> Client {
    Client::connect(Config::new(urls)).await.unwrap()
}

/// A client with a watchdog of short timeouts.
pub(crate) async fn impatient(urls: Vec<String>, patience: Duration) -> Client {
    let mut config = Config::new(urls);
    config.watch_ask_after = patience;
    config.watch_answer_within = patience;
    Client::connect(config).await.unwrap()
}

pub(crate) async fn put(client: &Client, key: &str, value: &str) -> i64 {
    let put = Put { key: key.to_owned().into(), value: value.to_owned().into(), ..Put::default() };
    within("a put", client.put(put)).await.unwrap()
}

/// Puts through whatever happens to the members: a value written twice does no harm here.
pub(crate) async fn put_stubbornly(client: &Client, key: &str) -> i64 {
    within("a put in the end", async {
        loop {
            let put = Put { key: key.to_owned().into(), ..Put::default() };
            match client.put(put).await {
                Ok(revision) => return revision,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await
}

pub(crate) async fn txn(client: &Client, then: Vec<Op>) -> i64 {
    within("a transaction", client.txn(Txn { then, ..Txn::default() })).await.unwrap().revision
}

pub(crate) async fn delete(client: &Client, key: &str) -> i64 {
    let delete = Delete { key: key.to_owned().into(), ..Delete::default() };
    txn(client, vec![Op::Delete(delete)]).await
}

/// The range of keys that begin with `prefix`, which must end in `/`.
pub(crate) fn prefix(prefix: &str, start: WatchFrom) -> WatchSpec {
    let end = format!("{}0", prefix.strip_suffix('/').expect("a prefix ends in a slash"));
    WatchSpec { key: Bytes::from(prefix.to_owned()), range_end: Bytes::from(end), start, prev: false }
}

pub(crate) fn one_key(key: &str, start: WatchFrom) -> WatchSpec {
    WatchSpec { key: Bytes::from(key.to_owned()), range_end: Bytes::new(), start, prev: false }
}

pub(crate) async fn watch(client: &Client, spec: WatchSpec) -> Watcher {
    within("a watch", client.watch(spec)).await.unwrap()
}

/// The next item as it is.
pub(crate) async fn item(watcher: &mut Watcher) -> Option<Result<WatchItem, WatchError>> {
    within("a watch item", watcher.next()).await
}

/// The next item in short.
pub(crate) async fn next(watcher: &mut Watcher) -> Saw {
    match item(watcher).await {
        Some(Ok(WatchItem::Batch { revision, events })) => {
            assert!(events.iter().all(|event| event.revision() == revision), "a batch is one revision");
            Saw::Batch(revision, events.iter().map(short).collect())
        }
        Some(Ok(WatchItem::Progress(revision))) => Saw::Progress(revision),
        Some(Err(WatchError::Compacted { at })) => Saw::Compacted(at),
        Some(Err(WatchError::Lost(error))) => Saw::Lost(error.to_string()),
        None => Saw::Over,
    }
}

/// The next item that is not progress.
pub(crate) async fn change(watcher: &mut Watcher) -> Saw {
    loop {
        match next(watcher).await {
            Saw::Progress(_) => {}
            saw => return saw,
        }
    }
}

/// The revisions of the next `count` batches.
pub(crate) async fn revisions(watcher: &mut Watcher, count: usize) -> Vec<i64> {
    let mut revisions = Vec::new();
    while revisions.len() < count {
        match change(watcher).await {
            Saw::Batch(revision, _) => revisions.push(revision),
            saw => panic!("after {} batches: {saw:?}", revisions.len()),
        }
    }
    revisions
}

fn short(event: &tenure_etcd::WatchEvent) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    match event {
        tenure_etcd::WatchEvent::Put { kv, .. } => format!("+{}", text(&kv.key)),
        tenure_etcd::WatchEvent::Delete { key, .. } => format!("-{}", text(key)),
    }
}
