//! The clocks of a store file: boot time for everything, the wall clock only to carry leases over a reboot.
//!
//! All processes of a machine read the same boot time. It counts suspend and cannot be set. It restarts with
//! each boot, so the file also stores the boot id and the wall clock.

use std::time::{Duration, SystemTime};

use tenure_core::time::Moment;

use crate::clock::{BootClock, Clock};
use crate::store::{Cause, StoreError};

/// The clocks of a store file; replaced in tests only.
pub(super) trait Time: Send + Sync + 'static {
    /// Time since boot.
    fn boot(&self) -> Moment;

    /// The wall clock, in milliseconds since 1970. It may jump.
    fn wall_ms(&self) -> i64;

    /// Which boot this is.
    fn boot_id(&self) -> Result<String, StoreError>;
}

/// The time of this machine.
pub(super) struct MachineTime;

impl Time for MachineTime {
    fn boot(&self) -> Moment {
        BootClock.now()
    }

    fn wall_ms(&self) -> i64 {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ms(wall)
    }

    fn boot_id(&self) -> Result<String, StoreError> {
        let id = read_boot_id().map_err(|error| {
            StoreError::Unavailable(Cause::new(format!("cannot read the boot id of the machine: {error}")))
        })?;
        Ok(id.trim().to_owned())
    }
}

#[cfg(target_os = "linux")]
fn read_boot_id() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

#[cfg(not(target_os = "linux"))]
fn read_boot_id() -> std::io::Result<String> {
    let output = std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output()?;
    if !output.status.success() {
        return Err(std::io::Error::other("sysctl knows no kern.bootsessionuuid"));
    }
    String::from_utf8(output.stdout).map_err(std::io::Error::other)
}

/// Whole milliseconds of a duration; a TTL of centuries must not wrap.
fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The last whole millisecond that has passed: what deadlines are compared with.
pub(super) fn floor_ms(moment: Moment) -> i64 {
    ms(moment.since_origin())
}

/// The deadline of a lease that is given `ttl_ms` at `now`: rounded up, because a lease must never end early.
pub(super) fn deadline_ms(now: Moment, ttl_ms: i64) -> i64 {
    ceil_ms(now.since_origin()).saturating_add(ttl_ms)
}

/// Milliseconds, a started one counted as a whole.
pub(super) fn ceil_ms(duration: Duration) -> i64 {
    let whole = ms(duration);
    if duration.subsec_nanos().is_multiple_of(1_000_000) { whole } else { whole.saturating_add(1) }
}

/// A duration of so many milliseconds. A negative number, which only a damaged file contains, becomes zero.
pub(super) fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_rounding_never_ends_lease_early() {
        let now = Moment::after_origin(Duration::from_micros(10_001));
        let deadline = deadline_ms(now, 5);
        assert_eq!(deadline, 16);
        let too_early = now + Duration::from_micros(4_999);
        assert!(floor_ms(too_early) < deadline);
        assert_eq!(ceil_ms(Duration::from_micros(1_500)), 2);
        assert_eq!(ceil_ms(Duration::from_millis(2)), 2);
    }

    #[test]
    fn machine_knows_its_boot() {
        let id = MachineTime.boot_id().unwrap();
        assert!(!id.is_empty());
        assert_eq!(id, MachineTime.boot_id().unwrap());
    }
}
