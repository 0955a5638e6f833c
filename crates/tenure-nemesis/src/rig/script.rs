//! When what goes wrong, and what ends it again: the seed's script, played on real time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::fault::provocation;
use super::strike::{self, Ending, Target};
use super::{Fault, Injected, Rig};
use crate::dice::Dice;
use crate::history::now;
use crate::options::{Against, Options};

/// Between two faults, in milliseconds. On average there are three for each TTL, and most last longer than this: several go on at once.
const PAUSE_MS: (u64, u64) = (300, 2_200);

/// The script.
pub(super) struct Script {
    shares: Vec<(Fault, u64)>,
    lasts: Duration,
    /// How long a fault lasts, in milliseconds: from, and below.
    each_ms: (u64, u64),
    /// So many of a hundred are over before anybody's patience.
    short_percent: u64,
    dice: Dice,
}

impl Script {
    pub(super) fn new(options: &Options, shares: Vec<(Fault, u64)>, dice: Dice) -> Script {
        let ttl = u64::try_from(options.against.ttl().as_millis()).unwrap_or(u64::MAX);
        // What is broken on purpose is given every chance to show it: it must be found, and soon.
        let (each_ms, short_percent) = match options.against {
            Against::Broken(rule) => (provocation(rule).map_or((ttl + 500, ttl * 2), |one| one.each_ms), 0),
            Against::Plain => ((ttl + 500, ttl * 2), 0),
            Against::Tenure | Against::Etcdctl => ((ttl / 3, ttl * 2), 30),
        };
        Script { shares, lasts: options.faults_for, each_ms, short_percent, dice }
    }

    /// Plays it, and ends everything that is still going on.
    pub(super) fn play(mut self, rig: &mut Rig) {
        let over = Instant::now() + self.lasts;
        let mut next = Instant::now();
        let mut open: Vec<(Instant, Target, Ending)> = Vec::new();
        while Instant::now() < over {
            let wake = open.iter().map(|(at, ..)| *at).min().map_or(next, |end| end.min(next)).min(over);
            std::thread::sleep(wake.saturating_duration_since(Instant::now()));
            let due: Vec<(Instant, Target, Ending)> =
                open.extract_if(.., |(at, ..)| *at <= Instant::now()).collect();
            due.into_iter().for_each(|(_, _, ending)| strike::end(rig, ending));
            if Instant::now() < next || Instant::now() >= over {
                continue;
            }
            next = Instant::now() + self.dice.ms(PAUSE_MS.0, PAUSE_MS.1);
            let busy: BTreeSet<Target> = open.iter().map(|(_, target, _)| *target).collect();
            let fault = self.choose();
            let lasts = self.how_long();
            let at = now();
            if let Some(struck) = strike::begin(rig, fault, lasts, &busy, &mut self.dice) {
                rig.injected.push(Injected { at, fault, detail: struck.detail });
                if let Some(ending) = struck.ending {
                    open.push((Instant::now() + lasts, struck.target, ending));
                }
            }
        }
        open.into_iter().for_each(|(_, _, ending)| strike::end(rig, ending));
        rig.place.heal();
    }

    fn choose(&mut self) -> Fault {
        let mut share = self.dice.below(self.shares.iter().map(|(_, share)| share).sum());
        for (fault, of) in &self.shares {
            match share.checked_sub(*of) {
                Some(rest) => share = rest,
                None => return *fault,
            }
        }
        self.shares[0].0
    }

    fn how_long(&mut self) -> Duration {
        if self.dice.percent(self.short_percent) {
            self.dice.ms(1, 400)
        } else {
            self.dice.ms(self.each_ms.0, self.each_ms.1)
        }
    }
}
