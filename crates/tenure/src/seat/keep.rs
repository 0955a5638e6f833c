//! The task that watches over a seat, and what it says of it.

use std::fmt;

use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use tenure_core::revision::Token;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::feed::{Feed, FeedItem};
use crate::session::{Session, SessionState};
use crate::store::{KeyValue, LeaseId, StoreError};

/// How a member stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is the member, under this token, and its lease is valid.
    Member(Token),
    /// Its lease was lost or its key is gone: it must not act as a member. The session is trying to get it back; a
    /// return is a [`Standing::Member`] with the same token if nobody could have had the id meanwhile, and with a larger one otherwise.
    Lost,
    /// Somebody else has the id. Over for good: nothing of ours is wanted any more.
    Displaced(Successor),
    /// It left, or its session was closed. Over for good.
    Left,
}

/// Who has the id now.
#[derive(Clone, PartialEq, Eq)]
pub struct Successor(pub(crate) KeyValue);

impl Successor {
    /// The other's incarnation.
    pub fn token(&self) -> Token {
        Token(self.0.created)
    }

    /// What the other put there.
    pub fn value(&self) -> &Bytes {
        &self.0.value
    }
}

impl fmt::Debug for Successor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Successor({})", self.token())
    }
}

/// Watches over one key.
pub(super) struct Keeper {
    pub(super) session: Session,
    pub(super) key: Bytes,
    pub(super) nonce: String,
    pub(super) told: watch::Sender<Standing>,
    pub(super) stop: CancellationToken,
}

/// What was last seen of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Seen {
    Nothing,
    /// Under a token, and on a lease unless somebody took it from that.
    Ours(Token, Option<LeaseId>),
    Theirs(KeyValue),
}

enum Event {
    State,
    SessionGone,
    Item(Option<Result<FeedItem, StoreError>>),
}

impl Keeper {
    /// Runs until the seat is given up, or somebody else has it.
    pub(super) async fn keep(self, mut feed: Feed) {
        let mut state = self.session.state();
        let mut seen = Seen::Nothing;
        // What a listing says counts when it is whole.
        let mut coming = Seen::Nothing;
        loop {
            let standing = decide(&state.borrow_and_update(), &seen, |lease| self.session.is_held(lease));
            self.tell(standing);
            if matches!(&*self.told.borrow(), Standing::Displaced(_) | Standing::Left) {
                return;
            }
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.tell(Standing::Left);
                    return;
                }
                changed = state.changed() => if changed.is_ok() { Event::State } else { Event::SessionGone },
                item = feed.next() => Event::Item(item),
            };
            match event {
                Event::State => {}
                Event::SessionGone => {
                    self.tell(Standing::Left);
                    return;
                }
                Event::Item(Some(Ok(item))) => match item {
                    FeedItem::Begin => {}
                    FeedItem::Put(pair) => coming = self.look_at(pair),
                    FeedItem::Delete { .. } => coming = Seen::Nothing,
                    FeedItem::Whole(_) => seen = coming.clone(),
                },
                Event::Item(Some(Err(error))) => {
                    warn!(key = ?self.key, %error, "own key is not watched any more");
                    self.tell(Standing::Left);
                    return;
                }
                Event::Item(None) => {
                    self.tell(Standing::Left);
                    return;
                }
            }
        }
    }

    fn look_at(&self, pair: KeyValue) -> Seen {
        if nonce(&pair.value).as_deref() == Some(&self.nonce) {
            Seen::Ours(Token(pair.created), pair.lease)
        } else {
            Seen::Theirs(pair)
        }
    }

    fn tell(&self, standing: Standing) {
        let is_news = self.told.send_if_modified(|told| {
            let is_news = *told != standing;
            if is_news {
                *told = standing.clone();
            }
            is_news
        });
        if !is_news {
            return;
        }
        match standing {
            Standing::Member(token) => info!(key = ?self.key, %token, "membership held"),
            Standing::Lost => warn!(key = ?self.key, "membership lost, trying to get it back"),
            Standing::Displaced(other) => {
                // Not wanted any more: coming back when the other leaves would be a surprise to everybody.
                self.session.unregister(self.key.clone());
                warn!(key = ?self.key, token = %other.token(), "membership lost to another");
            }
            Standing::Left => info!(key = ?self.key, "membership ended"),
        }
    }
}

/// How it stands, from what the session says and what was seen of the key.
///
/// A session that lives on another lease than the key was seen on has recovered, and the news of the key's end may still be on its way: somebody
/// else may have had the seat since.
fn decide(state: &SessionState, seen: &Seen, is_held: impl Fn(LeaseId) -> bool) -> Standing {
    match (state, seen) {
        (SessionState::Closed { .. }, _) => Standing::Left,
        (_, Seen::Theirs(pair)) => Standing::Displaced(Successor(pair.clone())),
        (SessionState::Live { .. } | SessionState::Suspect { .. }, Seen::Ours(token, Some(lease)))
            if is_held(*lease) =>
        {
            Standing::Member(*token)
        }
        (SessionState::Live { .. } | SessionState::Suspect { .. }, Seen::Ours(..) | Seen::Nothing)
        | (SessionState::Idle | SessionState::Lost { .. }, _) => Standing::Lost,
    }
}

/// The nonce in a stored record, if there is one.
pub(super) fn nonce(value: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Marked {
        nonce: String,
    }
    serde_json::from_slice::<Marked>(value).ok().map(|marked| marked.nonce)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Revision;

    fn live() -> SessionState {
        SessionState::Live { incarnation: 1 }
    }

    #[test]
    fn one_is_a_member_while_its_lease_is_held_and_its_key_is_its_own() {
        let held = LeaseId::new(5).unwrap();
        let ours = Seen::Ours(Token(Revision(7)), Some(held));
        let on_a_former_lease = Seen::Ours(Token(Revision(7)), LeaseId::new(4));
        let on_no_lease = Seen::Ours(Token(Revision(7)), None);
        let suspect = SessionState::Suspect { incarnation: 1, failing_for: Duration::ZERO };
        let other = KeyValue {
            key: "/k".into(),
            value: "theirs".into(),
            created: Revision(9),
            modified: Revision(9),
            version: 1,
            lease: None,
        };
        let displaced = Standing::Displaced(Successor(other.clone()));
        let theirs = Seen::Theirs(other);
        for (state, seen, standing) in [
            (live(), &ours, Standing::Member(Token(Revision(7)))),
            (suspect, &ours, Standing::Member(Token(Revision(7)))),
            (live(), &on_a_former_lease, Standing::Lost),
            (live(), &on_no_lease, Standing::Lost),
            (live(), &Seen::Nothing, Standing::Lost),
            (SessionState::Lost { why: None }, &ours, Standing::Lost),
            (SessionState::Idle, &ours, Standing::Lost),
            (live(), &theirs, displaced.clone()),
            (SessionState::Lost { why: None }, &theirs, displaced),
            (SessionState::Closed { why: None }, &theirs, Standing::Left),
        ] {
            assert_eq!(decide(&state, seen, |lease| lease == held), standing, "{state:?} {seen:?}");
        }
    }

    #[test]
    fn a_record_is_known_by_its_nonce_whatever_else_it_says() {
        assert_eq!(nonce(br#"{"v":1,"nonce":"a","state":"ready"}"#).as_deref(), Some("a"));
        for value in [&b"10.0.0.1:80"[..], b"{}", br#"{"nonce":1}"#, b"\xff"] {
            assert_eq!(nonce(value), None);
        }
    }
}
