//! Reads one key, until the store replies.

use bytes::Bytes;

use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::kv::{Get, KeyValue};
use crate::revision::Revision;

/// A read of one key.
#[derive(Clone, Debug)]
pub struct ReadKey {
    key: Bytes,
}

impl ReadKey {
    /// A read of this key.
    pub fn new(key: Bytes) -> ReadKey {
        ReadKey { key }
    }
}

impl Exchange for ReadKey {
    /// The key, if it exists, and the revision it was read at. An error is one that no retry can
    /// mend.
    type Output = Result<(Option<KeyValue>, Revision), StoreError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Get(Get::key(self.key.clone()))
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        match reply.and_then(StoreReply::into_page) {
            Ok(mut page) => ExchangeStep::Done(Ok((page.pairs.pop(), page.revision))),
            Err(error) if error.is_fatal() || matches!(error, StoreError::Invalid(_)) => {
                ExchangeStep::Done(Err(error))
            }
            Err(error) => ExchangeStep::Retry(error),
        }
    }
}
