//! From an address to a store.

use super::memory::Memory;
use super::{Store, StoreError, StoreUrl};

impl Store {
    /// Opens the store at an address, with the engine's defaults.
    ///
    /// # Errors
    ///
    /// What the engine says, or [`StoreError::Unavailable`] if the engine was not built in.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing open; a store file that did not exist may exist then, empty.
    pub async fn open(url: &StoreUrl) -> Result<Store, StoreError> {
        match url {
            StoreUrl::Memory => Ok(Store::new(Memory::new())),
            #[cfg(feature = "file")]
            StoreUrl::File(path) => Ok(Store::new(super::file::SharedFile::open(path.clone()).await?)),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd { endpoints, security } => {
                let config = super::etcd::Etcd::config(endpoints, *security);
                Ok(Store::new(super::etcd::Etcd::connect(config).await?))
            }
            #[cfg(not(all(feature = "file", feature = "etcd")))]
            left_out => {
                let reason = format!("this program was built without the engine for {left_out}");
                Err(StoreError::Unavailable(super::Cause::new(reason)))
            }
        }
    }
}
