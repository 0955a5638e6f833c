//! The reads beside the stream: the current revision, whether a starting point is compacted,
//! whether the user may read a range.

use std::sync::Arc;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use tokio::time::timeout;

use super::super::router::WatchName;
use super::super::start_checks::StartQuery;
use crate::call::{Call, CallKind};
use crate::classify::RequestSize;
use crate::connection::{Connection, RequireLeader};
use crate::endpoints::Endpoints;
use crate::error::{Cause, Error};
use crate::message::cluster::{StatusRequest, StatusResponse};
use crate::message::kv::{RangeRequest, RangeResponse};
use crate::version::ServerVersion;

/// The result of a read.
pub(super) enum ReadReply {
    Point { name: WatchName, result: Result<i64, Error> },
    Probe { query: StartQuery, result: Result<(), Error> },
    Verify { name: WatchName, serial: u64, result: Result<(), Error> },
    Version { serial: u64, version: Option<ServerVersion> },
    Identity { result: Result<(), Error> },
}

type ReadFuture = BoxFuture<'static, ReadReply>;

/// The current revision of the store, read linearizably.
pub(super) fn point(endpoints: &Arc<Endpoints>, name: WatchName, key: Bytes) -> ReadFuture {
    let endpoints = Arc::clone(endpoints);
    Box::pin(async move {
        let result =
            count(&endpoints, RangeRequest { key, ..RangeRequest::default() }).await.and_then(|answer| {
                let damaged = || Error::Corrupt("a range without a header".to_owned());
                answer.header.map(|header| header.revision).ok_or_else(damaged)
            });
        ReadReply::Point { name, result }
    })
}

/// Whether the oldest starting point is compacted. Linearizable, so that a member that lags behind
/// the compaction cannot deny it.
pub(super) fn probe(endpoints: &Arc<Endpoints>, query: StartQuery) -> ReadFuture {
    let endpoints = Arc::clone(endpoints);
    Box::pin(async move {
        let oldest = query.oldest();
        let request =
            RangeRequest { key: oldest.key.clone(), revision: oldest.after, ..RangeRequest::default() };
        let result = count(&endpoints, request).await.map(drop);
        ReadReply::Probe { query, result }
    })
}

/// Whether the user may read a range, with a token that is renewed if it expired.
pub(super) fn verify(
    endpoints: &Arc<Endpoints>,
    name: WatchName,
    serial: u64,
    key: Bytes,
    range_end: Bytes,
) -> ReadFuture {
    let endpoints = Arc::clone(endpoints);
    Box::pin(async move {
        let result =
            count(&endpoints, RangeRequest { key, range_end, ..RangeRequest::default() }).await.map(drop);
        ReadReply::Verify { name, serial, result }
    })
}

/// Whether this is still the same store: a linearizable reply cannot be older than what was seen
/// before. Without it, a watcher that resumes on a store restored from a backup would wait for a
/// revision that never comes.
pub(super) fn identity(endpoints: &Arc<Endpoints>, key: Bytes) -> ReadFuture {
    let endpoints = Arc::clone(endpoints);
    Box::pin(async move {
        let result = count(&endpoints, RangeRequest { key, ..RangeRequest::default() }).await.map(drop);
        ReadReply::Identity { result }
    })
}

/// The version of the server of the stream; `None` if it does not report it.
pub(super) fn version(endpoints: &Arc<Endpoints>, connection: &Arc<Connection>, serial: u64) -> ReadFuture {
    let (endpoints, connection) = (Arc::clone(endpoints), Arc::clone(connection));
    Box::pin(async move {
        let status = async {
            let request = connection.request(StatusRequest {}, RequireLeader::No).ok()?;
            connection.unary::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", request).await.ok()
        };
        let status = timeout(endpoints.config.per_try, status).await.ok().flatten();
        ReadReply::Version {
            serial,
            version: status.and_then(|status| ServerVersion::parse(&status.version)),
        }
    })
}

async fn count(endpoints: &Arc<Endpoints>, request: RangeRequest) -> Result<RangeResponse, Error> {
    let message = RangeRequest { count_only: true, ..request };
    let call =
        Call { path: "/etcdserverpb.KV/Range", kind: CallKind::Read, message, size: RequestSize::default() };
    match endpoints.call(call).await {
        // A read has no effect that could be partial.
        Err(Error::Ambiguous(cause)) => Err(Error::Unavailable(cause)),
        Err(Error::FutureRevision) => {
            Err(Error::Unavailable(Cause::new("the store is behind a revision it has sent")))
        }
        answer => answer,
    }
}
