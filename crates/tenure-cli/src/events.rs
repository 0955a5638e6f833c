//! `tenure events`: what happened, folded from the store's own history. Nothing extra is written for it, so it reaches back as far as the store does.

mod fold;
mod lines;

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use tenure::core::layout::Layout;
use tenure::core::name::Namespace;
use tenure::store::{
    Get, Op, OpReply, Previous, Revision, Selection, Start, Store, StoreError, Txn, WatchEnd, WatchItem,
};

use self::fold::{Event, Fold};
use crate::failure::{Code, Failure};
use crate::kv::parse_revision_or_zero;
use crate::output::Output;

/// How long the store may say nothing before its history counts as read. It ends with the revision that was current when we asked; only a store
/// whose revisions were moved by hand has none there.
const QUIET: Duration = Duration::from_secs(5);

/// How long to wait for a store that was lost, before it is asked again.
const REST: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Go on with what happens from now on, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Begin after this revision; with all that the store still knows if not given.
    #[arg(long, value_name = "REV", value_parser = parse_revision_or_zero)]
    after: Option<Revision>,
}

/// How far to read.
#[derive(Clone, Copy)]
enum Until {
    /// To the revision that is current now.
    Revision(Revision),
    /// For ever.
    Never,
}

/// Why reading stopped.
enum Stop {
    /// Everything was read.
    Done,
    /// History up to this revision is gone: go on from there.
    Compacted(Revision),
    /// The store was lost after this revision.
    Lost(Revision, StoreError),
}

/// Tells what has happened.
pub(crate) async fn run(
    args: &EventsArgs,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let layout = Layout::new(namespace);
    let now = store.get(Get::new(layout.everything()).limit(1).keys_only()).await?.revision;
    let mut from = args.after.unwrap_or(Revision::ZERO);
    if from > now {
        let message = format!("the store is at revision {now}, and {from} has not happened");
        return Err(Failure::new(Code::FutureRevision, message).hint(format!("begin with `--after {now}`")));
    }
    let until = if args.follow { Until::Never } else { Until::Revision(now) };
    if args.follow {
        output.note("following; Ctrl-C ends");
    }
    let mut is_first = args.after.is_none();
    loop {
        match read(from, until, store, &layout, output).await? {
            Stop::Done => return Ok(()),
            Stop::Compacted(at) => {
                // That the store does not know everything is no news unless somebody asked for it.
                if !is_first {
                    output.note(&format!("the store has forgotten what happened between {from} and {at}"));
                }
                from = at.max(Revision(from.0 + 1));
            }
            Stop::Lost(at, error) if args.follow && !error.is_fatal() => {
                output.note(&format!("the store was lost, trying again: {error}"));
                from = at;
                // Its return may come sooner.
                let _ = tokio::time::timeout(REST, store.returned()).await;
            }
            Stop::Lost(_, error) => return Err(Failure::from(error).while_doing("history broke off")),
        }
        is_first = false;
    }
}

async fn read(
    from: Revision,
    until: Until,
    store: &Store,
    layout: &Layout,
    output: &Output,
) -> Result<Stop, Failure> {
    let mut fold = Fold::new(layout.clone());
    match lines_at(from, store, layout).await {
        Ok(mut pairs) => {
            // In the order of their creation, not of their keys: by it a candidate is known that waited behind another one.
            pairs.sort_by_key(|pair| pair.created);
            pairs.iter().for_each(|pair| fold.seed(pair));
        }
        Err(StoreError::Compacted { at: Some(at) }) => return Ok(Stop::Compacted(at)),
        Err(error) if error.is_retryable() => return Ok(Stop::Lost(from, error)),
        Err(error) => return Err(error.into()),
    }
    let select = match until {
        // A revision is somebody's, perhaps not ours: only all of them together certainly end with the current one.
        Until::Revision(now) if now > from && now > Revision(1) => Selection::everything(),
        Until::Revision(_) => return Ok(Stop::Done),
        Until::Never => layout.everything(),
    };
    let watch = store.watch(select, Start::After(from), Previous::Included).await;
    let mut watch = match watch {
        // A user with a grant on the namespace alone: the store itself reports its progress there, a little later.
        Err(StoreError::Denied(_)) => {
            store.watch(layout.everything(), Start::After(from), Previous::Included).await?
        }
        watch => watch?,
    };
    let mut at = from;
    loop {
        let item = match until {
            Until::Never => watch.next().await,
            Until::Revision(_) => match tokio::time::timeout(QUIET, watch.next()).await {
                Ok(item) => item,
                Err(_) => return Ok(Stop::Done),
            },
        };
        match item {
            None => return Ok(Stop::Lost(at, StoreError::Closed)),
            Some(Err(WatchEnd::Compacted { at })) => return Ok(Stop::Compacted(at)),
            Some(Err(WatchEnd::Lost(error))) => return Ok(Stop::Lost(at, error)),
            Some(Ok(item)) => {
                at = item.revision();
                if let Until::Revision(now) = until
                    && at > now
                {
                    return Ok(Stop::Done);
                }
                if let WatchItem::Batch { changes, .. } = item {
                    fold.handle(&changes).iter().try_for_each(|event| tell(event, output))?;
                }
            }
        }
        if let Until::Revision(now) = until
            && at >= now
        {
            return Ok(Stop::Done);
        }
    }
}

/// Who stood in which line at a revision: history says only who came and went after it.
async fn lines_at(
    from: Revision,
    store: &Store,
    layout: &Layout,
) -> Result<Vec<tenure::store::KeyValue>, StoreError> {
    if from <= Revision(1) {
        return Ok(Vec::new());
    }
    let get = |select| Op::Get(Get::new(select).at(from));
    let reply = store.txn(Txn::new().then(get(layout.locks())).then(get(layout.elections()))).await?;
    let pairs = reply.results.into_iter().flat_map(|result| match result {
        OpReply::Get(page) => page.pairs,
        OpReply::Put | OpReply::Delete { .. } => Vec::new(),
    });
    Ok(pairs.collect())
}

fn tell(event: &Event, output: &Output) -> Result<(), Failure> {
    if output.is_json {
        return output.object(event);
    }
    output.record([&event.revision, event.subject, event.event, &event.name, &event.said()])
}
