//! A command that runs while something is held, and no longer: what `lock`, `once` and `elect` have in common.
//!
//! The library stands in line and says how long what is held is certain; `timing` divides that time, `supervise` ends the command by it.

mod holding;
mod line;
mod stage;
mod terms;
mod timing;
mod who;

use std::time::Duration;

use tenure::clock::wall_time;
use tenure_core::record::Timestamp;

pub(crate) use holding::{Acquired, Run, taken};
pub(crate) use line::{Line, Look, NotHeld, Progress, Wait};
pub(crate) use stage::{Patience, Stage, Stop, listen};
pub(crate) use terms::HoldArgs;
pub(crate) use timing::{Timing, warn_of_long};
pub(crate) use who::introduce;

use crate::duration;

/// How long ago that was, by two clocks that need not agree.
pub(crate) fn ago(since: Timestamp) -> String {
    duration::said(Duration::from_millis(wall_time().0.saturating_sub(since.0)))
}
