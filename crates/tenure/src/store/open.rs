//! From an address to a store.

use super::memory::Memory;
use super::{Cause, Store, StoreError, StoreUrl};

impl Store {
    /// Opens the store at an address, with the engine's defaults.
    pub async fn open(url: &StoreUrl) -> Result<Store, StoreError> {
        match url {
            StoreUrl::Memory => Ok(Store::new(Memory::new())),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd { endpoints, security } => {
                let config = super::etcd::Etcd::config(endpoints, *security);
                Ok(Store::new(super::etcd::Etcd::connect(config).await?))
            }
            #[cfg(not(feature = "etcd"))]
            StoreUrl::Etcd { .. } => {
                Err(StoreError::Unavailable(Cause::new(format!("no engine for {url} was built in"))))
            }
            StoreUrl::File(_) => {
                Err(StoreError::Unavailable(Cause::new(format!("no engine for {url} was built in"))))
            }
        }
    }
}
