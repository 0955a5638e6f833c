//! How fast the next one leads, beside what the store itself takes in the same run.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tenure::store::{PreviousValues, Selection, WatchItem, WatchStart};
use tenure_fixture::Etcd;

use super::{connect, process, soon, stand};

const ROUNDS: usize = 40;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Two processes take turns. The reference is a transaction of the same store and, added to it, the delivery of a watch: a handover is the one
/// after the other, and the new leader's look at its own place comes on top.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resigned_leader_is_followed_within_twice_a_transaction_and_a_watch() {
    let etcd = Etcd::start();
    let (one, two) = (connect(&etcd).await, connect(&etcd).await);
    let ((_a, first), (_b, second)) = (process(&one, "a"), process(&two, "b"));
    let mut watch =
        two.watch(Selection::key("/probe"), WatchStart::Now, PreviousValues::Omitted).await.unwrap();
    let (mut references, mut handovers) = (Vec::new(), Vec::new());
    let mut term = first.campaign().value("0").await.unwrap();
    for round in 0..ROUNDS {
        let next = if round % 2 == 0 { &second } else { &first };
        let waiting = stand(&one, next, "next", 2).await;
        let began = Instant::now();
        let put = async {
            one.put("/probe", "").await.unwrap();
            began.elapsed()
        };
        let seen = async {
            while !matches!(watch.next().await, Some(Ok(WatchItem::Batch { .. }))) {}
            began.elapsed()
        };
        let (transaction, delivery) = tokio::join!(put, seen);
        references.push(transaction + delivery);
        let began = Instant::now();
        let resigning = tokio::spawn(term.resign());
        term = soon(waiting).await.unwrap().unwrap();
        handovers.push(began.elapsed());
        resigning.await.unwrap().unwrap();
    }
    let (reference, handover) = (median(references), median(handovers));
    assert!(handover <= 2 * reference, "{handover:?} beside {reference:?}");
}
