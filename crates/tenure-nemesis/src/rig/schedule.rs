//! When each fault begins and ends: the seed's schedule, run in real time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::fault::provocation;
use super::inject::{self, FaultTarget, FaultUndo};
use super::{Fault, Injected, Rig};
use crate::history::now;
use crate::options::{LockUnderTest, Options};
use crate::rng::NemesisRng;

/// Between two faults, in milliseconds. On average there are three for each TTL, and most last longer than this: several go on at once.
const PAUSE_MS: (u64, u64) = (300, 2_200);

/// The schedule.
pub(super) struct FaultSchedule {
    shares: Vec<(Fault, u64)>,
    lasts: Duration,
    /// How long a fault lasts, in milliseconds: from, and below.
    each_ms: (u64, u64),
    /// So many of a hundred are shorter than any timeout.
    short_percent: u64,
    rng: NemesisRng,
}

impl FaultSchedule {
    pub(super) fn new(options: &Options, shares: Vec<(Fault, u64)>, rng: NemesisRng) -> FaultSchedule {
        let ttl = u64::try_from(options.against.ttl().as_millis()).unwrap_or(u64::MAX);
        // What is broken on purpose is given every chance to show it: it must be found, and soon.
        let (each_ms, short_percent) = match options.against {
            LockUnderTest::Broken(rule) => {
                (provocation(rule).map_or((ttl + 500, ttl * 2), |one| one.each_ms), 0)
            }
            LockUnderTest::Plain => ((ttl + 500, ttl * 2), 0),
            LockUnderTest::Tenure | LockUnderTest::Etcdctl => ((ttl / 3, ttl * 2), 30),
        };
        FaultSchedule { shares, lasts: options.faults_for, each_ms, short_percent, rng }
    }

    /// Plays it, and ends everything that is still going on.
    pub(super) fn run(mut self, rig: &mut Rig) {
        let over = Instant::now() + self.lasts;
        let mut next = Instant::now();
        let mut open: Vec<(Instant, FaultTarget, FaultUndo)> = Vec::new();
        while Instant::now() < over {
            let wake = open.iter().map(|(at, ..)| *at).min().map_or(next, |end| end.min(next)).min(over);
            std::thread::sleep(wake.saturating_duration_since(Instant::now()));
            let due: Vec<(Instant, FaultTarget, FaultUndo)> =
                open.extract_if(.., |(at, ..)| *at <= Instant::now()).collect();
            due.into_iter().for_each(|(_, _, ending)| inject::end(rig, ending));
            if Instant::now() < next || Instant::now() >= over {
                continue;
            }
            next = Instant::now() + self.rng.ms(PAUSE_MS.0, PAUSE_MS.1);
            let busy: BTreeSet<FaultTarget> = open.iter().map(|(_, target, _)| *target).collect();
            let fault = self.choose();
            let lasts = self.how_long();
            let at = now();
            if let Some(injected) = inject::begin(rig, fault, lasts, &busy, &mut self.rng) {
                rig.injected.push(Injected { at, fault, detail: injected.detail });
                if let Some(ending) = injected.ending {
                    open.push((Instant::now() + lasts, injected.target, ending));
                }
            }
        }
        open.into_iter().for_each(|(_, _, ending)| inject::end(rig, ending));
        rig.place.heal();
    }

    fn choose(&mut self) -> Fault {
        let mut share = self.rng.below(self.shares.iter().map(|(_, share)| share).sum());
        for (fault, of) in &self.shares {
            match share.checked_sub(*of) {
                Some(rest) => share = rest,
                None => return *fault,
            }
        }
        self.shares[0].0
    }

    fn how_long(&mut self) -> Duration {
        if self.rng.percent(self.short_percent) {
            self.rng.ms(1, 400)
        } else {
            self.rng.ms(self.each_ms.0, self.each_ms.1)
        }
    }
}
