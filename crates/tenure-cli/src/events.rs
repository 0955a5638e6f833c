//! `tenure events`: what happened, from the store's own history. Nothing extra is written for it, so it reaches back as far as the store does.

mod line;

use clap::Args;
use futures_util::StreamExt;
use tenure::events::{Event, EventKind, Events};
use tenure::store::{Get, Revision, Store, StoreError};
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use self::line::Line;
use crate::failure::{Code, Failure};
use crate::kv::parse_revision_or_zero;
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Go on with what happens from now on, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this revision; with all that the store still knows if not given.
    #[arg(long, value_name = "REV", value_parser = parse_revision_or_zero)]
    after: Option<Revision>,
}

/// Shows what has happened.
pub(crate) async fn run(
    args: &EventsArgs,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let mut events = Events::new(store, namespace);
    if let Some(after) = args.after {
        events = events.after(after);
    }
    if args.follow {
        events = events.follow();
    }
    let mut events = match events.await {
        Err(StoreError::FutureRevision) => return Err(not_happened(args, store, namespace).await?),
        events => events?,
    };
    if args.follow {
        output.note("following; Ctrl-C ends");
    }
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| Failure::from(error).while_doing("history broke off"))?;
        show(&event, output)?;
    }
    Ok(())
}

/// The revision to begin after lies in the future.
async fn not_happened(args: &EventsArgs, store: &Store, namespace: &Namespace) -> Result<Failure, Failure> {
    let everything = Layout::new(namespace).everything();
    let now = store.get(Get::new(everything).limit(1).keys_only()).await?.revision;
    let after = args.after.unwrap_or(Revision::ZERO);
    let message = format!("the store is at revision {now}, and {after} has not happened");
    Ok(Failure::new(Code::FutureRevision, message).hint(format!("begin with `--after {now}`")))
}

fn show(event: &Event, output: &Output) -> Result<(), Failure> {
    match &event.kind {
        EventKind::HistoryCompacted { after } => {
            let up_to = event.revision;
            output.note(&format!("the store has forgotten what happened between {after} and {up_to}"));
        }
        EventKind::Interrupted { reason } => {
            output.note(&format!("the store was lost, trying again: {reason}"));
        }
        _ => {}
    }
    let Some(line) = Line::of(event) else { return Ok(()) };
    if output.is_json {
        return output.object(&line);
    }
    output.record([&line.revision, line.subject, line.event, &line.name, &line.details()])
}
