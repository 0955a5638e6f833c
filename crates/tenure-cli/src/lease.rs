//! `tenure lease`: lists, shows and revokes the leases of the store, of this and of other programs.

use std::time::Duration;

use clap::Subcommand;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tenure::audit::{AuditAction, AuditRecord};
use tenure::store::{Get, LeaseId, LeaseView, Store, StoreError};
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use crate::audit::Trail;
use crate::confirm::ConfirmArgs;
use crate::failure::{Code, Failure};
use crate::kv::{KvKey, parse_lease};
use crate::output::Output;

/// The `schema` of JSON output about leases.
const SCHEMA: &str = "tenure.lease/v1";

/// The number of lease requests in flight: a list of ten thousand leases takes a second or two and does not load the store.
const IN_FLIGHT: usize = 32;

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum LeaseCommand {
    /// List all leases: id, TTL, remaining time, number of keys.
    #[command(alias = "list")]
    Ls,
    /// Show a lease and its keys; exit 3 if there is none.
    #[command(aliases = ["get", "describe"])]
    Show {
        /// The lease, as listings show it.
        #[arg(value_name = "ID", value_parser = parse_lease)]
        id: LeaseId,
    },
    /// Revoke a lease now; its keys are deleted. Exit 3 if there is none.
    #[command(aliases = ["delete", "rm"])]
    Revoke {
        /// The lease, as listings show it.
        #[arg(value_name = "ID", value_parser = parse_lease)]
        id: LeaseId,
        /// The reason; `tenure events` shows it.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &LeaseCommand, output: &Output) -> Result<(), Failure> {
    match command {
        LeaseCommand::Ls | LeaseCommand::Show { .. } => Ok(()),
        LeaseCommand::Revoke { id, confirm, .. } => {
            confirm.check(&format!("revoking lease {id}"), &format!("tenure lease show {id}"), output)
        }
    }
}

/// Runs a verb on an open store.
pub(crate) async fn run(
    command: &LeaseCommand,
    store: &Store,
    (namespace, trail): (&Namespace, &Trail),
    output: &Output,
) -> Result<(), Failure> {
    match command {
        LeaseCommand::Ls => list(store, namespace, output).await,
        LeaseCommand::Show { id } => show(*id, store, output).await,
        LeaseCommand::Revoke { id, reason, confirm } => {
            let record = trail.record(AuditAction::RevokeLease, id.to_string(), reason);
            revoke((*id, *confirm), store, (trail, record), output).await
        }
    }
}

async fn list(store: &Store, namespace: &Namespace, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LeaseListReport {
        schema: &'static str,
        leases: Vec<LeaseRow>,
        /// False for a user that may not read all keys and therefore does not see all leases.
        #[serde(skip_serializing_if = "Option::is_none")]
        complete: Option<bool>,
    }
    #[derive(Serialize)]
    struct LeaseRow {
        #[serde(flatten)]
        times: LeaseTimes,
        keys: usize,
    }
    let (ids, mut is_complete) = match store.leases().await {
        Ok(ids) => (ids, true),
        // etcd lists all leases to a user that may read the keys of all of them.
        Err(StoreError::Denied(_)) => (of_namespace(store, namespace).await?, false),
        Err(error) => return Err(error.into()),
    };
    let requests = ids.into_iter().map(|id| async move {
        match store.lease(id).await {
            Ok(Some(view)) => Ok(Listed::Shown(id, view)),
            Ok(None) => Ok(Listed::Ended),
            // etcd shows the keys of a lease only to a user that may read them.
            Err(StoreError::Denied(_)) => Ok(Listed::Hidden),
            Err(error) => Err(error),
        }
    });
    let listed: Vec<Listed> = stream::iter(requests).buffer_unordered(IN_FLIGHT).try_collect().await?;
    is_complete &= !listed.iter().any(|listed| matches!(listed, Listed::Hidden));
    let mut found: Vec<(LeaseId, LeaseView)> = listed
        .into_iter()
        .filter_map(|listed| match listed {
            Listed::Shown(id, view) => Some((id, view)),
            Listed::Ended | Listed::Hidden => None,
        })
        .collect();
    found.sort_by_key(|(id, _)| *id);
    if output.is_json {
        let rows = found
            .iter()
            .map(|(id, view)| LeaseRow { times: LeaseTimes::new(*id, view), keys: view.keys.len() });
        return output.object(&LeaseListReport {
            schema: SCHEMA,
            leases: rows.collect(),
            complete: (!is_complete).then_some(false),
        });
    }
    if !is_complete {
        output.note(&format!(
            "leases with keys outside of /{namespace}/, and those without keys, are not shown to this user"
        ));
    }
    let row = |(id, view): &(LeaseId, LeaseView)| {
        vec![id.to_string(), seconds(view.granted), seconds(view.remaining), view.keys.len().to_string()]
    };
    output.table(&["lease", "ttl", "remaining", "keys"], &found.iter().map(row).collect::<Vec<_>>())
}

/// The leases of the keys in the namespace, which every user of the namespace may read.
async fn of_namespace(store: &Store, namespace: &Namespace) -> Result<Vec<LeaseId>, StoreError> {
    let all = Get::new(Layout::new(namespace).everything()).keys_only();
    let mut ids: Vec<LeaseId> = store.get(all).await?.pairs.iter().filter_map(|pair| pair.lease).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A lease of the list, when it was read.
enum Listed {
    Shown(LeaseId, LeaseView),
    /// It ended since it was listed.
    Ended,
    /// It holds keys that this user may not read.
    Hidden,
}

async fn show(id: LeaseId, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LeaseShowReport {
        schema: &'static str,
        #[serde(flatten)]
        times: LeaseTimes,
        keys: Vec<KvKey>,
    }
    let view = store.lease(id).await?.ok_or_else(|| none(id))?;
    if output.is_json {
        let keys = view.keys.iter().map(|key| KvKey::new(key)).collect();
        return output.object(&LeaseShowReport { schema: SCHEMA, times: LeaseTimes::new(id, &view), keys });
    }
    output.record([
        id.to_string(),
        seconds(view.granted),
        seconds(view.remaining),
        view.keys.len().to_string(),
    ])?;
    view.keys.iter().try_for_each(|key| output.record([key]))
}

async fn revoke(
    (id, confirm): (LeaseId, ConfirmArgs),
    store: &Store,
    (trail, record): (&Trail, AuditRecord),
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LeaseRevokeReport {
        schema: &'static str,
        lease: String,
        deleted: usize,
        revision: String,
    }
    let view = store.lease(id).await?.ok_or_else(|| none(id))?;
    let keys = if view.keys.len() == 1 { "key" } else { "keys" };
    let question = format!("revoke lease {id} and delete its {} {keys}", view.keys.len());
    confirm.prompt(&question, output).await?;
    // No store revokes a lease in a transaction. The record comes first: a revoke without a record would have no author.
    let record = AuditRecord { count: Some(view.keys.len() as u64), ..record };
    let entry = trail.put(store, record, output).await?;
    let revision = match store.revoke(id).await {
        Err(StoreError::LeaseNotFound) => {
            trail.withdraw(store, entry).await;
            return Err(none(id));
        }
        revoked => revoked?,
    };
    let deleted = view.keys.len();
    if output.is_json {
        let (lease, revision) = (id.to_string(), revision.to_string());
        return output.object(&LeaseRevokeReport { schema: SCHEMA, lease, deleted, revision });
    }
    output.record([id.to_string(), deleted.to_string(), revision.to_string()])
}

/// The times of a lease, part of every report.
#[derive(Serialize)]
struct LeaseTimes {
    lease: String,
    ttl_seconds: f64,
    remaining_seconds: f64,
}

impl LeaseTimes {
    fn new(id: LeaseId, view: &LeaseView) -> LeaseTimes {
        LeaseTimes {
            lease: id.to_string(),
            ttl_seconds: view.granted.as_secs_f64(),
            remaining_seconds: view.remaining.as_secs_f64(),
        }
    }
}

fn none(id: LeaseId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no lease {id}: it has ended, was revoked or never existed"),
    )
    .hint("list the leases with `tenure lease ls`")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}s", duration.as_secs_f64())
}
