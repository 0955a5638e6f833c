//! The remaining time of leases, for listings of their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure::store::{LeaseId, LeaseView, Store, StoreError};

/// The number of lease requests in flight: a listing of hundreds must neither wait for each in turn nor fill the store's queue.
const IN_FLIGHT: usize = 16;

/// Returns the remaining time of each lease, without those that have ended.
pub(crate) async fn remaining(
    store: &Store,
    leases: impl IntoIterator<Item = LeaseId>,
) -> Result<BTreeMap<LeaseId, Duration>, StoreError> {
    let views = views(store, leases).await?;
    Ok(views.into_iter().map(|(id, lease)| (id, lease.remaining)).collect())
}

/// Returns the store's view of each lease, without those that have ended.
pub(crate) async fn views(
    store: &Store,
    leases: impl IntoIterator<Item = LeaseId>,
) -> Result<BTreeMap<LeaseId, LeaseView>, StoreError> {
    let leases: BTreeSet<LeaseId> = leases.into_iter().collect();
    let requests = leases.into_iter().map(async |id| Ok((id, store.lease(id).await?)));
    let replies: Vec<Result<_, StoreError>> =
        stream::iter(requests).buffer_unordered(IN_FLIGHT).collect().await;
    let mut views = BTreeMap::new();
    for reply in replies {
        let (id, lease) = reply?;
        views.extend(lease.map(|lease| (id, lease)));
    }
    Ok(views)
}

/// The seconds for a table, or a dash.
pub(crate) fn in_seconds(remaining: Option<Duration>) -> String {
    remaining.map_or("-".to_owned(), |remaining| format!("{:.1}", remaining.as_secs_f64()))
}
