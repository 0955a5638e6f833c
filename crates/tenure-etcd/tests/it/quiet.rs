//! No secret in any log, at any level, of any crate involved.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tenure_etcd::{Client, Config, Secret};
use tenure_fixture::Etcd;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::put;

/// Records every log line of this thread.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<String>>);

impl Visit for Scribe {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), "{field}={value:?} ");
    }
}

impl Subscriber for Scribe {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn trace_log_hides_secrets_and_values() {
    let etcd = Etcd::builder().bcrypt_cost(4).start();
    crate::access::guarded(&etcd);
    let scribe = Scribe::default();
    let listening = tracing::subscriber::set_default(scribe.clone());
    let config = Config::new(etcd.client_urls()).with_user("ann", Secret::new("ann-password"));
    let client = Client::connect(config).await.unwrap();
    client.put(put("app/1", "canary-value")).await.unwrap();
    client.put(put("forbidden", "canary-value")).await.unwrap_err();
    client.close().await;
    drop(listening);
    let log = scribe.0.lock().unwrap().clone();
    assert!(log.len() > 1_000, "the scribe must have heard something: {log}");
    for secret in ["ann-password", "canary-value"] {
        assert!(!log.contains(secret), "{secret} was logged");
    }
    assert!(!shows_a_token(&log), "a token was logged: {log}");
}

/// etcd's simple tokens are sixteen letters, a dot and a number.
fn shows_a_token(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').any(|word| match word.split_once('.') {
        Some((letters, number)) => {
            letters.len() == 16
                && letters.bytes().all(|byte| byte.is_ascii_alphabetic())
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
        }
        None => false,
    })
}

#[test]
fn log_search_finds_planted_token() {
    assert!(shows_a_token("token=\"aBcDefghIjklmnOp.17\" "));
    assert!(!shows_a_token("127.0.0.1 version=3.7.2 abcdefghijklmnop"));
}
