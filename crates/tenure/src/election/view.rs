//! Who leads and who wants to, for anybody who wants to know.

use std::collections::BTreeMap;

use tenure_core::layout::{Key, Layout, Place};
use tenure_core::name::ElectionName;
use tenure_core::record::{CandidateRecord, Record};
use tenure_core::revision::Token;

use super::Election;
use crate::store::{Get, KeyValue, Order, Page, Revision, StoreError};

/// An election, as it was at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct ElectionView {
    /// Its name.
    pub name: ElectionName,
    /// Who leads.
    pub leader: Option<Leader>,
    /// Who wants to, the next first.
    pub candidates: Vec<Candidate>,
    /// When this was so.
    pub revision: Revision,
}

/// All elections that have a candidate, as they were at one revision.
#[derive(Clone, PartialEq, Debug)]
pub struct ElectionList {
    /// By name.
    pub elections: Vec<ElectionView>,
    /// When this was so.
    pub revision: Revision,
}

/// Who leads.
#[derive(Clone, PartialEq, Debug)]
pub struct Leader {
    /// Its place in the line.
    pub place: Place,
    /// Its token.
    pub token: Token,
    /// What it says of itself; all empty if that cannot be read.
    pub record: CandidateRecord,
}

/// Who waits to lead.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Its place in the line.
    pub place: Place,
    /// Its token, if it leads one day without losing its place.
    pub token: Token,
    /// What it says of itself; all empty if that cannot be read.
    pub record: CandidateRecord,
}

impl Candidate {
    fn of(place: Place, pair: &KeyValue) -> Candidate {
        let record = CandidateRecord::decode(&pair.value).unwrap_or_default();
        Candidate { place, token: Token(pair.created), record }
    }
}

impl From<Candidate> for Leader {
    fn from(Candidate { place, token, record }: Candidate) -> Leader {
        Leader { place, token, record }
    }
}

impl Leader {
    pub(super) fn of(place: Place, pair: &KeyValue) -> Leader {
        Candidate::of(place, pair).into()
    }
}

impl Election {
    /// Who leads now.
    pub async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        let oldest = Get::prefix(self.line.clone()).order(Order::Created).limit(1);
        let page = self.store().get(oldest).await?;
        let Some(first) = page.pairs.first() else { return Ok(None) };
        match self.place(first) {
            Some(place) => Ok(Some(Leader::of(place, first))),
            // A stranger's key is in nobody's line.
            None => Ok(self.view().await?.leader),
        }
    }

    /// Who waits to lead, the next first.
    pub async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        Ok(self.view().await?.candidates)
    }

    /// Who leads and who waits, at one revision.
    pub async fn view(&self) -> Result<ElectionView, StoreError> {
        let layout = &self.elections.layout;
        let page = self.store().list(layout.candidates(&self.name)).await?;
        let revision = page.revision;
        let nobody =
            || ElectionView { name: self.name.clone(), leader: None, candidates: Vec::new(), revision };
        Ok(views(layout, page).remove(&self.name).unwrap_or_else(nobody))
    }

    /// The candidate at a place; none if it is not there.
    pub async fn candidate(&self, place: Place) -> Result<Option<Candidate>, StoreError> {
        let key = self.elections.layout.encode(&Key::Candidate(self.name.clone(), place));
        Ok(self.store().get_key(key).await?.map(|pair| Candidate::of(place, &pair)))
    }

    /// Everything below its prefix, at one revision.
    pub(super) async fn line(&self) -> Result<Vec<KeyValue>, StoreError> {
        Ok(self.store().list(self.elections.layout.candidates(&self.name)).await?.pairs)
    }

    /// The candidate that a key is; none if it is a stranger's.
    pub(super) fn candidate_of(&self, pair: &KeyValue) -> Option<Candidate> {
        Some(Candidate::of(self.place(pair)?, pair))
    }

    /// The place that a key of this election's is; none if it is a stranger's.
    pub(super) fn place(&self, pair: &KeyValue) -> Option<Place> {
        match self.elections.layout.parse(&pair.key) {
            Some(Key::Candidate(name, place)) if name == self.name => Some(place),
            _ => None,
        }
    }
}

pub(super) fn views(layout: &Layout, page: Page) -> BTreeMap<ElectionName, ElectionView> {
    let mut lines: BTreeMap<ElectionName, BTreeMap<Token, Candidate>> = BTreeMap::new();
    for pair in page.pairs {
        // A stranger's key is in nobody's line.
        let Some(Key::Candidate(name, place)) = layout.parse(&pair.key) else { continue };
        let candidate = Candidate::of(place, &pair);
        lines.entry(name).or_default().insert(candidate.token, candidate);
    }
    let view = |(name, line): (ElectionName, BTreeMap<Token, Candidate>)| {
        let mut line = line.into_values();
        let leader = line.next().map(Leader::from);
        let view =
            ElectionView { name: name.clone(), leader, candidates: line.collect(), revision: page.revision };
        (name, view)
    };
    lines.into_iter().map(view).collect()
}
