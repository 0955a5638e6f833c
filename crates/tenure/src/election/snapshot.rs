//! Reads of an election: its leader and its candidates.

use tenure_core::backoff::Backoff;
use tenure_core::cluster::elections_in;
use tenure_core::layout::{Key, QueueKey};

use super::ElectionQueue;
use crate::retry::Attempts;
use crate::store::{Get, KeyValue, Revision, SortOrder, StoreError};

pub use tenure_core::cluster::{Candidate, ElectionSnapshot, Leader};

/// All elections that have a candidate, at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct ElectionList {
    /// By name.
    pub elections: Vec<ElectionSnapshot>,
    /// The revision.
    pub revision: Revision,
}

impl ElectionQueue {
    /// The leader now.
    pub(super) async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        let oldest = Get::prefix(self.prefix.clone()).order(SortOrder::Created).limit(1);
        let page = self.store().get(oldest).await?;
        let Some(first) = page.pairs.first() else { return Ok(None) };
        match self.queue_key(first) {
            Some(place) => Ok(Some(Leader::of(place, first))),
            // The oldest key below the prefix is foreign: only the complete listing shows the oldest candidate.
            None => Ok(self.snapshot().await?.leader),
        }
    }

    /// The leader and the candidates that wait, at one revision.
    pub(super) async fn snapshot(&self) -> Result<ElectionSnapshot, StoreError> {
        let layout = &self.elections.layout;
        let page = self.store().list(layout.candidates(&self.name)).await?;
        let revision = page.revision;
        let empty =
            || ElectionSnapshot { name: self.name.clone(), leader: None, candidates: Vec::new(), revision };
        Ok(elections_in(layout, page.pairs, revision).remove(&self.name).unwrap_or_else(empty))
    }

    /// The candidate with this queue key; none if the key is not stored.
    pub(super) async fn candidate(&self, place: QueueKey) -> Result<Option<Candidate>, StoreError> {
        let key = self.elections.layout.encode(&Key::Candidate(self.name.clone(), place));
        Ok(self.store().get_key(key).await?.map(|pair| Candidate::of(place, &pair)))
    }

    /// All keys of the queue, at one revision. Retries until the store replies.
    pub(super) async fn read_candidates(&self) -> Result<Vec<KeyValue>, StoreError> {
        let mut attempts = Attempts::new(&self.elections.clock, Backoff::REQUEST);
        loop {
            match self.store().list(self.elections.layout.candidates(&self.name)).await {
                Ok(page) => return Ok(page.pairs),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => attempts.wait("read candidates", &error).await,
            }
        }
    }

    /// The candidate of a stored key; none if the key is foreign.
    pub(super) fn candidate_of(&self, pair: &KeyValue) -> Option<Candidate> {
        Some(Candidate::of(self.queue_key(pair)?, pair))
    }

    /// The queue key of a stored key; none if the key is foreign.
    pub(super) fn queue_key(&self, pair: &KeyValue) -> Option<QueueKey> {
        match self.elections.layout.parse(&pair.key) {
            Some(Key::Candidate(name, place)) if name == self.name => Some(place),
            _ => None,
        }
    }
}
