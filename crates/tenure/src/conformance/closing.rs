//! Closing: the last case, because it leaves nothing to run another on.

use super::check::{CheckFailure, CheckResult, refused};
use super::{Case, TestContext};
use crate::store::{Get, PreviousValues, Selection, StoreError, WatchError, WatchStart};

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new(
        "X20",
        "Closing ends every watch and refuses every later call, on all clones; closing again is nothing.",
        |s| Box::pin(closing_ends_everything(s)),
    )]
}

async fn closing_ends_everything(s: &TestContext) -> CheckResult {
    let mut watch = s.watch(s.all(), WatchStart::Now).await?;
    let lease = s.lease(super::context::LONG).await?.id;
    s.store.revoke(lease).await?;
    s.store.delete(Selection::Prefix(s.key(""))).await?;
    s.store.clone().close().await;
    match watch.end().await? {
        WatchError::Lost(StoreError::Closed) => {}
        other => {
            return Err(CheckFailure::new(format!(
                "expected the watch to end with `Closed`, found {other:?}"
            )));
        }
    }
    refused!("a get", s.store.get(Get::key(s.key("a"))).await, StoreError::Closed)?;
    refused!("a put", s.put("a", "v").await, StoreError::Closed)?;
    refused!("a grant", s.store.grant(super::context::LONG, None).await, StoreError::Closed)?;
    refused!("a renewal", s.store.renew(lease).await, StoreError::Closed)?;
    refused!(
        "a watch",
        s.store.watch(s.all(), WatchStart::Now, PreviousValues::Omitted).await,
        StoreError::Closed
    )?;
    s.store.close().await;
    Ok(())
}
