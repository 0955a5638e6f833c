//! Locks: acquired, worked under, released, dropped at any moment, and lost.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure::lock::{Guard, Locks};
use tenure_core::queue::LockMode;

use super::{WorkloadContext, patience};
use crate::audit::lock_line;
use crate::processes::{SimProcess, namespace};
use crate::rng::SimRng;

/// One is the beginning of the other, and neither may block the other. One is read by many and written by one, one has room for two.
pub const NAMES: [&str; 4] = ["a", "a/b", BOOK, POOL];
const BOOK: &str = "book";
const POOL: &str = "pool";
const ROOM: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// How one wants a lock of this name.
fn mode(name: &str, rng: &mut SimRng) -> LockMode {
    match name {
        BOOK if rng.percent(70) => LockMode::Shared,
        POOL => LockMode::Permit { of: ROOM },
        _ => LockMode::Exclusive,
    }
}

/// The process acquires locks for the whole run.
pub fn begin(context: &WorkloadContext, process: &SimProcess, rng: &mut SimRng) {
    let locks = Locks::new(&process.session, &namespace());
    // Two tasks of one process on one session must exclude each other too.
    for _ in 0..rng.between(1, 3) {
        let (own_context, process, locks, rng) =
            (context.clone(), process.clone(), locks.clone(), rng.split());
        context.act(async move { want(own_context, process, locks, rng).await });
    }
}

async fn want(context: WorkloadContext, process: SimProcess, locks: Locks, mut rng: SimRng) {
    loop {
        process.rest(rng.ms(1, 900)).await;
        let name = *rng.pick(&NAMES);
        let mode = mode(name, &mut rng);
        let acquire = match mode {
            LockMode::Exclusive => locks.lock(name),
            LockMode::Shared => locks.rw_lock(name).read(),
            LockMode::Permit { of } => locks.semaphore(name, of.get()).acquire(),
        };
        let acquire = match patience(&mut rng) {
            None => acquire.try_now(),
            Some(wait) => acquire.timeout(wait),
        };
        let acquired = if rng.percent(15) {
            // Dropped in the middle of whatever it is doing.
            match tokio::time::timeout(rng.ms(0, 2_000), acquire.into_future()).await {
                Ok(acquired) => acquired,
                Err(_) => continue,
            }
        } else {
            acquire.await
        };
        process.awake().await;
        if let Ok(guard) = acquired {
            hold(&context, &process, name, mode, guard, &mut rng).await;
        }
    }
}

async fn hold(
    context: &WorkloadContext,
    process: &SimProcess,
    name: &str,
    mode: LockMode,
    guard: Guard,
    rng: &mut SimRng,
) {
    let (subject, guard) = (lock_line(name), Arc::new(guard));
    let token = guard.token();
    let was_valid = guard.clone();
    let believing = context.track_hold(process, &subject, token, mode, move || was_valid.is_valid());
    for _ in 0..rng.below(4) {
        let step = rng.ms(1, 1_500);
        let worked = guard.run(async {
            process.rest(step).await;
            context.acted(process, &subject, token, guard.is_valid());
            if mode == LockMode::Exclusive {
                context.write_guarded(process, &subject, &guard.fence()).await;
            }
        });
        if worked.await.is_err() {
            break;
        }
    }
    if rng.percent(20) {
        // Waits for the worst, as a holder with a long task does.
        let _ = tokio::time::timeout(Duration::from_secs(10), guard.lost()).await;
    }
    process.awake().await;
    drop(believing);
    let Some(guard) = Arc::into_inner(guard) else { return };
    if rng.percent(80) {
        // The audit shows the result; an error here means that the hold was lost before.
        let _ = guard.release().await;
    }
}
