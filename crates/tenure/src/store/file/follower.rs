//! The thread that follows the log for the watchers of this process, and expires leases on time.
//!
//! It sleeps until the commit notifier wakes it. Because a writer may die before it notifies, the thread also polls twenty times a
//! second, but only while there is a watcher: a read or a write sees the current state anyway.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::store::file::commit_notifier::CommitListener;
use crate::store::file::engine::{Core, EndOnDrop};
use crate::store::file::identity::FileIdentityCheck;
use crate::store::file::job::Job;
use crate::store::file::leases::next_deadline_ms;
use crate::store::file::log::{ReadLimit, read_log};
use crate::store::file::reader::ReadTransaction;
use crate::store::file::rows::Meta;
use crate::store::file::sql::Statements;
use crate::store::file::time::{duration, floor_ms};
use crate::store::{Selection, StoreError};

/// How often it polls without a notification: by this much an event is late if its writer died before it notified. Halving
/// it doubles what an idle process costs.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A poll that takes longer found the processors busy: it usually takes a tenth of a millisecond.
const POLL_SLOW: Duration = Duration::from_millis(3);

/// All processes of a machine see a lease end at the same instant. Each waits up to this many milliseconds more, so that one
/// of them deletes its keys and the others find that done.
const REAP_SPREAD_MS: u8 = 16;

/// How often the file names are checked where the kernel does not report renames and removals.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How much of the log is read at once.
const READ_LIMIT: ReadLimit = ReadLimit { batches: 1_000, bytes: 4 << 20 };

/// Follows until the end.
pub(super) fn run(
    core: &Arc<Core>,
    connection: &Connection,
    files: &FileIdentityCheck,
    store_id: &[u8; 16],
    listener: &CommitListener,
) {
    let _end = EndOnDrop(core);
    let follower = LogFollower { core, files, store_id, sql: Statements::new(connection) };
    // Alive while a request to expire leases is in flight.
    let mut expiring = Weak::new();
    while !core.is_over() {
        let began = Instant::now();
        let is_watching = match follower.follow() {
            Ok(is_watching) => is_watching,
            Err(error) if error.is_fatal() => return core.end(&error),
            Err(error) => {
                tracing::debug!(%error, "log not read");
                true
            }
        };
        let next = core.next_deadline_ms();
        let now = floor_ms(core.options.time.boot());
        if next <= now && expiring.strong_count() == 0 {
            let request = Arc::new(());
            expiring = Arc::downgrade(&request);
            // An empty write: every write transaction expires leases first.
            let (job, _) = Job::new(0, move |_| Ok(Arc::clone(&request)));
            core.writes.join(vec![job]);
        }
        let until_lease = match next {
            i64::MAX => None,
            // Requested, and not yet done.
            next if next <= now => Some(POLL_EVERY),
            next => Some(duration(next - now + spread_ms())),
        };
        let timeout = if is_watching {
            Some(until_lease.map_or(POLL_EVERY, |left| left.min(POLL_EVERY)))
        } else {
            until_lease
        };
        // Where the kernel does not report renames, check for them. Validity must not outlast the files by much.
        let timeout = match timeout {
            _ if listener.watches_names() => timeout,
            None => Some(CHECK_EVERY),
            Some(timeout) => Some(timeout.min(CHECK_EVERY)),
        };
        let took = began.elapsed();
        if is_watching && took > POLL_SLOW {
            // Every commit wakes every process. Where that starves the machine, each process reads less often.
            let pause = (took * 4).min(POLL_EVERY);
            listener.wait(false, Some(timeout.map_or(pause, |timeout| timeout.min(pause))));
            continue;
        }
        listener.wait(is_watching, timeout);
    }
}

fn spread_ms() -> i64 {
    let mut byte = [0];
    // Without random numbers all processes write at once, which is only slower.
    let _ = getrandom::fill(&mut byte);
    i64::from(byte[0] % REAP_SPREAD_MS)
}

struct LogFollower<'c> {
    core: &'c Arc<Core>,
    files: &'c FileIdentityCheck,
    store_id: &'c [u8; 16],
    sql: Statements<'c>,
}

impl LogFollower<'_> {
    /// Reads new changes for the watchers; returns whether there are watchers.
    fn follow(&self) -> Result<bool, StoreError> {
        let (core, sql) = (self.core, &self.sql);
        self.files.check()?;
        loop {
            let Some(position) = core.hub.position() else {
                if core.next_deadline_ms() <= floor_ms(core.options.time.boot()) {
                    // Another process may have renewed or ended it meanwhile.
                    core.note_deadline(next_deadline_ms(sql)?);
                }
                return Ok(false);
            };
            // Before the snapshot, which must contain at least this revision.
            let seen = core.seen();
            let snapshot = ReadTransaction::begin(sql)?;
            self.files.check()?;
            let meta = Meta::read(sql)?;
            meta.check(self.store_id, seen)?;
            core.note_deadline(next_deadline_ms(sql)?);
            if meta.swept > position.0 {
                // Rows that this process has not read are deleted. An open snapshot would only let the log grow.
                drop(snapshot);
                core.hub.skip(position.0, meta.revision, meta.compacted);
                continue;
            }
            core.note_seen(meta.revision);
            if meta.revision <= position.0 {
                return Ok(true);
            }
            let span = (position.0, meta.revision);
            let found = read_log(sql, &Selection::everything(), span, position.1, READ_LIMIT)?;
            // Closed before the watchers are woken: a checkpoint cannot pass an open snapshot.
            drop(snapshot);
            let is_all = found.up_to >= meta.revision;
            core.hub.note(position, found, meta.compacted);
            if is_all && core.hub.position().is_none_or(|(current, _)| current >= meta.revision) {
                return Ok(true);
            }
        }
    }
}
