//! Claims of ours that we do not want: answered too late, or carried out after we had given up on them.

use crate::id::{ClaimId, TaskId};
use crate::revision::{Revision, Token};

use super::WorkerMachine;
use super::config::STRAY_AFTER;
use super::event::WorkerEvent;
use super::input::{InputTime, ReleaseReply};
use super::output::WorkerOutput;
use super::timers::Timer;

impl WorkerMachine {
    pub(super) fn give_back(&mut self, task: TaskId, token: Token, claim: ClaimId) {
        self.strays.insert((task.clone(), token), claim.clone());
        self.actions.push_back(WorkerOutput::GiveBack { task, token, claim });
    }

    pub(super) fn handle_given_back(
        &mut self,
        task: TaskId,
        token: Token,
        answer: ReleaseReply,
        now: InputTime,
    ) {
        let stray = (task.clone(), token);
        if !self.strays.contains_key(&stray) {
            return;
        }
        match answer {
            ReleaseReply::Done => {
                self.strays.remove(&stray);
                // The timer is shared with claims that the board shows and this process does not know of: they are looked for again.
                self.timers.set(Timer::Stray(task.clone()), now.at + STRAY_AFTER);
                self.notices.push_back(WorkerEvent::GivenBack { task, token });
            }
            ReleaseReply::NotDone => self.timers.set(Timer::Stray(task), now.at + STRAY_AFTER),
        }
    }

    /// Gives back what the board still shows as ours although we know of no such claim.
    pub(super) fn stray_due(&mut self, task: TaskId, now: InputTime) {
        let all = (task.clone(), Token(Revision::ZERO))..=(task.clone(), Token(Revision(i64::MAX)));
        let strays: Vec<_> =
            self.strays.range(all).map(|((_, token), claim)| (*token, claim.clone())).collect();
        if !strays.is_empty() {
            for (token, claim) in strays {
                self.give_back(task.clone(), token, claim);
            }
            return;
        }
        if self.claims.contains(&task) {
            // Its answer may say that this is it; or that it is not.
            return self.timers.set(Timer::Stray(task), now.at + STRAY_AFTER);
        }
        let Some(owner) = self.board.owner_of(&task) else { return };
        if self.held.get(&task).is_some_and(|held| held.token == owner.token) {
            return;
        }
        let Ok(holder) = &owner.holder else { return };
        // A claim of another life of this node is not ours to delete: its process may only be paused. One of this life is, also if the node
        // has lost its place and joined again since: its lease may be that of the session now, and would be renewed as long as the process lives.
        if holder.node == self.settings.node && self.claims.is_of_this_life(&holder.nonce) {
            let Ok(claim) = ClaimId::parse(&holder.nonce) else { return };
            self.give_back(task, owner.token, claim);
        }
    }
}
