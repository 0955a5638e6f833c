//! One key that is ours alone: taken if nobody has it, kept through a session, watched, and given up when somebody else got it.
//!
//! A node's membership and a service's instance are both a seat. The session keeps the key in the store; the seat knows whose it is, by
//! a nonce in the record, and under which token, by looking at the key itself.

mod keep;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tenure_core::record::Record;
use tenure_core::revision::Token;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::feed::{Feed, FeedItem};
use crate::session::{RegisterError, Session};
use crate::store::{KeyValue, Revision, Selection, Store, StoreError};

pub use keep::{Standing, Successor};

/// Only one seat at a time is asked for in a process: between looking whether a session has a key already and asking for it,
/// nobody else may ask. Held for a moment, never across a wait.
static ASKING: Mutex<()> = Mutex::new(());

/// What a seat is taken with.
pub(crate) struct Ask {
    pub(crate) store: Store,
    pub(crate) session: Session,
    pub(crate) key: Bytes,
    pub(crate) nonce: String,
    /// How long the store may take.
    pub(crate) within: Duration,
    /// How long to wait for another holder to go.
    pub(crate) wait: Duration,
}

/// A seat that was taken.
pub(crate) struct Seat {
    store: Store,
    session: Session,
    key: Bytes,
    nonce: String,
    standing: watch::Receiver<Standing>,
    /// Changes are made one after another: the later must be the one that stays.
    updating: tokio::sync::Mutex<()>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    is_given_up: AtomicBool,
}

/// Why a seat was not taken.
pub(crate) enum NotTaken {
    /// Somebody else has it.
    Held(KeyValue),
    /// This very session has it, or is about to.
    OurOwn,
    /// The session says no.
    Session(RegisterError),
    /// The store says no.
    Store(StoreError),
}

impl Seat {
    /// Takes the seat with the value that `value` makes of the store's revision just before.
    pub(crate) async fn take(ask: Ask, value: impl Fn(Revision) -> Bytes) -> Result<Seat, NotTaken> {
        let (until, patience) = (Instant::now() + ask.within, Instant::now() + ask.wait);
        let not_yet = || NotTaken::Session(RegisterError::NotYet { within: ask.within });
        loop {
            let looking = timeout_at(until.max(patience), look(&ask.store, &ask.key));
            let (found, revision) = looking.await.map_err(|_| not_yet())?.map_err(NotTaken::Store)?;
            if let Some(pair) = found {
                if ask.session.keys().contains(&ask.key) {
                    return Err(NotTaken::OurOwn);
                }
                if timeout_at(patience, gone(&ask.store, &ask.key)).await.is_err() {
                    return Err(NotTaken::Held(pair));
                }
                continue;
            }
            match register(&ask, value(revision), until.max(patience)).await {
                // Between two looks somebody else took it: the next look shows who, or that they are gone again.
                Err(NotTaken::Session(RegisterError::Taken)) => {}
                Err(error) => return Err(error),
                Ok(wish) => return Seat::sit(ask, wish, until.max(patience)).await,
            }
        }
    }

    /// The key is in the store: watches over it, and waits until it was seen there.
    async fn sit(ask: Ask, wish: Wish, until: Instant) -> Result<Seat, NotTaken> {
        let stop = CancellationToken::new();
        let (told, mut standing) = watch::channel(Standing::Lost);
        let keeper = keep::Keeper {
            session: ask.session.clone(),
            key: ask.key.clone(),
            nonce: ask.nonce.clone(),
            told,
            stop: stop.clone(),
        };
        let feed = Feed::open(ask.store.clone(), Selection::Key(ask.key.clone())).map_err(NotTaken::Store)?;
        let seat = Seat {
            task: Mutex::new(Some(tokio::spawn(keeper.keep(feed)))),
            store: ask.store,
            session: ask.session,
            key: ask.key,
            nonce: ask.nonce,
            standing: standing.clone(),
            updating: tokio::sync::Mutex::new(()),
            stop,
            is_given_up: AtomicBool::new(false),
        };
        // From here on the seat itself withdraws the key when it is dropped.
        wish.keep();
        let seen = timeout_at(until, standing.wait_for(|standing| !matches!(standing, Standing::Lost))).await;
        match seen.map(|seen| seen.map(|standing| standing.clone())) {
            Ok(Ok(Standing::Member(_))) => Ok(seat),
            Ok(Ok(Standing::Displaced(other))) => Err(NotTaken::Held(other.0)),
            Ok(Ok(Standing::Left | Standing::Lost) | Err(_)) => Err(NotTaken::Session(RegisterError::Closed)),
            Err(_) => Err(NotTaken::Session(RegisterError::NotYet { within: ask.within })),
        }
    }

    /// Changes a record and puts it in the same place: token and incarnation stay. One that is refused stays as it was.
    pub(crate) async fn update<R: Record + Clone>(
        &self,
        record: &Mutex<R>,
        change: impl FnOnce(&mut R),
        within: Duration,
    ) -> Result<(), UpdateError> {
        let _turn = self.updating.lock().await;
        let (before, value) = {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            let before = record.clone();
            change(&mut record);
            (before, record.encode())
        };
        let answer = self.put(value, within).await;
        if matches!(answer, Err(UpdateError::Refused(_))) {
            *record.lock().unwrap_or_else(PoisonError::into_inner) = before;
        }
        answer
    }

    async fn put(&self, value: Bytes, within: Duration) -> Result<(), UpdateError> {
        match &*self.standing.borrow() {
            Standing::Displaced(_) => return Err(UpdateError::Displaced),
            Standing::Left => return Err(UpdateError::Left),
            Standing::Member(_) | Standing::Lost => {}
        }
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(UpdateError::Left);
        }
        // Create-only: it replaces a value of our own, and nobody else's.
        let register = self.session.register(self.key.clone(), value).create_only().within(within);
        match register.await {
            Ok(_) => Ok(()),
            Err(RegisterError::Invalid(invalid)) => Err(UpdateError::Refused(invalid.into())),
            Err(RegisterError::NotYet { within }) => Err(UpdateError::NotYet { within }),
            Err(RegisterError::Taken) => {
                // The session does not want the key any more; who has it now is seen by the keeper, or they are gone again.
                let mut standing = self.standing.clone();
                let is_over =
                    |standing: &Standing| matches!(standing, Standing::Displaced(_) | Standing::Left);
                let _ = timeout(within, standing.wait_for(is_over)).await;
                self.give_up();
                Err(UpdateError::Displaced)
            }
            Err(RegisterError::Refused(error)) => {
                self.give_up();
                Err(UpdateError::Refused(error))
            }
            Err(RegisterError::Closed | RegisterError::Superseded) => Err(UpdateError::Left),
            Err(error @ RegisterError::Ttl(_)) => unreachable!("the TTL is the session's own: {error}"),
        }
    }

    /// How it stands now; a lease that is over by the clock counts as lost, whatever was told so far.
    pub(crate) fn standing(&self) -> Standing {
        let standing = self.standing.borrow().clone();
        match standing {
            Standing::Member(_) if self.session.remaining().is_zero() => Standing::Lost,
            Standing::Member(_) | Standing::Lost | Standing::Displaced(_) | Standing::Left => standing,
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self.standing() {
            Standing::Member(token) => Some(token),
            Standing::Lost | Standing::Displaced(_) | Standing::Left => None,
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// Waits until it is not certainly held under this token any more. Only a loss that is over, under the same token, before
    /// anybody looked can be missed, and then nobody else can have had the seat.
    pub(crate) async fn lost(&self, token: Token) {
        let mut standing = self.standing.clone();
        // It fails only when the keeper is gone, and then nobody keeps the seat.
        let _ = standing.wait_for(|standing| *standing != Standing::Member(token)).await;
    }

    /// Gives the seat up and waits until it is seen to be free of us.
    pub(crate) async fn leave(&self, within: Duration) -> Result<(), LeaveError> {
        self.give_up();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It was told to stop, and says what it has to say through the standing.
            let _ = task.await;
        }
        match timeout(within, self.left()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(LeaveError { within, ends_within: self.session.remaining() }),
        }
    }

    /// Waits until the store was seen without our key.
    async fn left(&self) {
        let Ok(mut feed) = Feed::open(self.store.clone(), Selection::Key(self.key.clone())) else { return };
        let mut is_there = false;
        while let Some(Ok(item)) = feed.next().await {
            match item {
                FeedItem::Put(pair) => is_there = keep::nonce(&pair.value).as_deref() == Some(&self.nonce),
                FeedItem::Delete { .. } => is_there = false,
                FeedItem::Whole(_) if !is_there => return,
                FeedItem::Begin | FeedItem::Whole(_) => {}
            }
        }
        // The store says nothing any more: that it is free is not known, so wait for the caller's bound.
        std::future::pending::<()>().await;
    }

    /// Withdraws the key, once; the session deletes it if it is still ours.
    fn give_up(&self) {
        if !self.is_given_up.swap(true, Ordering::AcqRel) {
            // One who was displaced has withdrawn it already, and by now the wish may be another seat's.
            if !matches!(&*self.standing.borrow(), Standing::Displaced(_)) {
                self.session.unregister(self.key.clone());
            }
            self.stop.cancel();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Asks the session for the key, if it has not got it already.
async fn register(ask: &Ask, value: Bytes, until: Instant) -> Result<Wish, NotTaken> {
    let within = until.saturating_duration_since(Instant::now());
    let register = ask.session.register(ask.key.clone(), value).create_only().within(within);
    let mut registering = register.into_future();
    let (wish, at_once) = {
        let _turn = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if ask.session.keys().contains(&ask.key) {
            return Err(NotTaken::OurOwn);
        }
        // The first look makes the wish; the answer comes later.
        (Wish::new(ask), (&mut registering).now_or_never())
    };
    let answer = match at_once {
        Some(answer) => answer,
        None => registering.await,
    };
    match answer {
        Ok(_) => Ok(wish),
        // Still wanted: withdrawn as this returns.
        Err(error @ RegisterError::NotYet { .. }) => Err(NotTaken::Session(error)),
        Err(error) => {
            // Nothing is wanted any more, or by now it is another's wish.
            wish.keep();
            Err(NotTaken::Session(error))
        }
    }
}

/// A wish that is withdrawn unless it is kept: whoever drops a future must not leave a member behind.
struct Wish(Option<(Session, Bytes)>);

impl Wish {
    fn new(ask: &Ask) -> Wish {
        Wish(Some((ask.session.clone(), ask.key.clone())))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        if let Some((session, key)) = self.0.take() {
            session.unregister(key);
        }
    }
}

/// What is under a key, and at which revision; a store that cannot be reached is tried again.
async fn look(store: &Store, key: &Bytes) -> Result<(Option<KeyValue>, Revision), StoreError> {
    let mut feed = Feed::open(store.clone(), Selection::Key(key.clone()))?;
    let mut found = None;
    while let Some(item) = feed.next().await {
        match item? {
            FeedItem::Begin => {}
            FeedItem::Put(pair) => found = Some(pair),
            FeedItem::Delete { .. } => found = None,
            FeedItem::Whole(revision) => return Ok((found, revision)),
        }
    }
    Err(StoreError::Closed)
}

/// Waits until a key is gone.
async fn gone(store: &Store, key: &Bytes) {
    if let Ok(mut feed) = Feed::open(store.clone(), Selection::Key(key.clone())) {
        let mut is_there = false;
        while let Some(Ok(item)) = feed.next().await {
            match item {
                FeedItem::Put(_) => is_there = true,
                FeedItem::Delete { .. } => is_there = false,
                FeedItem::Whole(_) if !is_there => return,
                FeedItem::Begin | FeedItem::Whole(_) => {}
            }
        }
    }
    std::future::pending::<()>().await;
}

/// Why what a member says of itself was not changed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// Somebody else has the id: this handle is no member any more.
    #[error("somebody else has taken this id, so there is nothing of ours to change")]
    Displaced,
    /// It has left, or its session was closed.
    #[error("it has left already")]
    Left,
    /// The store did not answer in time. The change is still wanted and will be made when it answers.
    #[error("the store did not take the change within {within:?}; it will be made when the store answers")]
    NotYet {
        /// How long was waited.
        within: Duration,
    },
    /// The store will never take it.
    #[error("the store refuses the change")]
    Refused(#[source] StoreError),
}

/// Leaving could not be seen through: the key ends by itself with its lease, if the store is up.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "the store did not confirm it within {within:?}; what is left there ends by itself within {ends_within:?}"
)]
pub struct LeaveError {
    /// How long was waited.
    pub within: Duration,
    /// When the key is gone at the latest, if the store is up; zero if the lease is over already.
    pub ends_within: Duration,
}
