//! The task behind one leadership: moves answers into the machine, and the machine's questions to the storage.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tenure_core::leadership::{Answer, Ask, End, Left, Standing};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::elections::{AcquireError, Key, Shared};
use super::leadership::Leadership;
use super::stamp::Value;
use super::storage::{StorageError, TtlStorage};
use super::term::{Step, Term};
use crate::dice;

/// What the task is for.
pub(super) struct Errand<K, V> {
    pub(super) key: K,
    /// What is stored under the key: the value with the nonce of this acquisition.
    pub(super) stored: V,
    pub(super) ttl: Duration,
    pub(super) term: Arc<Term>,
    pub(super) reply: oneshot::Sender<Result<Leadership<K>, AcquireError>>,
}

/// What the storage said.
struct Reply {
    ask: Ask,
    asked_at: Moment,
    answer: Result<Said, StorageError>,
}

enum Said {
    Yes,
    No,
    Token(Token),
}

type Asking<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// How the storage has failed us.
#[derive(Default)]
struct Trouble {
    last: Option<StorageError>,
    is_now: bool,
}

/// What woke the task.
enum Event {
    Leave,
    Told,
    Answered(Reply),
    Time,
}

/// Ends the term however the task ends: also when it is dropped with its runtime.
struct Ending<'a, K: Key, V: Value, S: TtlStorage<K, V>> {
    shared: &'a Shared<K, V, S>,
    key: &'a K,
    term: &'a Arc<Term>,
    end: Option<End>,
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Drop for Ending<'_, K, V, S> {
    fn drop(&mut self) {
        self.shared.vacate(self.key, self.term);
        self.shared.note_end(self.key, self.end);
        self.term.end(self.end);
    }
}

/// Runs from the first question until nothing is left to do.
pub(super) async fn drive<K, V, S>(shared: Arc<Shared<K, V, S>>, errand: Errand<K, V>)
where
    K: Key,
    V: Value,
    S: TtlStorage<K, V>,
{
    let Errand { key, stored, ttl, term, reply } = errand;
    let mut ending = Ending { shared: &shared, key: &key, term: &term, end: None };
    let mut reply = Some(reply);
    let mut trouble = Trouble::default();
    let mut is_leaving = false;
    let mut calls: FuturesUnordered<Asking<'_>> = FuturesUnordered::new();
    loop {
        // First of all the time: whoever slept past the end must know it before anything else is done.
        let Step { asks, standing, wake, failures } = term.step();
        for (ask, asked_at) in asks {
            calls.push(call(&shared.storage, &key, &stored, ttl, ask, asked_at));
        }
        if matches!(standing, Standing::Leaving(_) | Standing::Over(_)) {
            shared.vacate(&key, &term);
        }
        if standing != Standing::Acquiring
            && let Some(reply) = reply.take()
        {
            let outcome = outcome(standing, trouble.last.clone(), shared.is_closed(), || {
                Leadership::new(key.clone(), term.clone())
            });
            if let Ok(leadership) = &outcome {
                info!(?key, token = ?leadership.token(), "leadership acquired");
            }
            // One who does not wait any more drops what it is told, and with it the leadership.
            let _ = reply.send(outcome);
        }
        let (Some(wake), false) = (wake, matches!(standing, Standing::Over(_))) else {
            if let Standing::Over(end) = standing {
                ending.end = Some(end);
                say_end(&key, end);
            }
            break;
        };
        let event = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            () = shared.close.cancelled(), if !is_leaving => Event::Leave,
            () = gone(reply.as_mut()), if !is_leaving => Event::Leave,
            () = term.bell.notified() => Event::Told,
            Some(reply) = calls.next(), if !calls.is_empty() => Event::Answered(reply),
            () = shared.clock.sleep_until(wake) => Event::Time,
        };
        match event {
            Event::Leave => {
                is_leaving = true;
                term.leave();
            }
            Event::Told | Event::Time => {}
            Event::Answered(reply) => {
                let answer = judge(&key, &term, reply.answer, failures, &mut trouble);
                term.handle_answer(reply.ask, reply.asked_at, answer, dice::throw());
            }
        }
    }
}

/// What the caller of `acquire` is told, once it is decided.
fn outcome<K>(
    standing: Standing,
    error: Option<StorageError>,
    is_closed: bool,
    leadership: impl FnOnce() -> Leadership<K>,
) -> Result<Leadership<K>, AcquireError> {
    let failed = || {
        let too_late = || StorageError::unknown("the answer came too late to be of use");
        AcquireError::Storage(error.unwrap_or_else(too_late))
    };
    match standing {
        Standing::Acquiring | Standing::Leading => Ok(leadership()),
        Standing::Leaving(End::Held | End::Taken) | Standing::Over(End::Held | End::Taken) => {
            Err(AcquireError::Held)
        }
        // Only closing stops somebody who still waits for the answer.
        Standing::Stopping | Standing::Leaving(End::Left(_)) | Standing::Over(End::Left(_)) => {
            Err(AcquireError::Closed)
        }
        Standing::Leaving(End::NotTaken | End::Lapsed) | Standing::Over(End::NotTaken | End::Lapsed) => {
            Err(if is_closed { AcquireError::Closed } else { failed() })
        }
    }
}

/// Done when nobody waits for the answer any more.
async fn gone<T>(reply: Option<&mut oneshot::Sender<T>>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

/// Asks the storage. One that panics has not answered.
fn call<'a, K, V, S>(
    storage: &'a S,
    key: &'a K,
    stored: &'a V,
    ttl: Duration,
    ask: Ask,
    asked_at: Moment,
) -> Asking<'a>
where
    K: Key,
    V: Value,
    S: TtlStorage<K, V>,
{
    let said = |is_done| if is_done { Said::Yes } else { Said::No };
    let asking = async move {
        match ask {
            Ask::Insert => storage.insert_if_absent(key, stored, ttl).await.map(said),
            Ask::Swap => storage.compare_and_swap(key, stored, stored, ttl).await.map(said),
            Ask::Delete => storage.compare_and_delete(key, stored).await.map(said),
            Ask::Token => Ok(storage.token(key, stored).await?.map_or(Said::No, Said::Token)),
        }
    };
    Box::pin(async move {
        let answer = AssertUnwindSafe(asking).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| Err(StorageError::unknown("the storage panicked")));
        Reply { ask, asked_at, answer }
    })
}

/// An answer as the machine knows it. The first failure is told, and its end.
fn judge<K: Key>(
    key: &K,
    term: &Term,
    answer: Result<Said, StorageError>,
    failures: u32,
    trouble: &mut Trouble,
) -> Answer {
    match answer {
        Ok(said) => {
            if std::mem::take(&mut trouble.is_now) {
                info!(?key, failures, "the storage answers again");
            }
            match said {
                Said::Yes => Answer::Yes,
                Said::No => Answer::No,
                Said::Token(token) => {
                    term.note_token(token);
                    Answer::Yes
                }
            }
        }
        Err(error) => {
            if !std::mem::replace(&mut trouble.is_now, true) {
                warn!(?key, %error, "the storage fails, trying again");
            }
            let answer = if error.is_unknown() { Answer::Unknown } else { Answer::NotApplied };
            trouble.last = Some(error);
            answer
        }
    }
}

fn say_end<K: Key>(key: &K, end: End) {
    match end {
        End::Held | End::NotTaken => debug!(?key, "leadership not taken"),
        End::Lapsed => warn!(?key, "leadership lapsed"),
        End::Taken => warn!(?key, "leadership taken away"),
        End::Left(Left::Nothing) => info!(?key, "leadership released"),
        End::Left(left) => warn!(?key, ?left, "leadership given up"),
    }
}
