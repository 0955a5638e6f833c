//! No registered key is missing after recovery, and no unregistered key is there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Invariant, Replay};
use crate::history::Fact;
use crate::run::RunRecord;
use crate::workload::registry::ROOT;

pub(super) const INVARIANT: Invariant =
    Invariant { name: "registrations match", guarantees: "G8, G10", check };

fn check(run: &RunRecord) -> Vec<(Duration, String)> {
    let Some((at, living)) = run.facts.iter().find_map(|(at, fact)| match fact {
        Fact::Compared { living } => Some((*at, living)),
        _ => None,
    }) else {
        return vec![(run.lasted, "nothing was compared".to_owned())];
    };
    let mut wanted = BTreeMap::new();
    for (_, fact) in &run.facts {
        if let Fact::Wanted { process, key, value } = fact
            && living.contains(process)
        {
            match value {
                Some(value) => wanted.insert(key.clone(), value.clone()),
                None => wanted.remove(key),
            };
        }
    }
    let mut replay = Replay::default();
    run.log.iter().take_while(|entry| entry.at <= at).for_each(|entry| replay.step(entry));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let there = replay.pairs.values().filter(|pair| pair.key.starts_with(ROOT.as_bytes()));
    let there: BTreeMap<String, String> = there.map(|pair| (text(&pair.key), text(&pair.value))).collect();
    let mut found = Vec::new();
    for (key, value) in &wanted {
        if there.get(key) != Some(value) {
            found.push((at, format!("{key} should be {value}, and is {:?}", there.get(key))));
        }
    }
    let orphans = there.keys().filter(|key| !wanted.contains_key(*key));
    found.extend(orphans.map(|key| (at, format!("{key} is there, and no process wants it"))));
    found
}
