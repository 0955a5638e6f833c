//! Sends the requests of a session. What they contain and what their replies mean is decided in `tenure_core::session`.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tenure_core::session::{DeleteReply, DeleteRequest, KeyPut, PutProgress, PutReply, PutRequest};

use crate::store::{LeaseId, Store};

/// How many transactions of one put are in flight at once; see the same number at the store's handle.
const IN_FLIGHT: usize = 4;

/// Puts keys under a lease, each only if its mode allows it.
///
/// `is_held` is called before each request: a process that was stopped past the end of its lease must not go on writing under it.
pub(super) async fn put(
    store: &Store,
    lease: LeaseId,
    ours: Vec<LeaseId>,
    entries: Vec<KeyPut>,
    is_held: &(impl Fn() -> bool + Sync),
) -> PutReply {
    let requests = PutRequest::split(lease, ours, entries, &store.info().limits);
    let mut parts = stream::iter(requests.into_iter().map(|request| put_one(store, request, is_held)))
        .buffer_unordered(IN_FLIGHT);
    let mut whole = PutReply::default();
    while let Some(part) = parts.next().await {
        whole.merge(part);
    }
    whole
}

async fn put_one(store: &Store, request: PutRequest, is_held: &(impl Fn() -> bool + Sync)) -> PutReply {
    if !is_held() {
        return request.not_sent();
    }
    let reply = store.txn(request.txn()).await;
    match request.handle(reply) {
        PutProgress::Done(reply) => reply,
        PutProgress::Each(each) if is_held() => {
            let replies = store.batch(each.txns()).await;
            each.handle(replies)
        }
        PutProgress::Each(each) => each.not_sent(),
    }
}

/// Deletes keys that are under one of this session's leases.
pub(super) async fn delete(store: &Store, ours: Vec<LeaseId>, keys: Vec<Bytes>) -> DeleteReply {
    let mut request = DeleteRequest::new(ours, keys);
    while let Some(txns) = request.txns() {
        let replies = store.batch(txns).await;
        request.handle(replies);
    }
    request.finish()
}
