//! A short protocol with the store: one request at a time, until there is a result.
//!
//! Long-lived protocols (a session, a queue, a worker) are machines with timers and events. Many
//! others only read, write under conditions, and start again when another client was faster: those
//! implement [`Exchange`]. A driver sends the request, returns the reply and waits between retries.
//! It makes no decision.
//!
//! **Invariant** (G6): [`Exchange::handle`] receives errors too, so that an ambiguous request is
//! settled where its meaning is known.

use crate::error::StoreError;
use crate::kv::{Get, Page};
use crate::txn::{OpReply, Txn, TxnReply};

/// A request in the store's own terms.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreRequest {
    /// A read.
    Get(Get),
    /// A transaction.
    Txn(Txn),
}

/// The reply to a [`StoreRequest`] of the same kind.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreReply {
    /// To a read.
    Page(Page),
    /// To a transaction.
    Txn(TxnReply),
}

impl StoreReply {
    /// Returns the page of a read, or of the first read in a transaction. Any other reply violates
    /// the contract of a store.
    pub fn into_page(self) -> Result<Page, StoreError> {
        let page = match self {
            StoreReply::Page(page) => Some(page),
            StoreReply::Txn(reply) => reply.results.into_iter().find_map(|result| match result {
                OpReply::Get(page) => Some(page),
                OpReply::Put | OpReply::Delete { .. } => None,
            }),
        };
        page.ok_or_else(|| StoreError::Corrupt("a read has no reply".into()))
    }

    /// Returns the reply to a transaction. Any other reply violates the contract of a store.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`].
    pub fn into_txn(self) -> Result<TxnReply, StoreError> {
        match self {
            StoreReply::Txn(reply) => Ok(reply),
            StoreReply::Page(_) => Err(StoreError::Corrupt("a transaction has no reply".into())),
        }
    }
}

/// What the driver does after a reply.
#[derive(Clone, Debug)]
pub enum ExchangeStep<T> {
    /// Send [`Exchange::request`] now.
    Send,
    /// Send it after a backoff, because of this error.
    Retry(StoreError),
    /// The protocol has ended.
    Done(T),
}

/// A protocol with one request in flight.
pub trait Exchange {
    /// The result of the protocol.
    type Output;

    /// The next request.
    fn request(&self) -> StoreRequest;

    /// Takes the reply to the last request.
    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output>;
}
