//! Orphans: claims of this process that it does not keep, because they were confirmed too late or
//! applied after it had abandoned them.

use crate::id::{ClaimId, TaskId};
use crate::revision::{Revision, Token};

use super::WorkerMachine;
use super::config::ORPHAN_AFTER;
use super::event::WorkerEvent;
use super::input::{InputTime, ReleaseReply};
use super::output::WorkerOutput;
use super::timers::Timer;

impl WorkerMachine {
    pub(super) fn release_claim(&mut self, task: TaskId, token: Token, claim: ClaimId) {
        self.orphans.insert((task.clone(), token), claim.clone());
        self.outputs.push_back(WorkerOutput::ReleaseClaim { task, token, claim });
    }

    pub(super) fn handle_claim_released(
        &mut self,
        task: TaskId,
        token: Token,
        reply: ReleaseReply,
        now: InputTime,
    ) {
        let orphan = (task.clone(), token);
        if !self.orphans.contains_key(&orphan) {
            return;
        }
        match reply {
            ReleaseReply::Done => {
                self.orphans.remove(&orphan);
                // The timer is shared with claims that the board shows and this process does not
                // know of, so it is checked once more.
                self.timers.set(Timer::Orphan(task.clone()), now.at + ORPHAN_AFTER);
                self.events.push_back(WorkerEvent::LateClaimReleased { task, token });
            }
            ReleaseReply::NotDone => self.timers.set(Timer::Orphan(task), now.at + ORPHAN_AFTER),
        }
    }

    /// Releases the claims of a task that the store still has although this process does not hold
    /// them.
    pub(super) fn orphan_due(&mut self, task: TaskId, now: InputTime) {
        let all = (task.clone(), Token(Revision::ZERO))..=(task.clone(), Token(Revision(i64::MAX)));
        let orphans: Vec<_> =
            self.orphans.range(all).map(|((_, token), claim)| (*token, claim.clone())).collect();
        // Known orphans are released by their tokens, whatever the board shows.
        if !orphans.is_empty() {
            for (token, claim) in orphans {
                self.release_claim(task.clone(), token, claim);
            }
            return;
        }
        if self.claims.contains(&task) {
            // Its reply decides whether the claim on the board is the requested one.
            return self.timers.set(Timer::Orphan(task), now.at + ORPHAN_AFTER);
        }
        let Some(owner) = self.board.owner_of(&task) else { return };
        if self.held.get(&task).is_some_and(|held| held.token == owner.token) {
            return;
        }
        let Ok(holder) = &owner.holder else { return };
        // A claim of another process with this worker's id must not be deleted: that process may
        // only be paused. A claim of this process must be, even if the worker has joined again
        // since. Its lease may belong to the present session and would be renewed as long as the
        // process lives.
        if holder.node == self.config.node && self.claims.is_of_this_process(&holder.nonce) {
            let Ok(claim) = ClaimId::parse(&holder.nonce) else { return };
            self.release_claim(task, owner.token, claim);
        }
    }
}
