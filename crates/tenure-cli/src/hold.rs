//! A command that runs only while this process holds something: shared by `lock`, `once` and `elect`.
//!
//! The library queues and reports how long the hold is valid. `timing` divides that time, `supervise` stops the command by it.

mod args;
mod context;
mod run;
mod timing;
mod waiting;

use std::time::Duration;

use tenure::clock::wall_time;
use tenure_core::record::Timestamp;

pub(crate) use args::HoldArgs;
pub(crate) use context::{CloseDeadline, HoldContext, HoldExit, listen};
pub(crate) use run::{Acquired, CommandRun, taken};
pub(crate) use timing::{Timing, warn_of_long};
pub(crate) use waiting::{HoldSubject, NotHeld, QueueStatus, Wait, WaitProgress};

use crate::duration;

/// The time since a timestamp, for people; the two clocks may differ.
pub(crate) fn ago(since: Timestamp) -> String {
    duration::format(Duration::from_millis(wall_time().0.saturating_sub(since.0)))
}
