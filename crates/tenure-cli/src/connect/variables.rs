//! Variables that are almost one of ours. A store that is named in a misspelt variable must not be exchanged for the embedded one in silence.

use std::collections::BTreeMap;

use super::source::Setting;
use crate::failure::Failure;

/// Refuses a variable that differs from one of ours by a letter or two, or that goes on after one, such as `TENURE_STORE_URL`.
pub(super) fn check(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    let known = Setting::variables();
    let set = env.iter().filter(|(name, value)| !value.is_empty() && !known.contains(name));
    for (name, _) in set {
        if let Some(meant) = known.iter().find(|known| is_misspelt(name, known)) {
            return Err(Failure::usage(format!(
                "the variable {name} is set, and no setting has this name, so it would have no effect"
            ))
            .hint(format!("did you mean {meant}? Otherwise unset {name}")));
        }
    }
    Ok(())
}

/// Whether a name is most likely meant to be another. A short name has many neighbours, so only one letter may differ there.
fn is_misspelt(name: &str, known: &str) -> bool {
    let Some((prefix, setting)) = known.split_once('_') else { return false };
    let Some(given) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) else { return false };
    let goes_on = |suffix: &str| matches!(suffix, "S" | "_URL" | "_URI" | "_ADDR" | "_ADDRESS");
    let distance_max = if setting.len() < 5 { 1 } else { 2 };
    given.strip_prefix(setting).is_some_and(goes_on) || distance(given, setting) <= distance_max
}

/// How many letters must be put, removed or exchanged to make one text of the other.
fn distance(one: &str, other: &str) -> usize {
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, byte) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], n + 1);
        for (m, others) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(byte != *others);
            diagonal = row[m + 1];
            row[m + 1] = exchanged.min(row[m] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variable_is_refused_with_its_meaning() {
        let check = |name: &str| check(&BTreeMap::from([(name.to_owned(), "x".to_owned())]));
        for (name, meant) in [
            ("TENURE_ENDPOINT", "TENURE_ENDPOINTS"),
            ("TENURE_ENPOINTS", "TENURE_ENDPOINTS"),
            ("TENURE_STORE_URL", "TENURE_STORE"),
            ("TENURE_NAMESAPCE", "TENURE_NAMESPACE"),
            ("ETCDCTL_ENDPOINT", "ETCDCTL_ENDPOINTS"),
        ] {
            let failure = check(name).unwrap_err();
            assert!(failure.hint.unwrap().contains(&format!("did you mean {meant}?")), "{name}");
        }
        for name in [
            "TENURE_ENDPOINTS",
            "TENURE_LOG",
            "TENURE_FENCING_TOKEN",
            "TENURE_LOCK",
            "TENURE_LOCK_KEY",
            "TENURE_LEASE",
            "TENURE_TASK_ID",
            "TENURE_ETCD_PIDS",
            "TENURE_PASSWORD",
            "ETCDCTL_API",
            "ETCDCTL_CACERT",
            "ENDPOINT",
            "TENURE_SOAK",
            "TENURE_ELECTION",
        ] {
            assert!(check(name).is_ok(), "{name}");
        }
    }
}
