//! How long a run goes on, and where it begins.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How many executions every check makes of each target: together a few seconds.
const CHECKED: u64 = 2_000;

/// How long each target is tried in a soak, unless `TENURE_FUZZ_SECONDS` is set: past this little
/// was new.
const SOAKED: Duration = Duration::from_secs(30);

/// The seed of every check: the same inputs on every machine.
const SEED: u64 = 1;

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bounds {
    /// After so many executions.
    Executions(u64),
    /// After so much time.
    Time(Duration),
}

impl Bounds {
    /// What the environment asks for: the long version with `TENURE_SOAK=1`.
    ///
    /// # Panics
    ///
    /// If `TENURE_FUZZ_SECONDS` is not a number.
    pub fn of_environment() -> Bounds {
        if !is_soak() {
            return Bounds::Executions(CHECKED);
        }
        let seconds = number("TENURE_FUZZ_SECONDS").map(Duration::from_secs);
        Bounds::Time(seconds.unwrap_or(SOAKED))
    }
}

/// Whether this is the long version.
pub(crate) fn is_soak() -> bool {
    std::env::var("TENURE_SOAK").is_ok_and(|value| value == "1")
}

/// Where to begin: `TENURE_FUZZ_SEED`, or somewhere new in each soak and always the same in a check.
pub(crate) fn seed() -> u64 {
    let anywhere = || if is_soak() { RandomState::new().hash_one(0) } else { SEED };
    number("TENURE_FUZZ_SEED").unwrap_or_else(anywhere)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}
