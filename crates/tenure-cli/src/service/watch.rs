//! `service watch`: prints the instances, then every change, one per line, flushed, until Ctrl-C or `--count`.

use std::num::NonZeroU64;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::service::{Instance, InstanceEvent, InstanceWatch, Services};
use tenure::store::{Revision, StoreError};
use tenure_core::id::InstanceId;

use super::rows::{InstanceRow, UnreadableInstance};
use super::{SCHEMA, ServiceNameArg};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

#[derive(Args, Debug)]
pub(crate) struct ServiceWatchArgs {
    #[command(flatten)]
    service: ServiceNameArg,
    /// End after this many changes; the instances at the beginning do not count.
    #[arg(long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// End with exit code 8 after this time.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

pub(super) async fn watch(
    args: &ServiceWatchArgs,
    services: &Services,
    output: &Output,
) -> Result<(), Failure> {
    let following = follow(args, services.watch(&args.service.name), output);
    match args.wait {
        None => following.await,
        Some(wait) => tokio::time::timeout(wait, following).await.unwrap_or_else(|_| {
            Err(Failure::new(Code::TimedOut, format!("not enough changes within {wait:?}"))
                .hint("wait longer with --wait, or list the instances with `tenure service show`"))
        }),
    }
}

async fn follow(args: &ServiceWatchArgs, mut watch: InstanceWatch, output: &Output) -> Result<(), Failure> {
    let mut seen = 0;
    let mut at = Revision::ZERO;
    while let Some(event) = watch.next().await {
        let event = event?;
        let is_change = !matches!(
            event,
            InstanceEvent::Snapshot(_) | InstanceEvent::Stale { .. } | InstanceEvent::Fresh { .. }
        );
        report(&event, &mut at, output)?;
        if let InstanceEvent::Snapshot(_) = event {
            output.note("watching; Ctrl-C ends");
        }
        seen += u64::from(is_change);
        if args.count.is_some_and(|count| seen >= count.get()) {
            return Ok(());
        }
    }
    Err(StoreError::Closed.into())
}

/// One line of the stream.
#[derive(Serialize)]
struct InstanceLine {
    schema: &'static str,
    revision: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instances: Option<Vec<InstanceRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_aside: Option<Vec<UnreadableInstance>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

impl InstanceLine {
    fn new(event: &'static str, revision: Revision) -> InstanceLine {
        let revision = revision.to_string();
        InstanceLine {
            schema: SCHEMA,
            revision,
            event,
            instance: None,
            instances: None,
            set_aside: None,
            id: None,
        }
    }

    fn of(event: &'static str, revision: Revision, instance: &Instance) -> InstanceLine {
        InstanceLine { instance: Some(InstanceRow::new(instance)), ..InstanceLine::new(event, revision) }
    }

    fn of_id(event: &'static str, revision: Revision, id: &InstanceId) -> InstanceLine {
        InstanceLine { id: Some(id.to_string()), ..InstanceLine::new(event, revision) }
    }
}

/// Prints an event. `at` is the last printed revision, for events that have none.
fn report(event: &InstanceEvent, at: &mut Revision, output: &Output) -> Result<(), Failure> {
    let (line, revision) = match event {
        InstanceEvent::Snapshot(list) => {
            *at = list.revision;
            return report_snapshot(list, output);
        }
        InstanceEvent::Joined(instance) => {
            (InstanceLine::of("joined", instance.modified, instance), instance.modified)
        }
        InstanceEvent::Updated { now, .. } => (InstanceLine::of("updated", now.modified, now), now.modified),
        InstanceEvent::Left { member, revision } => (InstanceLine::of("left", *revision, member), *revision),
        InstanceEvent::Unreadable(aside) => {
            let line = InstanceLine {
                set_aside: Some(vec![UnreadableInstance::new(aside)]),
                ..InstanceLine::of_id("set_aside", aside.modified, &aside.id)
            };
            (line, aside.modified)
        }
        InstanceEvent::Cleared { id, revision } => (InstanceLine::of_id("cleared", *revision, id), *revision),
        InstanceEvent::Stale { .. } => (InstanceLine::new("stale", *at), *at),
        InstanceEvent::Fresh { revision } => (InstanceLine::new("fresh", *revision), *revision),
    };
    *at = (*at).max(revision);
    write_line(line, output)
}

fn report_snapshot(list: &tenure::service::InstanceSnapshot, output: &Output) -> Result<(), Failure> {
    let shown = list.members().iter().map(|instance| InstanceRow::new(instance));
    if output.is_json {
        let set_aside = list.set_aside().iter().map(UnreadableInstance::new).collect();
        return output.object(&InstanceLine {
            instances: Some(shown.collect()),
            set_aside: Some(set_aside),
            ..InstanceLine::new("snapshot", list.revision)
        });
    }
    for instance in list.members() {
        write_line(InstanceLine::of("present", list.revision, instance), output)?;
    }
    for aside in list.set_aside() {
        write_line(InstanceLine::of_id("set_aside", list.revision, &aside.id), output)?;
    }
    Ok(())
}

fn write_line(line: InstanceLine, output: &Output) -> Result<(), Failure> {
    if output.is_json {
        return output.object(&line);
    }
    let mut cells = vec![line.revision, line.event.to_owned()];
    if let Some(instance) = line.instance {
        let location = instance.location();
        cells.push(instance.into_row().swap_remove(0));
        cells.push(location);
    }
    cells.extend(line.id);
    output.record(cells)
}
