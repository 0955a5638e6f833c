//! How much of this machine's memory is used, for balancers that go by it.

use tenure_core::balance::ResourceUsage;

use crate::clock::{BootClock, Clock};

/// The memory that this machine uses by `/proc/meminfo`: what is neither free nor reclaimable on demand. None where there is no such file.
///
/// For [`WorkerBuilder::resource`](super::WorkerBuilder::resource).
pub fn memory() -> Option<ResourceUsage> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let (total, available) = read(&text)?;
    Some(ResourceUsage { used: total.saturating_sub(available), total, read_at: BootClock.now() })
}

/// All of it and what is available, in KiB.
fn read(text: &str) -> Option<(u64, u64)> {
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    };
    Some((figure("MemTotal:")?, figure("MemAvailable:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaimable_memory_is_not_used() {
        let text = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n";
        assert_eq!(read(text), Some((16_000_000, 12_000_000)));
        for odd in ["", "MemTotal: x kB\nMemAvailable: 1 kB", "MemTotal: 1 kB"] {
            assert_eq!(read(odd), None, "{odd:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_of_this_machine_is_read() {
        let memory = memory().unwrap();
        assert!(0 < memory.used && memory.used <= memory.total, "{memory:?}");
    }
}
