//! The thread that follows the log for the watchers of this process, and ends leases on time.
//!
//! It sleeps until the notifier rings. Because a writer may die before it rings, it also looks by itself twenty times a second, but
//! only while somebody watches: whoever reads or writes sees the truth anyway.

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

/// How often it looks without being called: what an event may be late when its writer died before it rang. Halving
/// it doubles what an idle process costs.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A look that takes longer found the processors busy: it usually takes a tenth of a millisecond.
const LOOK_SLOW: Duration = Duration::from_millis(3);

/// All processes of a machine see a lease end at the same instant; each waits up to so many milliseconds more, so that one
/// of them ends it and the others find it done.
const REAP_SPREAD_MS: u8 = 16;

/// How often the files are looked at where the kernel does not report that they are renamed or removed.
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
    // Alive while a request to end leases is on its way.
    let mut on_its_way = Weak::new();
    while !core.is_over() {
        let began = Instant::now();
        let is_watching = match follower.follow() {
            Ok(is_watching) => is_watching,
            Err(error) if error.is_fatal() => return core.end(&error),
            Err(error) => {
                tracing::debug!(%error, "log could not be read");
                true
            }
        };
        let next = core.next_deadline_ms();
        let now = floor_ms(core.options.time.boot());
        if next <= now && on_its_way.strong_count() == 0 {
            let request = Arc::new(());
            on_its_way = Arc::downgrade(&request);
            // There is nothing to do in it: leases end at the head of every write.
            let (job, _) = Job::new(0, move |_| Ok(Arc::clone(&request)));
            core.writes.join(vec![job]);
        }
        let until_lease = match next {
            i64::MAX => None,
            // Asked, and not yet done.
            next if next <= now => Some(LOOK_EVERY),
            next => Some(duration(next - now + spread_ms())),
        };
        let timeout = if is_watching {
            Some(until_lease.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY)))
        } else {
            until_lease
        };
        // Without a report of renamed files they are looked for. Validity must not outlast the files by much.
        let timeout = match timeout {
            _ if listener.watches_names() => timeout,
            None => Some(CHECK_EVERY),
            Some(timeout) => Some(timeout.min(CHECK_EVERY)),
        };
        let took = began.elapsed();
        if is_watching && took > LOOK_SLOW {
            // Every commit wakes every process. Where that starves the machine, each looks less often.
            let pause = (took * 4).min(LOOK_EVERY);
            listener.wait(false, Some(timeout.map_or(pause, |timeout| timeout.min(pause))));
            continue;
        }
        listener.wait(is_watching, timeout);
    }
}

fn spread_ms() -> i64 {
    let mut byte = [0];
    // Without chance they all come at once, which is only slower.
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
    /// Reads what is new, for the watchers; says whether there are any.
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
            let seen = core.seen();
            let snapshot = ReadTransaction::begin(sql)?;
            self.files.check()?;
            let meta = Meta::read(sql)?;
            meta.check(self.store_id, seen)?;
            core.note_deadline(next_deadline_ms(sql)?);
            if meta.swept > position.0 {
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
            drop(snapshot);
            let is_all = found.up_to >= meta.revision;
            core.hub.note(position, found, meta.compacted);
            if is_all && core.hub.position().is_none_or(|(current, _)| current >= meta.revision) {
                return Ok(true);
            }
        }
    }
}
