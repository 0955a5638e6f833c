//! The tickets of a line by what they wait for, so that nobody has to look through all of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::revision::Token;
use crate::time::Moment;

use super::standing::{Stage, Standing};
use super::{Mode, Ticket};

/// The tickets by what they wait for; `Line::change` keeps it true.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// The exclusive places that wait, in their order. Only the first can be the next to hold, so only it looks.
    pub queue: BTreeMap<Token, Ticket>,
    /// The places that wait and can hold beside others.
    pub crowd: BTreeMap<Token, Ticket>,
    pub holding: BTreeSet<Ticket>,
    /// Who has to look, when its turn has come.
    pub looks: BTreeSet<Ticket>,
    /// Who has to ask for something else, and when.
    pub due: BTreeSet<(Moment, Ticket)>,
}

impl Index {
    pub(super) fn insert(&mut self, ticket: Ticket, standing: &Standing) {
        match standing.stage {
            Stage::Waiting { token, .. } if standing.mode == Mode::Exclusive => {
                self.queue.insert(token, ticket);
            }
            Stage::Waiting { token, .. } => {
                self.crowd.insert(token, ticket);
            }
            Stage::Holding { .. } => {
                self.holding.insert(ticket);
            }
            Stage::Entering { .. } | Stage::Resting { .. } | Stage::Leaving { .. } => {}
        }
        if standing.look_at().is_some() {
            self.looks.insert(ticket);
        }
        if let Some(at) = standing.due_at() {
            self.due.insert((at, ticket));
        }
    }

    pub(super) fn remove(&mut self, ticket: Ticket, standing: &Standing) {
        if let Stage::Waiting { token, .. } = standing.stage {
            self.queue.remove(&token);
            self.crowd.remove(&token);
        }
        self.holding.remove(&ticket);
        self.looks.remove(&ticket);
        if let Some(at) = standing.due_at() {
            self.due.remove(&(at, ticket));
        }
    }
}
