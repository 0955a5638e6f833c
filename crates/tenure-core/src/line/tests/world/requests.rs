//! What the store does with a request in a world, and what it answers.

use super::{Answer, Fate, LATE_MAX, NONCES, SHOWN_MAX, World};
use crate::kv::{Get, Order};
use crate::layout::{Key, Place};
use crate::lease::LeaseId;
use crate::line::{Action, Asks, Before, EnterGuard, Entered, Left, Looked, Then};
use crate::revision::{Revision, Token};
use crate::txn::{Condition, Op, OpReply, Txn};

impl World {
    /// Carries a request out, as the fate of the hour will have it.
    pub(super) fn perform(&mut self, process: usize, action: Action) {
        let fate = self.fate;
        match action {
            Action::Enter { ticket, epoch, place, mode, asks, may_be_there, guard } => {
                self.requests.push(if asks == Asks::Nobody { "join" } else { "enter" });
                if asks == Asks::Others && fate == Fate::Works {
                    // What was put after it stands behind what it looks past.
                    let ours = NONCES * process as u64..place.nonce;
                    let line = self.line_now();
                    let left =
                        line.values().find(|there| there.lease == place.lease && ours.contains(&there.nonce));
                    assert_eq!(left, None, "one of ours is there and would be overlooked");
                }
                self.modes.insert(place, mode);
                let answer = match self.enter(place, may_be_there, guard, fate) {
                    Entered::Stands { token, .. } if asks == Asks::Nobody => Entered::Joined { token },
                    answer => answer,
                };
                self.answers.push((process, Answer::Entered(ticket, epoch, answer)));
            }
            Action::Look { ticket, epoch, place, token, before } => {
                self.requests.push(match before {
                    Before::Unknown | Before::Nearest(_) => "look",
                    Before::Holder(_) | Before::Nobody => "look for itself",
                });
                let answer =
                    if fate == Fate::Works { self.look(place, token, before) } else { Looked::NotDone };
                self.answers.push((process, Answer::Looked(ticket, epoch, answer)));
            }
            Action::Leave { ticket, epoch, place, then, settles } => {
                self.requests.push(match then {
                    Then::Nothing => "leave",
                    Then::Next(..) => "leave to the next",
                    Then::Line => "leave and read",
                });
                let txn = self.leaving(place, settles);
                let answer = match fate {
                    Fate::NotDone => Left::NotDone,
                    Fate::Late => {
                        self.late.push((self.now + LATE_MAX, txn));
                        Left::Unknown
                    }
                    Fate::LosesAnswer => {
                        // Its lease may be gone.
                        let _ = self.store.apply(&txn, self.now);
                        Left::Unknown
                    }
                    Fate::Works => {
                        let Ok(reply) = self.store.apply(&txn, self.now) else {
                            let gone = Left::Gone { was_there: false, first: Vec::new(), guard: None };
                            return self.answers.push((process, Answer::Left(ticket, epoch, gone)));
                        };
                        let was_there = matches!(reply.results[0], OpReply::Delete { count: 1 });
                        let guard = settles.map(|_| self.guard(place.lease));
                        Left::Gone { was_there, first: self.first(then), guard }
                    }
                };
                self.answers.push((process, Answer::Left(ticket, epoch, answer)));
            }
        }
    }

    fn leaving(&self, place: Place, settles: Option<EnterGuard>) -> Txn {
        let txn = Txn::new().then(Op::delete(self.key(place)));
        let Some(guard) = settles else { return txn };
        let key = self.layout.encode(&Key::EnterGuard(guard_of(place.lease)));
        txn.when(guard.unchanged(key.clone()))
            .then(Op::put_leased(key, "", place.lease))
            .otherwise(Op::delete(self.key(place)))
    }

    /// The enter guard of a lease as it is now.
    fn guard(&mut self, lease: LeaseId) -> EnterGuard {
        let key = self.layout.encode(&Key::EnterGuard(guard_of(lease)));
        let page = self.store.get(&Get::key(key), self.now).unwrap();
        EnterGuard(page.pairs.first().map(|pair| pair.modified))
    }

    fn enter(&mut self, place: Place, may_be_there: bool, guard: EnterGuard, fate: Fate) -> Entered {
        let key = self.key(place);
        let there = self.store.get(&Get::key(key.clone()), self.now).unwrap();
        assert!(may_be_there || there.pairs.is_empty(), "nobody else puts our place");
        let put = Op::put_leased(key.clone(), "", place.lease);
        let absent = may_be_there.then(|| Condition::absent(key));
        let unchanged = guard.unchanged(self.layout.encode(&Key::EnterGuard(guard_of(place.lease))));
        let txn = Txn { when: absent.into_iter().chain([unchanged]).collect(), ..put.into() };
        match fate {
            Fate::NotDone => Entered::NotDone,
            Fate::Late => {
                self.late.push((self.now + LATE_MAX, txn));
                Entered::Unknown
            }
            Fate::LosesAnswer => {
                // Its lease may be gone.
                let _ = self.store.apply(&txn, self.now);
                Entered::Unknown
            }
            Fate::Works if self.store.apply(&txn, self.now).is_err() => Entered::LeaseGone,
            Fate::Works => {
                let line = self.line_now();
                let Some((&token, _)) = line.iter().find(|(_, there)| **there == place) else {
                    return Entered::Stale { guard: self.guard(place.lease) };
                };
                Entered::Stands { token, before: self.before(place, token) }
            }
        }
    }

    fn look(&mut self, place: Place, token: Token, before: Before) -> Looked {
        let line = self.line_now();
        if line.get(&token) != Some(&place) {
            return Looked::Missing;
        }
        let is_there = |before: Place| line.range(..token).any(|(_, there)| *there == before);
        match before {
            Before::Nearest(before) | Before::Holder(before) if is_there(before) => {
                assert_eq!(self.before(place, token), Some(before), "somebody came between");
                Looked::Stands { before: Some(before) }
            }
            Before::Unknown | Before::Nearest(_) => Looked::Stands { before: self.before(place, token) },
            // Nobody reads the line then.
            Before::Holder(_) | Before::Nobody => Looked::Stands { before: None },
        }
    }

    /// What is read of the line when a place has left it.
    fn first(&mut self, then: Then) -> Vec<(Place, Token)> {
        let line = self.line_now();
        match then {
            Then::Nothing => Vec::new(),
            Then::Next(place, token) => line
                .get(&token)
                .filter(|there| **there == place)
                .map(|_| (place, token))
                .into_iter()
                .collect(),
            Then::Line => line.into_iter().take(SHOWN_MAX).map(|(token, place)| (place, token)).collect(),
        }
    }

    fn before(&mut self, place: Place, token: Token) -> Option<Place> {
        let get = Get::new(self.line())
            .order(Order::CreatedDescending)
            .created_max(Revision(token.0.0 - 1))
            .limit(1);
        let page = self.store.get(&get, self.now).unwrap();
        let before = page.pairs.first().and_then(|pair| self.place(&pair.key));
        assert_ne!(before, Some(place));
        before
    }
}

/// The key of a lease's enter guard: each lease of this world has one driver.
fn guard_of(lease: LeaseId) -> Place {
    Place { lease, nonce: 0 }
}
