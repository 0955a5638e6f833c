//! What the participants do all day. Each file is one kind of work, done with the public parts of the library and nothing else.

pub mod commands;
pub mod election;
pub mod lock;
pub mod orders;
pub mod registry;
pub mod tasks;
pub mod ttl;

use std::future::Future;
use std::time::Duration;

use tenure::store::{Op, Store, Txn};
use tenure_core::fence::Fence;
use tenure_core::layout::Layout;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::belief::Beliefs;
use crate::cast::{Cast, Player};
use crate::dice::Dice;
use crate::history::Fact;

/// What is put by those who hold something, so that the store's record tells whether they were allowed to.
pub const REGISTERS: &str = "/registers/";

/// What all actors have in common. Cheap to clone.
#[derive(Clone)]
pub struct Stage {
    /// Who plays.
    pub cast: Cast,
    /// Where everything lies.
    pub layout: Layout,
    /// The store, as one reaches it whom no fault hits.
    pub onlooker: Store,
    /// The day is over: everybody puts down what they have.
    pub over: CancellationToken,
    /// Whoever acts.
    pub actors: TaskTracker,
}

impl Stage {
    /// Somebody acts until the day is over.
    pub fn act(&self, acting: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        self.actors.spawn(async move {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = acting => {}
            }
        });
    }

    /// Writes what only the holder may write, and says what came of it.
    pub async fn write_guarded(&self, player: &Player, line: &str, fence: &Fence) {
        let value = fence.token.to_string();
        let txn = Txn::new().then(Op::put(format!("{REGISTERS}{line}"), value));
        // The store's own record says what came of it.
        let _ = player.store.txn(fence.guard(txn)).await;
    }

    /// Somebody was told that it holds; it believes until the result is dropped.
    #[must_use = "the belief ends when this is dropped"]
    pub fn believe(
        &self,
        player: &Player,
        line: &str,
        token: Token,
        mode: LockMode,
        is_valid: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Believing {
        self.cast.beliefs.begin(line, &player.name, token, mode, Box::new(is_valid));
        Believing { beliefs: self.cast.beliefs.clone(), line: line.to_owned(), token }
    }

    /// Work goes on under a hold, by right or not.
    pub fn acted(&self, player: &Player, line: &str, token: Token, valid: bool) {
        let (line, who) = (line.to_owned(), player.name.clone());
        self.cast.history.note(Fact::Acted { line, who, token, valid });
    }
}

/// Somebody believes that it holds; ends with the work, however that ends.
pub struct Believing {
    beliefs: Beliefs,
    line: String,
    token: Token,
}

impl Drop for Believing {
    fn drop(&mut self) {
        self.beliefs.end(&self.line, self.token);
    }
}

/// How long to wait for something: not at all, a little, or long.
fn patience(dice: &mut Dice) -> Option<Duration> {
    match dice.below(10) {
        0 => None,
        1..4 => Some(dice.ms(1, 3_000)),
        _ => Some(dice.ms(5_000, 30_000)),
    }
}
