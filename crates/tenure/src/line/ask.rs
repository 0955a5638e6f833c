//! A line's wishes as transactions, and what their answers mean.

use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::Place;
use tenure_core::line::{Action, Entered, Left, Looked, Ticket};
use tenure_core::revision::{Epoch, Token};

use crate::store::{
    Condition, Get, KeyValue, Op, OpReply, Order, Page, Revision, Store, StoreError, Txn, TxnReply,
};

/// What came of an action.
pub(super) enum Answer {
    Entered(Ticket, Epoch, Entered, Others),
    Looked(Ticket, Epoch, Looked, Others),
    Left(Ticket, Epoch, Left),
}

/// The line at the revision at which a place was seen to be its first; none if that was not asked for, or is too long.
pub(crate) type Others = Option<Arc<[KeyValue]>>;

/// What is asked beside who is before us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regard {
    /// Nothing.
    Before,
    /// Who is behind us, and what they say of themselves.
    Everybody,
}

/// How many of those behind us one look shows. Few lines are longer, and those cost one more request; doubled, every change of a long line carries
/// that much more for nothing.
const BEHIND_MAX: u32 = 128;

/// The key of a place.
pub(super) fn key(line: &Bytes, place: Place) -> Bytes {
    let mut key = line.to_vec();
    key.extend_from_slice(place.to_string().as_bytes());
    key.into()
}

/// The place that a key names; none if the key is a stranger's.
pub(super) fn place(line: &Bytes, key: &[u8]) -> Option<Place> {
    std::str::from_utf8(key.strip_prefix(&line[..])?).ok().and_then(Place::parse)
}

/// Does actions of different lines, each with an answer of its own, in as few requests as possible.
pub(super) async fn ask(
    store: Store,
    regard: Regard,
    request: Vec<(Bytes, Action, Bytes)>,
) -> Vec<(Bytes, Answer)> {
    let txn = |(line, action, value): &(Bytes, Action, Bytes)| txn(line, *action, value, regard);
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
    for ((line, action, _), reply) in request.into_iter().zip(replies) {
        let answer = understand(&store, &line, action, reply).await;
        answers.push((line, answer));
    }
    answers
}

fn txn(line: &Bytes, action: Action, value: &Bytes, regard: Regard) -> Txn {
    // Two are enough to see past ourselves; a stranger's key in between is looked past in a second request.
    let newest =
        |line: &Bytes| Get::prefix(line.clone()).order(Order::CreatedDescending).limit(2).keys_only();
    match action {
        Action::Enter { place, .. } => {
            let key = key(line, place);
            Txn::new()
                .when(Condition::absent(key.clone()))
                .then(Op::put_leased(key.clone(), value.clone(), place.lease))
                .then(Op::Get(newest(line)))
                .otherwise(Op::Get(Get::key(key).keys_only()))
        }
        Action::Look { place, token, .. } => {
            let txn = Txn::new()
                .then(Op::Get(Get::key(key(line, place)).keys_only()))
                .then(Op::Get(newest(line).created_max(token.0.previous())));
            let everybody = || Get::prefix(line.clone()).order(Order::Created).limit(BEHIND_MAX);
            match regard {
                Regard::Before => txn,
                Regard::Everybody => txn.then(Op::Get(everybody())),
            }
        }
        // The key names its place, and nobody else ever has the same: nothing but our own place can be deleted.
        Action::Leave { place, .. } => Txn::new()
            .then(Op::delete(key(line, place)))
            .then(Op::Get(Get::prefix(line.clone()).order(Order::Created).limit(2).keys_only())),
    }
}

async fn understand(
    store: &Store,
    line: &Bytes,
    action: Action,
    reply: Result<TxnReply, StoreError>,
) -> Answer {
    match action {
        Action::Enter { ticket, epoch, place, .. } => {
            let is_new = reply.as_ref().is_ok_and(|reply| reply.succeeded);
            let entered = match reply {
                Ok(reply) => entered(store, line, place, reply).await,
                Err(error) => Err(error),
            };
            let others: Others = match entered {
                Ok(Entered::Stands { before: None, .. }) if is_new => Some(Arc::new([])),
                _ => None,
            };
            Answer::Entered(ticket, epoch, entered.unwrap_or_else(not_entered), others)
        }
        Action::Look { ticket, epoch, place, token } => {
            let (looked, others) = match reply {
                Ok(reply) => looked(store, line, place, token, reply).await,
                Err(error) => (Err(error), None),
            };
            Answer::Looked(ticket, epoch, looked.unwrap_or(Looked::NotDone), others)
        }
        Action::Leave { ticket, epoch, .. } => Answer::Left(ticket, epoch, left(line, reply)),
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

async fn entered(store: &Store, line: &Bytes, own: Place, reply: TxnReply) -> Result<Entered, StoreError> {
    let mut pages = pages(reply.results);
    let page = pages.pop().unwrap_or_else(|| empty(reply.revision));
    let key = key(line, own);
    let Some(mine) = page.pairs.iter().find(|pair| pair.key == key) else {
        // Our own request came twice, and the place of the first was deleted before the second was answered.
        return Ok(Entered::NotDone);
    };
    let token = Token(mine.created);
    let before = if reply.succeeded {
        nearest(store, line, token, &page, Some(&key)).await
    } else {
        before(store, line, token).await
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
    own: Place,
    token: Token,
    reply: TxnReply,
) -> (Result<Looked, StoreError>, Others) {
    let mut pages = pages(reply.results).into_iter();
    let (Some(mine), Some(older)) = (pages.next(), pages.next()) else { return (Ok(Looked::NotDone), None) };
    let stands = mine.pairs.first().is_some_and(|pair| pair.created == token.0 && pair.key == key(line, own));
    if !stands {
        return (Ok(Looked::Missing), None);
    }
    let before = nearest(store, line, token, &older, None).await;
    let others = pages.next().filter(|everybody| !everybody.more && matches!(before, Ok(None)));
    let others = others.map(|everybody| everybody.pairs.into());
    (before.map(|before| Looked::Stands { before }), others)
}

fn left(line: &Bytes, reply: Result<TxnReply, StoreError>) -> Left {
    let reply = match reply {
        Ok(reply) => reply,
        // Nothing can be asked of such a store any more; the place ends with its lease.
        Err(error) if error.is_fatal() => return Left::Gone { was_there: false, head: None },
        Err(StoreError::Ambiguous(_)) => return Left::Unknown,
        Err(_) => return Left::NotDone,
    };
    let was_there = matches!(reply.results.first(), Some(OpReply::Delete { count }) if *count > 0);
    let head = pages(reply.results).pop().and_then(|page| {
        let first = page.pairs.first()?;
        Some((place(line, &first.key)?, Token(first.created)))
    });
    Left::Gone { was_there, head }
}

/// The newest place of a page that was asked for newest first, except our own; strangers' keys are nobody.
async fn nearest(
    store: &Store,
    line: &Bytes,
    token: Token,
    page: &Page,
    own: Option<&Bytes>,
) -> Result<Option<Place>, StoreError> {
    let mut strangers = false;
    for pair in page.pairs.iter().filter(|pair| Some(&pair.key) != own) {
        match place(line, &pair.key) {
            Some(place) => return Ok(Some(place)),
            None => strangers = true,
        }
    }
    if strangers { before(store, line, token).await } else { Ok(None) }
}

/// The nearest place before a token, looked for in the whole line.
async fn before(store: &Store, line: &Bytes, token: Token) -> Result<Option<Place>, StoreError> {
    let older = Get::prefix(line.clone()).created_max(token.0.previous()).keys_only();
    let page = store.get(older).await?;
    let older = |pair: &KeyValue| Some((pair.created, place(line, &pair.key)?));
    Ok(page.pairs.iter().filter_map(older).max_by_key(|(created, _)| *created).map(|(_, place)| place))
}

fn pages(results: Vec<OpReply>) -> Vec<Page> {
    let page = |result| match result {
        OpReply::Get(page) => Some(page),
        OpReply::Put | OpReply::Delete { .. } => None,
    };
    results.into_iter().filter_map(page).collect()
}

fn empty(revision: Revision) -> Page {
    Page { pairs: Vec::new(), more: false, revision }
}
