//! Reference calls: one channel of tonic, nothing else.
//!
//! This is what a competent programmer writes with tonic in an afternoon: no failover, no deadlines, no
//! meaning in errors. It shares nothing with the real client, not even messages, and runs beside it, so that the price of correct outcomes
//! is a number.

mod message;
mod queue;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Whatever went wrong.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One bare connection.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    grpc: Grpc<Channel>,
}

impl Raw {
    /// Connects to `http://host:port`.
    pub(crate) async fn connect(url: &str) -> Result<Self, BoxError> {
        let endpoint = Endpoint::from_shared(url.to_owned())?.tcp_nodelay(true);
        let channel = endpoint.initial_connection_window_size(WINDOW_MAX).connect().await?;
        Ok(Self { grpc: Grpc::new(channel).max_decoding_message_size(64 * 1024 * 1024) })
    }

    /// Puts one key; gives the revision.
    pub(crate) async fn put(&self, key: Bytes, value: Bytes) -> Result<i64, BoxError> {
        let request = message::PutRequest { key, value, ..message::PutRequest::default() };
        let answer: message::PutResponse = self.unary("/etcdserverpb.KV/Put", request).await?;
        Ok(revision(answer.header))
    }

    /// Puts many keys in one transaction, under a lease unless it is 0; gives the revision.
    pub(crate) async fn txn_puts(&self, pairs: Vec<(Bytes, Bytes)>, lease: i64) -> Result<i64, BoxError> {
        let success = pairs.into_iter().map(|(key, value)| put_op(key, value, lease)).collect();
        let request = message::TxnRequest { success, ..message::TxnRequest::default() };
        let answer: message::TxnResponse = self.unary("/etcdserverpb.KV/Txn", request).await?;
        Ok(revision(answer.header))
    }

    /// Claims one key: put if absent.
    pub(crate) async fn claim(&self, key: Bytes, value: Bytes) -> Result<bool, BoxError> {
        let answer: message::TxnResponse = self.unary("/etcdserverpb.KV/Txn", claim(key, value, 0)).await?;
        Ok(answer.succeeded)
    }

    /// Claims a task that exists and has no owner: puts `owner` under a lease if it is absent and
    /// `task` is not.
    pub(crate) async fn claim_task(
        &self,
        task: Bytes,
        owner: Bytes,
        value: Bytes,
        lease: i64,
    ) -> Result<bool, BoxError> {
        let mut request = claim(owner, value, lease);
        request.compare.push(message::Compare {
            // Greater than.
            result: 1,
            target: 1,
            key: task,
            target_union: Some(message::CompareTarget::CreateRevision(0)),
        });
        let answer: message::TxnResponse = self.unary("/etcdserverpb.KV/Txn", request).await?;
        Ok(answer.succeeded)
    }

    /// Claims many keys, each for itself, in one request; returns which were won.
    pub(crate) async fn claims(&self, pairs: Vec<(Bytes, Bytes)>) -> Result<Vec<bool>, BoxError> {
        let nested = |(key, value)| message::RequestOp {
            request: Some(message::RequestKind::Txn(claim(key, value, 0))),
        };
        let success = pairs.into_iter().map(nested).collect();
        let request = message::TxnRequest { success, ..message::TxnRequest::default() };
        let answer: message::TxnResponse = self.unary("/etcdserverpb.KV/Txn", request).await?;
        let won = |op: message::ResponseOp| match op.response {
            Some(message::ResponseKind::Txn(inner)) => inner.succeeded,
            Some(_) | None => false,
        };
        Ok(answer.responses.into_iter().map(won).collect())
    }

    /// Reads `[key, range_end)`, or one key when the end is empty; gives how many came back.
    pub(crate) async fn range(&self, key: Bytes, range_end: Bytes) -> Result<usize, BoxError> {
        let request = message::RangeRequest { key, range_end, ..message::RangeRequest::default() };
        let answer: message::RangeResponse = self.unary("/etcdserverpb.KV/Range", request).await?;
        Ok(answer.kvs.len())
    }

    /// Watches one key from now on: the mod revision of every event. Returns when the watch is
    /// created.
    pub(crate) async fn watch(
        &self,
        key: Bytes,
    ) -> Result<impl Stream<Item = Result<i64, BoxError>> + Send + Unpin + use<>, BoxError> {
        let answers = self
            .watch_stream(message::WatchCreate { key, range_end: Bytes::new(), filters: Vec::new() })
            .await?;
        Ok(answers.flat_map(|answer| {
            let revisions: Vec<Result<i64, BoxError>> = match answer {
                Ok(answer) => answer
                    .events
                    .iter()
                    .filter_map(|event| event.kv.as_ref())
                    .map(|kv| Ok(kv.mod_revision))
                    .collect(),
                Err(status) => vec![Err(status.into())],
            };
            futures_util::stream::iter(revisions)
        }))
    }

    /// Watches `[key, range_end)` from now on: the keys of every batch of deletes. Returns when the
    /// watch is created.
    pub(crate) async fn watch_deletes(
        &self,
        key: Bytes,
        range_end: Bytes,
    ) -> Result<impl Stream<Item = Result<Vec<Bytes>, BoxError>> + Send + Unpin + use<>, BoxError> {
        // A key that is put again is of no interest.
        let answers =
            self.watch_stream(message::WatchCreate { key, range_end, filters: vec![NO_PUT] }).await?;
        Ok(answers.map(|answer| {
            let deleted =
                |event: message::WatchEvent| event.kv.filter(|_| event.kind == DELETE).map(|kv| kv.key);
            Ok(answer?.events.into_iter().filter_map(deleted).collect())
        }))
    }

    /// Grants a lease; gives its id.
    pub(crate) async fn grant(&self, ttl_s: i64) -> Result<i64, BoxError> {
        let request = message::GrantRequest { ttl: ttl_s };
        let answer: message::GrantResponse = self.unary("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(answer.id)
    }

    /// Ends a lease and its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), BoxError> {
        let request = message::RevokeRequest { id };
        let answer =
            self.unary::<_, message::RevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", request).await;
        answer.map(drop)
    }

    async fn watch_stream(
        &self,
        create: message::WatchCreate,
    ) -> Result<tonic::Streaming<message::WatchResponse>, BoxError> {
        let create = message::WatchRequest { create: Some(create) };
        // The request stream must stay open, or the server ends the watch.
        let requests = futures_util::stream::iter([create]).chain(futures_util::stream::pending());
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<message::WatchRequest, message::WatchResponse>::default();
        let mut answers = grpc.streaming(tonic::Request::new(requests), path, codec).await?.into_inner();
        if !answers.message().await?.is_some_and(|first| first.created) {
            return Err("the server did not confirm the watch".into());
        }
        Ok(answers)
    }

    async fn unary<Q, R>(&self, path: &'static str, message: Q) -> Result<R, BoxError>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await?;
        let codec = ProstCodec::<Q, R>::default();
        let answer = grpc.unary(tonic::Request::new(message), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}

fn revision(header: Option<message::Header>) -> i64 {
    header.map_or(0, |header| header.revision)
}

fn put_op(key: Bytes, value: Bytes, lease: i64) -> message::RequestOp {
    let put = message::PutRequest { key, value, lease };
    message::RequestOp { request: Some(message::RequestKind::Put(put)) }
}

fn claim(key: Bytes, value: Bytes, lease: i64) -> message::TxnRequest {
    let absent = message::Compare {
        target: 1,
        key: key.clone(),
        target_union: Some(message::CompareTarget::CreateRevision(0)),
        ..message::Compare::default()
    };
    message::TxnRequest { compare: vec![absent], success: vec![put_op(key, value, lease)] }
}

/// As large as HTTP/2 allows: h2 ends a connection on which too many small frames came for streams
/// that were dropped, and it counts them by the window. A queue drops a watch at each hand-off, and
/// what the server still sends to it is such a frame.
const WINDOW_MAX: u32 = (1 << 31) - 1;

/// The kind of an event that took a key away.
const DELETE: i32 = 1;
/// The filter that leaves out what was put.
const NO_PUT: i32 = 0;

#[cfg(test)]
mod tests;
