//! Which process certainly relied on which hold, and from when until when, as far as its own checks
//! prove it.
//!
//! A hold begins to be certain when its first check is complete. It ends with the last check before
//! its release. If it was never released, it lasts until the moment that its holder was promised,
//! and no longer than its process lived.

use std::collections::BTreeMap;

use super::{ClientLife, Evidence};
use crate::history::{HistoryEvent, HoldEnd, OperationOutcome, Stamp};

/// Something that was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What.
    pub line: String,
    /// Under which token.
    pub token: i64,
    /// The history that recorded it.
    pub file: String,
    /// When it was requested, if that was recorded.
    pub asked: Stamp,
    /// From when on its holder certainly relied on it.
    pub from: Stamp,
    /// Until when.
    pub until: Stamp,
    /// An operator ended it, or etcd did before its time. No holder could foresee that, so only the
    /// token protects.
    pub by_hand: bool,
}

/// All holds, by line and token.
pub fn of(evidence: &Evidence) -> Vec<Hold> {
    let mut holds: Vec<Hold> = evidence.lives.iter().flat_map(|life| of_life(evidence, life)).collect();
    holds.sort_by(|a, b| (&a.line, a.token, a.from).cmp(&(&b.line, b.token, b.from)));
    holds
}

fn of_life(evidence: &Evidence, life: &ClientLife) -> Vec<Hold> {
    let mut asked_at = BTreeMap::new();
    let mut asked = BTreeMap::new();
    let mut holds: BTreeMap<(String, i64), Hold> = BTreeMap::new();
    for line in &life.lines {
        match &line.event {
            HistoryEvent::Asked { op, .. } => {
                asked_at.insert(*op, line.at);
            }
            HistoryEvent::Answered { op, outcome: OperationOutcome::Ok, token: Some(token), .. } => {
                if let Some(at) = asked_at.remove(op) {
                    asked.entry(*token).or_insert(at);
                }
            }
            HistoryEvent::Believed { line: name, token, lease, by, until } => {
                let hold = holds.entry((name.clone(), *token)).or_insert_with(|| Hold {
                    line: name.clone(),
                    token: *token,
                    file: life.file.clone(),
                    asked: asked.get(token).copied().unwrap_or(0),
                    from: *by,
                    until: *by,
                    by_hand: evidence.tokens_by_hand.contains(token)
                        || lease.is_some_and(|lease| {
                            evidence.leases_by_hand.contains(&lease)
                                || evidence.leases_ended_early.contains(&lease)
                        }),
                });
                let told = life.killed_at.map_or(*until, |killed| killed.min(*until));
                hold.until = hold.until.max(line.at).max(told);
            }
            HistoryEvent::Ended { line: name, token, how: HoldEnd::GivenUp } => {
                if let Some(hold) = holds.get_mut(&(name.clone(), *token)) {
                    hold.until = hold.until.min(line.at);
                }
            }
            _ => {}
        }
    }
    holds.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::made::{evidence, held, released};
    use super::*;

    #[test]
    fn unreleased_hold_lasts_until_last_record() {
        let told = evidence(vec![held(5, 10, 20, 30, 90)]);
        let hold = &of(&told)[0];
        assert_eq!((hold.asked, hold.from, hold.until), (10, 20, 90));
        let released = evidence(vec![released(held(5, 10, 20, 30, 90), 40)]);
        assert_eq!(of(&released)[0].until, 40);
        let mut killed = told.clone();
        killed.lives[0].killed_at = Some(50);
        assert_eq!(of(&killed)[0].until, 50);
        let mut revoked = told.clone();
        revoked.leases_by_hand.insert(5);
        assert!(of(&revoked)[0].by_hand);
        let mut early = told;
        early.leases_ended_early.insert(5);
        assert!(of(&early)[0].by_hand);
    }
}
