//! How long leases would live without another renewal, for listings of what hangs on them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tenure::store::{LeaseId, LeaseView, Store, StoreError};

/// How many leases are asked about at once: a listing of hundreds must not wait for each in turn, nor fill the store's queue.
const IN_FLIGHT: usize = 16;

/// What remains of each lease; those that are gone are left out.
pub(crate) async fn remaining(
    store: &Store,
    leases: impl IntoIterator<Item = LeaseId>,
) -> Result<BTreeMap<LeaseId, Duration>, StoreError> {
    let views = views(store, leases).await?;
    Ok(views.into_iter().map(|(id, lease)| (id, lease.remaining)).collect())
}

/// Each lease as the store sees it; those that are gone are left out.
pub(crate) async fn views(
    store: &Store,
    leases: impl IntoIterator<Item = LeaseId>,
) -> Result<BTreeMap<LeaseId, LeaseView>, StoreError> {
    let leases: BTreeSet<LeaseId> = leases.into_iter().collect();
    let asking = leases.into_iter().map(async |id| Ok((id, store.lease(id).await?)));
    let answers: Vec<Result<_, StoreError>> =
        stream::iter(asking).buffer_unordered(IN_FLIGHT).collect().await;
    let mut views = BTreeMap::new();
    for answer in answers {
        let (id, lease) = answer?;
        views.extend(lease.map(|lease| (id, lease)));
    }
    Ok(views)
}

/// Seconds for people, or a dash.
pub(crate) fn in_seconds(remaining: Option<Duration>) -> String {
    remaining.map_or("-".to_owned(), |remaining| format!("{:.1}", remaining.as_secs_f64()))
}
