//! Locks: taken, worked under, given back, dropped in every moment, and lost.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure::lock::{Guard, Locks};
use tenure_core::queue::LockMode;

use super::{Stage, patience};
use crate::audit::lock_line;
use crate::cast::{Player, namespace};
use crate::dice::Dice;

/// One is the beginning of the other, and neither may block the other. One is read by many and written by one, one has room for two.
pub const NAMES: [&str; 4] = ["a", "a/b", BOOK, POOL];
const BOOK: &str = "book";
const POOL: &str = "pool";
const ROOM: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// How one wants a lock of this name.
fn mode(name: &str, dice: &mut Dice) -> LockMode {
    match name {
        BOOK if dice.percent(70) => LockMode::Shared,
        POOL => LockMode::Permit { of: ROOM },
        _ => LockMode::Exclusive,
    }
}

/// Somebody wants locks all day.
pub fn begin(stage: &Stage, player: &Player, dice: &mut Dice) {
    let locks = Locks::new(&player.session, &namespace());
    // Two tasks of one process on one session must exclude each other too.
    for _ in 0..dice.between(1, 3) {
        let (stage_of_one, player, locks, dice) =
            (stage.clone(), player.clone(), locks.clone(), dice.split());
        stage.act(async move { want(stage_of_one, player, locks, dice).await });
    }
}

async fn want(stage: Stage, player: Player, locks: Locks, mut dice: Dice) {
    loop {
        player.rest(dice.ms(1, 900)).await;
        let name = *dice.pick(&NAMES);
        let mode = mode(name, &mut dice);
        let acquire = match mode {
            LockMode::Exclusive => locks.lock(name),
            LockMode::Shared => locks.rw_lock(name).read(),
            LockMode::Permit { of } => locks.semaphore(name, of.get()).acquire(),
        };
        let acquire = match patience(&mut dice) {
            None => acquire.try_now(),
            Some(wait) => acquire.timeout(wait),
        };
        let acquired = if dice.percent(15) {
            // Dropped in the middle of whatever it is doing.
            match tokio::time::timeout(dice.ms(0, 2_000), acquire.into_future()).await {
                Ok(acquired) => acquired,
                Err(_) => continue,
            }
        } else {
            acquire.await
        };
        player.awake().await;
        if let Ok(guard) = acquired {
            hold(&stage, &player, name, mode, guard, &mut dice).await;
        }
    }
}

async fn hold(stage: &Stage, player: &Player, name: &str, mode: LockMode, guard: Guard, dice: &mut Dice) {
    let (line, guard) = (lock_line(name), Arc::new(guard));
    let token = guard.token();
    let believed = guard.clone();
    let believing = stage.believe(player, &line, token, mode, move || believed.is_valid());
    for _ in 0..dice.below(4) {
        let step = dice.ms(1, 1_500);
        let worked = guard.run(async {
            player.rest(step).await;
            stage.acted(player, &line, token, guard.is_valid());
            if mode == LockMode::Exclusive {
                stage.write_guarded(player, &line, &guard.fence()).await;
            }
        });
        if worked.await.is_err() {
            break;
        }
    }
    if dice.percent(20) {
        // Waits for the worst, as a holder with a long task does.
        let _ = tokio::time::timeout(Duration::from_secs(10), guard.lost()).await;
    }
    player.awake().await;
    drop(believing);
    let Some(guard) = Arc::into_inner(guard) else { return };
    if dice.percent(80) {
        // What came of it is in the store's record; an error here means that it was lost before.
        let _ = guard.release().await;
    }
}
