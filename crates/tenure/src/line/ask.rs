//! A line's wishes as transactions, and what their answers mean.

use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::{PREFERRED, Place, Rank};
use tenure_core::line::{Action, Asks, Before, EnterGuard, Entered, Left, Looked, Then, Ticket};
use tenure_core::revision::{Epoch, Token};

use super::acquired::Recorded;
use super::lines::Slot;
use super::post::Answers;
use crate::session::Session;
use crate::store::{
    Cause, Comparison, Condition, Field, Get, KeyValue, LeaseId, Op, OpReply, Order, Page, Selection, Store,
    StoreError, Txn, TxnReply,
};

/// An action, with what has to be known to ask for it.
pub(super) struct Question {
    pub(super) slot: Slot,
    /// The prefix under which the places of the line are.
    pub(super) line: Bytes,
    pub(super) action: Action,
    /// What is put, if something is.
    pub(super) value: Bytes,
}

/// What came of an action.
pub(super) enum Answer {
    Entered(Ticket, Epoch, Entered, Others),
    Looked(Ticket, Epoch, Looked, Others),
    Left(Ticket, Epoch, Left, Others),
    /// The beginning of a hold was written, or not.
    Recorded(Ticket, Recorded),
}

impl Answer {
    /// Whether somebody rests before asking again.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Answer::Entered(_, _, answer, _) => matches!(answer, Entered::NotDone | Entered::Unknown),
            Answer::Looked(_, _, answer, _) => matches!(answer, Looked::NotDone),
            Answer::Left(_, _, answer, _) => matches!(answer, Left::NotDone | Left::Unknown),
            Answer::Recorded(..) => false,
        }
    }
}

/// The preferred places of the line at the revision at which a place was seen to be its first; none if they were not asked for, or are too many.
pub(crate) type Others = Option<Arc<[KeyValue]>>;

/// What is asked beside who is before us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regard {
    /// Nothing.
    Before,
    /// Which preferred places there are, and what they say of themselves: they may be behind us and yet come first.
    Preferred,
}

/// What all requests of a queue driver have in common.
pub(super) struct Terms {
    pub(super) regard: Regard,
    /// Below the nonces of all places that this driver ever had.
    pub(super) nonce_first: u64,
    /// The prefix of the enter guards.
    pub(super) guards: Bytes,
}

impl Terms {
    /// The key of the enter guard of this driver and a lease. With a guard for all drivers of a lease, a lost request of one would
    /// refuse the next enter of every other.
    fn guard(&self, lease: LeaseId) -> Bytes {
        let guard = Place { lease, nonce: self.nonce_first };
        [&self.guards[..], guard.to_string().as_bytes()].concat().into()
    }
}

/// How many places of a line are shown at once: it is read once for so many hand-offs. Doubled, every such look carries that much more.
const SHOWN_MAX: u32 = 128;

/// How many preferred places are shown; if there are more, whoever is next reads the whole line in one more request.
const PREFERRED_MAX: u32 = 128;

/// Over how many keys that we may have left behind a look goes: fewer cost less than a second look around them. etcd walks over each that was
/// ever there until its history is compacted.
const LEFT_BEHIND_MAX: u64 = 16;

/// The key of a place.
pub(super) fn key(line: &Bytes, place: Place) -> Bytes {
    place.key_in(line)
}

/// The place that a key names; none if the key is a stranger's.
pub(super) fn place(line: &Bytes, key: &[u8]) -> Option<Place> {
    std::str::from_utf8(key.strip_prefix(&line[..])?).ok().and_then(Place::parse)
}

/// Does actions of different lines, each with an answer of its own, in as few requests as possible.
pub(super) async fn ask(session: Session, terms: Terms, request: Vec<Question>) -> Answers {
    let txn = |question: &Question| txn(&question.line, question.action, &question.value, &terms);
    let store = session.store();
    let mut txns: Vec<Txn> = request.iter().map(txn).collect();
    let replies = match (txns.pop(), txns.is_empty()) {
        (Some(only), true) => vec![store.txn(only).await],
        (Some(last), false) => {
            txns.push(last);
            store.batch(txns).await
        }
        (None, _) => Vec::new(),
    };
    let mut answers = Vec::with_capacity(request.len());
    for (Question { slot, line, action, .. }, reply) in request.into_iter().zip(replies) {
        if let Err(error) = &reply {
            session.note_failure(error);
        }
        answers.push((slot, understand(store, &terms, &line, action, reply).await));
    }
    answers
}

fn txn(line: &Bytes, action: Action, value: &Bytes, terms: &Terms) -> Txn {
    let (regard, nonce_first) = (terms.regard, terms.nonce_first);
    // A stranger's key is looked past in a second request.
    let newest_of = |select| Get::new(select).order(Order::CreatedDescending).limit(1).keys_only();
    let newest = || newest_of(Selection::Prefix(line.clone()));
    let whole = |limit| Get::prefix(line.clone()).order(Order::Created).limit(limit);
    // Nobody has to read a line of a thousand to learn that all are equal.
    let preferred = || {
        let from = [&line[..], PREFERRED.as_bytes()].concat().into();
        let end = Selection::Prefix(line.clone()).end().unwrap_or_default();
        Op::Get(Get::new(Selection::Range(from, end)).order(Order::Created).limit(PREFERRED_MAX))
    };
    let with_preferred = |txn: Txn| match regard {
        Regard::Before => txn,
        Regard::Preferred => txn.then(preferred()),
    };
    let own = |place: Place| Op::Get(Get::key(key(line, place)).keys_only());
    match action {
        Action::Enter { place, asks, may_be_there, guard, .. } => {
            let key = key(line, place);
            let guard_key = terms.guard(place.lease);
            // If this request is taken for lost and its place is left, the guard changes: then this cannot be applied.
            let txn = Txn::new()
                .when(guard.unchanged(guard_key.clone()))
                .otherwise(Op::Get(Get::key(guard_key).keys_only()));
            // No other client puts this key, so it is compared only if an earlier request may have put it.
            let txn = if may_be_there {
                txn.when(Condition::absent(key.clone())).otherwise(own(place))
            } else {
                txn
            };
            // Before the put: in a line without others there is nothing to show.
            let txn = match asks {
                Asks::Nobody => txn,
                Asks::All => txn.then(Op::Get(newest())),
                // Its key is apart from the ordinary ones, so what is around it is not all there is.
                Asks::Others if place.rank() == Rank::Preferred => txn.then(Op::Get(newest())),
                Asks::Others if place.nonce - nonce_first <= LEFT_BEHIND_MAX => txn.then(Op::Get(newest())),
                // What was before it is gone; what is after it may have been put meanwhile.
                Asks::Others => {
                    let ours = self::key(line, Place { nonce: nonce_first, ..place });
                    let end = Selection::Prefix(line.clone()).end().unwrap_or_default();
                    txn.then(Op::Get(newest_of(Selection::Range(line.clone(), ours))))
                        .then(Op::Get(newest_of(Selection::Range(key.clone(), end))))
                }
            };
            txn.then(Op::put_leased(key, value.clone(), place.lease))
        }
        Action::Look { place, token, before, .. } => {
            let rest = || Op::Get(newest().created_max(token.0.previous()));
            let (before, is_holder) = match before {
                Before::Unknown => return with_preferred(Txn::new().then(own(place)).then(rest())),
                Before::Nobody => return Txn::new().then(own(place)),
                Before::Nearest(before) => (key(line, before), false),
                Before::Holder(before) => (key(line, before), true),
            };
            // The store searches the line only if that one is gone. A place that was put a second time may stand behind us.
            let is_before =
                Condition { key: before.clone(), is: Comparison::Less, field: Field::Created(token.0) };
            let txn = Txn::new()
                .when(Condition::exists(before))
                .when(is_before)
                .then(own(place))
                .otherwise(own(place));
            let txn = if is_holder { txn } else { txn.otherwise(rest()) };
            match regard {
                Regard::Before => txn,
                Regard::Preferred => txn.otherwise(preferred()),
            }
        }
        // Nobody else ever has the same key, and we have it again only when nothing of this can still be under way: nothing but this very place
        // can be deleted.
        Action::Leave { place, then, settles, .. } => {
            let delete = || Op::delete(key(line, place));
            let reads: Vec<Op> = match then {
                Then::Nothing => Vec::new(),
                Then::Next(next, _) => vec![own(next)],
                Then::Line => vec![Op::Get(whole(SHOWN_MAX).keys_only())],
            };
            let has_preferred = regard == Regard::Preferred && !reads.is_empty();
            let reads = || reads.iter().cloned().chain(has_preferred.then(preferred));
            let Some(guard) = settles else {
                return reads().fold(Txn::new().then(delete()), Txn::then);
            };
            // A guard that differs already refuses the lost enter as well as a new one.
            let key = terms.guard(place.lease);
            let txn = Txn::new()
                .when(guard.unchanged(key.clone()))
                .then(delete())
                .then(Op::put_leased(key.clone(), Bytes::new(), place.lease))
                .otherwise(delete())
                .otherwise(Op::Get(Get::key(key).keys_only()));
            reads().fold(txn, |txn, read| txn.then(read.clone()).otherwise(read))
        }
    }
}

async fn understand(
    store: &Store,
    terms: &Terms,
    line: &Bytes,
    action: Action,
    reply: Result<TxnReply, StoreError>,
) -> Answer {
    let regard = terms.regard;
    match action {
        Action::Enter { ticket, epoch, place, asks, guard, .. } => {
            let is_new = reply.as_ref().is_ok_and(|reply| reply.succeeded);
            let entered = match reply {
                Ok(reply) => entered(store, line, (place, asks, guard), reply).await,
                Err(error) => Err(error),
            };
            let others: Others = match entered {
                Ok(Entered::Stands { before: None, .. }) if is_new && regard == Regard::Preferred => {
                    Some(Arc::new([]))
                }
                _ => None,
            };
            Answer::Entered(ticket, epoch, entered.unwrap_or_else(not_entered), others)
        }
        Action::Look { ticket, epoch, place, token, before } => {
            let (looked, others) = match reply {
                Ok(reply) => looked(store, line, (place, token, before), reply).await,
                Err(error) => (Err(error), None),
            };
            Answer::Looked(ticket, epoch, looked.unwrap_or(Looked::NotDone), others)
        }
        Action::Leave { ticket, epoch, then, settles, .. } => {
            let (left, others) = left(line, (then, settles), reply);
            Answer::Left(ticket, epoch, left, others)
        }
    }
}

fn not_entered(error: StoreError) -> Entered {
    match error {
        StoreError::LeaseNotFound => Entered::LeaseGone,
        StoreError::Ambiguous(_) => Entered::Unknown,
        StoreError::Invalid(_) | StoreError::Denied(_) => Entered::Refused(error),
        error if error.is_fatal() => Entered::Refused(error),
        _ => Entered::NotDone,
    }
}

async fn entered(
    store: &Store,
    line: &Bytes,
    (own, asks, guard): (Place, Asks, EnterGuard),
    reply: TxnReply,
) -> Result<Entered, StoreError> {
    let is_new = reply.succeeded;
    let mut pages = pages(reply.results).into_iter();
    let guard_now = if is_new { guard } else { guard_in(pages.next()) };
    let found: Vec<KeyValue> = pages.flat_map(|page| page.pairs).collect();
    let token = if is_new {
        Token(reply.revision)
    } else {
        let key = key(line, own);
        match found.iter().find(|pair| pair.key == key) {
            Some(mine) => Token(mine.created),
            None if guard_now != guard => return Ok(Entered::Stale { guard: guard_now }),
            // Our own request came twice, and the place of the first was deleted before the second was answered.
            None => return Ok(Entered::NotDone),
        }
    };
    let before = match asks {
        Asks::Nobody => return Ok(Entered::Joined { token }),
        Asks::Others | Asks::All if is_new => nearest(store, line, (own, token), &found).await,
        Asks::Others | Asks::All => before(store, line, (own, token)).await,
    };
    match before {
        Ok(before) => Ok(Entered::Stands { token, before }),
        // It stands, only who is before it is not known: asking to enter again is the same as looking.
        Err(_) => Ok(Entered::Unknown),
    }
}

async fn looked(
    store: &Store,
    line: &Bytes,
    (own, token, seen_before): (Place, Token, Before),
    reply: TxnReply,
) -> (Result<Looked, StoreError>, Others) {
    let is_still_there = reply.succeeded;
    let mut pages = pages(reply.results).into_iter();
    let stands = |page: Page| {
        page.pairs.first().is_some_and(|pair| pair.created == token.0 && pair.key == key(line, own))
    };
    match pages.next().map(stands) {
        None => return (Ok(Looked::NotDone), None),
        Some(false) => return (Ok(Looked::Missing), None),
        Some(true) => {}
    }
    let before = match seen_before {
        Before::Nearest(before) | Before::Holder(before) if is_still_there => {
            return (Ok(Looked::Stands { before: Some(before) }), None);
        }
        Before::Unknown | Before::Nearest(_) => {
            let Some(rest) = pages.next() else { return (Ok(Looked::NotDone), None) };
            nearest(store, line, (own, token), &rest.pairs).await
        }
        Before::Holder(_) | Before::Nobody => Ok(None),
    };
    let others = preferred(pages.next()).filter(|_| matches!(before, Ok(None)));
    (before.map(|before| Looked::Stands { before }), others)
}

/// The enter guard that a page shows.
fn guard_in(page: Option<Page>) -> EnterGuard {
    EnterGuard(page.and_then(|page| Some(page.pairs.first()?.modified)))
}

fn left(
    line: &Bytes,
    (then, settles): (Then, Option<EnterGuard>),
    reply: Result<TxnReply, StoreError>,
) -> (Left, Others) {
    let reply = match reply {
        Ok(reply) => reply,
        // Every key and every lost enter under the lease ended with it.
        Err(StoreError::LeaseNotFound) => {
            return (Left::Gone { was_there: false, first: Vec::new(), guard: None }, None);
        }
        // Nothing can be asked of such a store any more; the place ends with its lease.
        Err(error) if error.is_fatal() => {
            return (Left::Gone { was_there: false, first: Vec::new(), guard: None }, None);
        }
        Err(StoreError::Ambiguous(_)) => return (Left::Unknown, None),
        Err(_) => return (Left::NotDone, None),
    };
    let was_there = matches!(reply.results.first(), Some(OpReply::Delete { count }) if *count > 0);
    let mut pages = pages(reply.results).into_iter();
    let guard = settles
        .map(|_| if reply.succeeded { EnterGuard(Some(reply.revision)) } else { guard_in(pages.next()) });
    let Some(page) = pages.next() else {
        return (Left::Gone { was_there, first: Vec::new(), guard }, None);
    };
    let mut first = places(line, &page);
    if let Then::Next(next, token) = then
        && first.first() != Some(&(next, token))
    {
        // It is not there any more, or has been put anew.
        first.clear();
    }
    (Left::Gone { was_there, first, guard }, preferred(pages.next()))
}

/// The preferred places, if they were asked for and are all shown.
fn preferred(page: Option<Page>) -> Others {
    page.filter(|page| !page.more).map(|page| page.pairs.into())
}

/// The places of a page, in its order; strangers' keys are nobody.
fn places(line: &Bytes, page: &Page) -> Vec<(Place, Token)> {
    page.pairs.iter().filter_map(|pair| Some((place(line, &pair.key)?, Token(pair.created)))).collect()
}

/// The newest of the keys that were found before us; if a stranger's is among them, which are nobody's, the whole line is looked through.
async fn nearest(
    store: &Store,
    line: &Bytes,
    (own, token): (Place, Token),
    found: &[KeyValue],
) -> Result<Option<Place>, StoreError> {
    let places: Option<Vec<_>> =
        found.iter().map(|pair| Some((pair.created, place(line, &pair.key)?))).collect();
    match places {
        Some(places) => Ok(places.into_iter().max_by_key(|(created, _)| *created).map(|(_, place)| place)),
        None => before(store, line, (own, token)).await,
    }
}

/// The nearest place before our own, looked for in the whole line.
///
/// Our own is read with the others once more. What was read of it before this may be old: when it has gone since, and those before it too, nobody
/// is before it, and it would hold without being there.
async fn before(
    store: &Store,
    line: &Bytes,
    (own, token): (Place, Token),
) -> Result<Option<Place>, StoreError> {
    let page = store.get(Get::prefix(line.clone()).created_max(token.0).keys_only()).await?;
    let is_own = |pair: &KeyValue| pair.created == token.0 && place(line, &pair.key) == Some(own);
    if !page.pairs.iter().any(is_own) {
        return Err(StoreError::Unavailable(Cause::new("the place has gone since it was read")));
    }
    let is_older = |pair: &&KeyValue| pair.created < token.0;
    let older = |pair: &KeyValue| Some((pair.created, place(line, &pair.key)?));
    Ok(page
        .pairs
        .iter()
        .filter(is_older)
        .filter_map(older)
        .max_by_key(|(created, _)| *created)
        .map(|(_, place)| place))
}

fn pages(results: Vec<OpReply>) -> Vec<Page> {
    let page = |result| match result {
        OpReply::Get(page) => Some(page),
        OpReply::Put | OpReply::Delete { .. } => None,
    };
    results.into_iter().filter_map(page).collect()
}

#[cfg(test)]
mod tests;
