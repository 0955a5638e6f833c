//! `tenure locks`: lists locks with their holders and waiters, and breaks locks.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde::Serialize;
use tenure::Identity;
use tenure::lock::{Holder, LockList, LockSnapshot, Locks};
use tenure::session::Session;
use tenure::store::{LeaseId, LeaseView, Revision, Store};
use tenure_core::id::{LockName, Namespace};
use tenure_core::revision::Token;

use crate::confirm::ConfirmArgs;
use crate::failure::{Code, Failure};
use crate::lease_remaining;
use crate::lock::{SCHEMA, held_by, held_for, parse};
use crate::node::format_time;
use crate::output::Output;

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum LocksCommand {
    /// List the held locks: name, token, number of holders and waiters, held for, holder.
    #[command(alias = "list")]
    Ls,
    /// Show the holders and the waiters of a lock.
    #[command(aliases = ["get", "describe"])]
    Show {
        /// The lock's name.
        name: String,
    },
    /// Revoke a lock from its holder. Exit 3 if it has no holder, 4 if the holder has another token.
    ///
    /// The holder notices it within a round trip and stops. Until then only a check of its fencing token rejects its writes.
    Break {
        /// The lock's name.
        name: String,
        /// Only from the holder with this token, as listings show it.
        #[arg(long, value_name = "T", conflicts_with = "force")]
        token: Option<i64>,
        /// From every holder, however many there are.
        #[arg(long)]
        force: bool,
        /// The reason; `tenure events` shows it.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &LocksCommand, output: &Output) -> Result<(), Failure> {
    match command {
        LocksCommand::Ls => Ok(()),
        LocksCommand::Show { name } => parse(name).map(drop),
        LocksCommand::Break { name, confirm, .. } => {
            let name = parse(name)?;
            let (what, preview) = (format!("breaking '{name}'"), format!("tenure locks show {name}"));
            confirm.check(&what, &preview, output)
        }
    }
}

/// Runs a verb on an open store.
pub(crate) async fn run(
    command: &LocksCommand,
    store: &Store,
    namespace: &Namespace,
    identity: Identity,
    output: &Output,
) -> Result<(), Failure> {
    // A session without registrations sends no request, so it needs no lease and no close.
    let session = Session::open(store.clone()).map_err(|error| Failure::usage(error.to_string()))?;
    let locks = Locks::new(&session, namespace).identity(identity);
    match command {
        LocksCommand::Ls => list(&locks, store, output).await,
        LocksCommand::Show { name } => show(&parse(name)?, &locks, store, output).await,
        LocksCommand::Break { name, token, force, reason, confirm } => {
            let token = token.map(|token| Token(Revision(token)));
            let options = BreakOptions { token, force: *force, reason, confirm: *confirm };
            break_lock(&parse(name)?, options, &locks, output).await
        }
    }
}

#[derive(Serialize)]
struct LockRow {
    name: String,
    held: bool,
    token: Option<String>,
    holders: Vec<HolderRow>,
    waiters: Vec<WaiterRow>,
}

#[derive(Serialize)]
struct HolderRow {
    node: String,
    pid: u32,
    user: String,
    command: String,
    reason: String,
    /// When it acquired the lock; null if its record does not contain that yet.
    since: Option<String>,
    /// When it entered the queue.
    queued: Option<String>,
    lease: String,
    ttl_seconds: Option<f64>,
    remaining_seconds: Option<f64>,
    token: String,
}

#[derive(Serialize)]
struct WaiterRow {
    node: String,
    pid: u32,
    position: usize,
    /// When it entered the queue.
    since: Option<String>,
}

impl LockRow {
    fn new(view: &LockSnapshot, leases: &BTreeMap<LeaseId, LeaseView>) -> LockRow {
        let holder = |holder: &Holder| {
            let lease = leases.get(&holder.place.lease);
            let record = holder.record.clone();
            HolderRow {
                node: record.node,
                pid: record.pid,
                user: record.user,
                command: record.command,
                reason: record.reason,
                since: record.acquired.and_then(format_time),
                queued: format_time(record.queued),
                lease: holder.place.lease.to_string(),
                ttl_seconds: lease.map(|lease| lease.granted.as_secs_f64()),
                remaining_seconds: lease.map(|lease| lease.remaining.as_secs_f64()),
                token: holder.token.to_string(),
            }
        };
        let waiter = |(index, waiter): (usize, &Holder)| WaiterRow {
            node: waiter.record.node.clone(),
            pid: waiter.record.pid,
            position: index + 1,
            since: format_time(waiter.record.queued),
        };
        LockRow {
            name: view.name.to_string(),
            held: !view.holders.is_empty(),
            token: view.holders.first().map(|first| first.token.to_string()),
            holders: view.holders.iter().map(holder).collect(),
            waiters: view.waiters.iter().enumerate().map(waiter).collect(),
        }
    }
}

async fn list(locks: &Locks, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LockListReport {
        schema: &'static str,
        locks: Vec<LockRow>,
        backend: &'static str,
        revision: String,
    }
    let LockList { locks: views, revision } = locks.list().await?;
    if output.is_json {
        let holders = views.iter().flat_map(|view| &view.holders).map(|holder| holder.place.lease);
        let leases = lease_remaining::views(store, holders).await?;
        let (backend, revision) = (store.info().kind, revision.to_string());
        let locks = views.iter().map(|view| LockRow::new(view, &leases)).collect();
        return output.object(&LockListReport { schema: SCHEMA, locks, backend, revision });
    }
    let row = |view: &LockSnapshot| {
        let first = view.holders.first();
        let token = first.map_or("-".to_owned(), |first| first.token.to_string());
        let by = first.map_or("-".to_owned(), |first| first.record.identity().to_string());
        let since = first.and_then(|first| held_for(&first.record)).unwrap_or("-".to_owned());
        vec![
            view.name.to_string(),
            token,
            view.holders.len().to_string(),
            view.waiters.len().to_string(),
            since,
            by,
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    output.table(&["name", "token", "holders", "waiters", "for", "held by"], &rows)
}

async fn show(name: &LockName, locks: &Locks, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LockShowReport {
        schema: &'static str,
        #[serde(flatten)]
        shown: LockRow,
        backend: &'static str,
        revision: String,
    }
    let view = locks.get(name).await?;
    let leases = lease_remaining::views(store, view.holders.iter().map(|holder| holder.place.lease)).await?;
    let shown = LockRow::new(&view, &leases);
    if output.is_json {
        let (backend, revision) = (store.info().kind, view.revision.to_string());
        return output.object(&LockShowReport { schema: SCHEMA, shown, backend, revision });
    }
    let dash = || "-".to_owned();
    let holders = shown.holders.into_iter().map(|holder| {
        vec![
            "holds".to_owned(),
            holder.token,
            holder.node,
            holder.pid.to_string(),
            holder.user,
            holder.since.unwrap_or_else(dash),
            holder.remaining_seconds.map_or_else(dash, |left| format!("{left:.1}")),
            holder.command,
            holder.reason,
        ]
    });
    let waiters = view.waiters.iter().map(|waiter| {
        vec![
            "waits".to_owned(),
            waiter.token.to_string(),
            waiter.record.node.clone(),
            waiter.record.pid.to_string(),
            waiter.record.user.clone(),
            format_time(waiter.record.queued).unwrap_or_else(dash),
            dash(),
            waiter.record.command.clone(),
            waiter.record.reason.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = holders.chain(waiters).collect();
    if rows.is_empty() {
        output.note(&format!("'{name}' has no holder"));
    }
    let heading = ["", "token", "node", "pid", "user", "since", "lease s", "command", "reason"];
    output.table(&heading, &rows)
}

/// The flags of `locks break`.
struct BreakOptions<'a> {
    token: Option<Token>,
    force: bool,
    reason: &'a str,
    confirm: ConfirmArgs,
}

/// Breaks a lock: deletes the queue keys of its holders.
async fn break_lock(
    name: &LockName,
    BreakOptions { token, force, reason, confirm }: BreakOptions<'_>,
    locks: &Locks,
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct LockBreakReport {
        schema: &'static str,
        name: String,
        broken: Vec<BrokenRow>,
    }
    #[derive(Serialize)]
    struct BrokenRow {
        token: String,
        node: String,
        pid: u32,
        lease: String,
    }
    let view = locks.get(name).await?;
    let victims = victims(&view, token, force)?;
    let holders: Vec<String> = victims.iter().map(|victim| victim.record.identity().to_string()).collect();
    confirm.prompt(&format!("break '{name}', held by {}", holders.join(" and ")), output).await?;
    let mut broken = Vec::new();
    for victim in victims {
        if locks.break_hold(name, victim, reason).await? {
            broken.push(victim);
        } else if !force {
            return Err(Failure::new(
                Code::Conflict,
                format!("{} has released '{name}' in the meantime", victim.record.identity()),
            )
            .hint(format!("see the new holder with `tenure locks show {name}`")));
        }
    }
    for victim in &broken {
        output.note(&format!(
            "broke '{name}', held by {}, token {}: the holder notices it within a round trip, and until then only a check of its fencing \
             token rejects its writes",
            victim.record.identity(),
            victim.token
        ));
    }
    if !output.is_json {
        return broken.iter().try_for_each(|victim| output.record([victim.token.to_string()]));
    }
    let broken = broken.into_iter().map(|victim| BrokenRow {
        token: victim.token.to_string(),
        node: victim.record.node.clone(),
        pid: victim.record.pid,
        lease: victim.place.lease.to_string(),
    });
    output.object(&LockBreakReport { schema: SCHEMA, name: name.to_string(), broken: broken.collect() })
}

/// The holders that lose the lock.
fn victims(view: &LockSnapshot, token: Option<Token>, force: bool) -> Result<Vec<&Holder>, Failure> {
    let name = &view.name;
    let Some(by) = held_by(view) else {
        return Err(Failure::new(Code::NotFound, format!("'{name}' has no holder"))
            .hint("list the held locks with `tenure locks ls`"));
    };
    if let Some(token) = token {
        let found = view.holders.iter().find(|holder| holder.token == token);
        return found.map(|holder| vec![holder]).ok_or_else(|| {
            Failure::new(Code::Conflict, format!("'{name}' is {by}, not by a holder with token {token}"))
                .hint(format!("see `tenure locks show {name}`"))
        });
    }
    if view.holders.len() > 1 && !force {
        return Err(Failure::new(Code::Conflict, format!("'{name}' is {by}"))
            .hint("choose one with --token, or break all with --force"));
    }
    Ok(view.holders.iter().collect())
}
