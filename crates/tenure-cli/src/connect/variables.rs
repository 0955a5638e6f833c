//! Refuses misspelt environment variables. With `TENURE_ENDPOINT`, for example, the embedded store would be used without a warning.

use std::collections::BTreeMap;

use super::source::Setting;
use crate::failure::Failure;

/// Refuses a variable that differs from a known one by one or two letters, or extends a known one, such as `TENURE_STORE_URL`.
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

/// Whether a name is most likely a misspelt known one. A short name is similar to many, so only one letter may differ.
fn is_misspelt(name: &str, known: &str) -> bool {
    let Some((prefix, setting)) = known.split_once('_') else { return false };
    let Some(given) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) else { return false };
    let is_extension = |suffix: &str| matches!(suffix, "S" | "_URL" | "_URI" | "_ADDR" | "_ADDRESS");
    let distance_max = if setting.len() < 5 { 1 } else { 2 };
    given.strip_prefix(setting).is_some_and(is_extension) || distance(given, setting) <= distance_max
}

/// The Levenshtein distance: the number of inserted, removed or replaced letters.
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
    fn misspelt_variable_is_refused_with_suggestion() {
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
