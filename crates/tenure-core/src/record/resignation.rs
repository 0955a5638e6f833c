//! The record of a term that ended by a request of its leader.

use serde::{Deserialize, Serialize};

use super::{Record, Timestamp, UnknownFields};
use crate::revision::Token;

/// The end of a term, under `resigned/<election>/<lease>`: put in the transaction that deletes the
/// candidate key.
///
/// A store's history shows a resignation and an expiry as the same delete. This record is the
/// difference: a candidate key deleted without it was deleted with its lease.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ResignationRecord {
    /// The token of the term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// The token of the candidate that the term was handed to; none if it was resigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<Token>,
    /// The time, by the clock of the process that requested it.
    #[serde(default)]
    pub at: Timestamp,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

impl Record for ResignationRecord {}
