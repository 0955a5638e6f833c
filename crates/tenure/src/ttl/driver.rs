//! The driver of one leadership: feeds replies to the machine, and sends its requests to the storage.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
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
use crate::driver::{self, Drive, Event, Next};
use crate::hold::LossReason;

/// What the driver acquires.
pub(super) struct Acquisition<K, V> {
    pub(super) subject: Subject<K, V>,
    pub(super) term: Arc<Term>,
    pub(super) reply: oneshot::Sender<Result<Leadership<K>, AcquireError>>,
}

/// What is stored, and under which key.
pub(super) struct Subject<K, V> {
    pub(super) key: K,
    /// The value with the nonce of this acquisition.
    pub(super) stored: V,
    pub(super) ttl: Duration,
}

/// The reply of the storage.
pub(super) struct Reply {
    ask: Ask,
    asked_at: Moment,
    answer: Result<Said, StorageError>,
}

enum Said {
    Yes,
    No,
    Token(Token),
}

/// The failures of the storage.
#[derive(Default)]
struct Trouble {
    last: Option<StorageError>,
    is_now: bool,
}

/// What happens outside.
enum Input {
    /// Nothing is waited for any more.
    Stop,
    /// The elections are closed, or the caller of `acquire` is gone.
    Leave,
    /// A future that ran under the leadership has ended.
    WorkEnded,
}

/// The driver's task. Its drop ends the term: also when the task is dropped with its runtime.
struct LeadershipTask<K: Key, V: Value, S: TtlStorage<K, V>> {
    shared: Arc<Shared<K, V, S>>,
    subject: Arc<Subject<K, V>>,
    term: Arc<Term>,
    /// To the caller of `acquire`; none once it has the result.
    reply: Option<oneshot::Sender<Result<Leadership<K>, AcquireError>>>,
    trouble: Trouble,
    /// How many requests have failed in a row.
    failures: u32,
    is_leaving: bool,
    is_stopped: bool,
    end: Option<End>,
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Drop for LeadershipTask<K, V, S> {
    fn drop(&mut self) {
        self.shared.vacate(&self.subject.key, &self.term);
        self.shared.note_end(&self.subject.key, self.end);
        self.term.end(self.end);
    }
}

/// Runs from the first request until nothing is left to do.
pub(super) async fn drive<K, V, S>(shared: Arc<Shared<K, V, S>>, acquisition: Acquisition<K, V>)
where
    K: Key,
    V: Value,
    S: TtlStorage<K, V>,
{
    let Acquisition { subject, term, reply } = acquisition;
    let clock = shared.clock.clone();
    let mut task = LeadershipTask {
        shared,
        subject: Arc::new(subject),
        term: term.clone(),
        reply: Some(reply),
        trouble: Trouble::default(),
        failures: 0,
        is_leaving: false,
        is_stopped: false,
        end: None,
    };
    driver::run(&mut task, &term.inbox, &clock).await;
}

impl<K: Key, V: Value, S: TtlStorage<K, V>> Drive for LeadershipTask<K, V, S> {
    type Input = Input;
    type Reply = Reply;

    async fn step(&mut self) -> Next {
        if self.is_stopped {
            return Next::End;
        }
        let Step { asks, standing, wake, failures } = self.term.step();
        self.failures = failures;
        for (ask, asked_at) in asks {
            self.term.inbox.send(call(self.shared.clone(), self.subject.clone(), ask, asked_at));
        }
        let key = &self.subject.key;
        if matches!(standing, Standing::Leaving(_) | Standing::Over(_)) {
            self.shared.vacate(key, &self.term);
        }
        if standing != Standing::Acquiring
            && let Some(reply) = self.reply.take()
        {
            let outcome = outcome(standing, self.trouble.last.clone(), self.shared.is_closed(), || {
                let validity = self.term.validity().expect("a leader has a validity");
                Leadership::new(key.clone(), self.term.clone(), validity.clone())
            });
            if let Ok(leadership) = &outcome {
                info!(?key, token = ?leadership.token(), "leadership acquired");
            }
            // A caller that does not wait any more drops the result, and with it the leadership.
            let _ = reply.send(outcome);
        }
        match (standing, wake) {
            (Standing::Over(end), _) => {
                self.end = Some(end);
                log_end(key, end);
                Next::End
            }
            (_, Some(wake)) => Next::Wait(Some(wake)),
            (_, None) => Next::End,
        }
    }

    fn inputs(&mut self) -> (impl Future<Output = Input> + Send, impl Future<Output = Input> + Send) {
        let LeadershipTask { shared, reply, is_leaving, term, .. } = self;
        let rare = async move {
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => Input::Stop,
                () = shared.close.cancelled(), if !*is_leaving => Input::Leave,
                () = gone(reply.as_mut()), if !*is_leaving => Input::Leave,
                () = term.work_ended() => Input::WorkEnded,
            }
        };
        (rare, std::future::pending())
    }

    fn handle(&mut self, event: Event<Input, Reply>) {
        match event {
            Event::Input(Input::Stop) => self.is_stopped = true,
            Event::Input(Input::Leave) => {
                self.is_leaving = true;
                let is_closed = self.shared.is_closed();
                self.term.leave(if is_closed { LossReason::Closed } else { LossReason::Released });
            }
            // The next step sees it.
            Event::Input(Input::WorkEnded) => {}
            Event::Reply(reply) => {
                let (key, trouble) = (&self.subject.key, &mut self.trouble);
                let answer = judge(key, &self.term, reply.answer, self.failures, trouble);
                self.term.handle_answer(reply.ask, reply.asked_at, answer, dice::throw());
            }
            Event::Wake => {}
        }
    }
}

/// The result of `acquire`.
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
        // Only closing stops a leadership whose caller still waits.
        Standing::Stopping | Standing::Leaving(End::Left(_)) | Standing::Over(End::Left(_)) => {
            Err(AcquireError::Closed)
        }
        Standing::Leaving(End::NotTaken | End::Lapsed) | Standing::Over(End::NotTaken | End::Lapsed) => {
            Err(if is_closed { AcquireError::Closed } else { failed() })
        }
    }
}

/// Completes when the caller does not wait any more.
async fn gone<T>(reply: Option<&mut oneshot::Sender<T>>) {
    match reply {
        Some(reply) => reply.closed().await,
        None => std::future::pending().await,
    }
}

/// Sends a request to the storage. A storage that panics has not replied.
async fn call<K, V, S>(
    shared: Arc<Shared<K, V, S>>,
    subject: Arc<Subject<K, V>>,
    ask: Ask,
    asked_at: Moment,
) -> Reply
where
    K: Key,
    V: Value,
    S: TtlStorage<K, V>,
{
    let said = |is_done| if is_done { Said::Yes } else { Said::No };
    let asking = async {
        let (storage, Subject { key, stored, ttl }) = (&shared.storage, &*subject);
        match ask {
            Ask::Insert => storage.insert_if_absent(key, stored, *ttl).await.map(said),
            Ask::Swap => storage.compare_and_swap(key, stored, stored, *ttl).await.map(said),
            Ask::Delete => storage.compare_and_delete(key, stored).await.map(said),
            Ask::Token => Ok(storage.token(key, stored).await?.map_or(Said::No, Said::Token)),
        }
    };
    let answer = AssertUnwindSafe(asking).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| Err(StorageError::unknown("the storage panicked")));
    Reply { ask, asked_at, answer }
}

/// A reply in the machine's terms. The first failure is logged, and the first success after it.
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
                info!(?key, failures, "storage requests succeed again");
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
                warn!(?key, %error, "storage request failed");
            }
            let answer = if error.is_unknown() { Answer::Unknown } else { Answer::NotApplied };
            trouble.last = Some(error);
            answer
        }
    }
}

fn log_end<K: Key>(key: &K, end: End) {
    match end {
        End::Held | End::NotTaken => debug!(?key, "leadership not taken"),
        End::Lapsed => warn!(?key, "leadership lapsed"),
        End::Taken => warn!(?key, "leadership taken away"),
        End::Left(Left::Nothing) => info!(?key, "leadership released"),
        End::Left(left) => warn!(?key, ?left, "leadership abandoned"),
    }
}
