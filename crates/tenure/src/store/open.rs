//! From an address to a store.

use super::memory::MemoryEngine;
use super::{Store, StoreError, StoreUrl};

impl Store {
    /// Opens the store at an address, with the engine's defaults.
    ///
    /// # Errors
    ///
    /// The error of the engine, or [`UnusableStore::EngineMissing`](super::UnusableStore::EngineMissing), which no retry helps, if the engine was not built in.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing open; a store file that did not exist may exist then, empty.
    pub async fn open(url: &StoreUrl) -> Result<Store, StoreError> {
        match url {
            StoreUrl::Memory => Ok(Store::new(MemoryEngine::new())),
            #[cfg(feature = "file")]
            StoreUrl::File(path) => Ok(Store::new(super::file::FileEngine::open(path.clone()).await?)),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd { endpoints, security } => {
                let config = super::etcd::EtcdEngine::config(endpoints, *security);
                Ok(Store::new(super::etcd::EtcdEngine::connect(config).await?))
            }
            #[cfg(not(all(feature = "file", feature = "etcd")))]
            left_out => Err(engine_missing(left_out)),
        }
    }
}

/// A permanent error: another try meets the same program.
#[cfg(any(test, not(all(feature = "file", feature = "etcd"))))]
fn engine_missing(url: &StoreUrl) -> StoreError {
    let engine = match url {
        StoreUrl::Memory => "memory",
        StoreUrl::File(_) => "file",
        StoreUrl::Etcd { .. } => "etcd",
    };
    StoreError::Unusable(super::UnusableStore::EngineMissing { engine, feature: engine })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was `Unavailable`, which callers retry for ever.
    #[test]
    fn missing_engine_is_permanent_and_names_its_feature() {
        for (url, feature) in [("file:///a.db", "\"file\""), ("etcd://a:1", "\"etcd\"")] {
            let error = engine_missing(&url.parse().unwrap());
            assert!(error.is_fatal() && !error.is_retryable() && !error.is_ambiguous(), "{error:?}");
            assert!(error.to_string().contains(feature), "{error}");
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn address_of_a_missing_engine_is_refused() {
        let error = Store::open(&"etcd://127.0.0.1:1".parse().unwrap()).await.unwrap_err();
        assert!(
            matches!(error, StoreError::Unusable(super::super::UnusableStore::EngineMissing { .. })),
            "{error:?}"
        );
    }
}
