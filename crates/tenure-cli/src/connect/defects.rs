//! The warning about an etcd with known defects: one line, once a day for each address and user of this host.
//!
//! It would otherwise fill the log of a script that runs every minute. `tenure doctor` lists the defects themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tenure_etcd::Client;

use crate::output::Output;

/// The interval between two warnings.
const AGAIN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Warns, unless the output is quiet or JSON, or the last warning is less than a day old.
pub(super) fn warn(client: &Client, address: &str, env: &BTreeMap<String, String>, output: &Output) {
    let Some((version, count)) = client.server_defects() else { return };
    if output.is_quiet || output.is_json || !is_due(stamp(env, address).as_deref()) {
        return;
    }
    output.warn(&format!(
        "etcd {version} at {address} has {count} known defects of leases and watches; upgrade it, `tenure doctor` lists them"
    ));
}

/// The file with the modification time of the last warning.
fn stamp(env: &BTreeMap<String, String>, address: &str) -> Option<PathBuf> {
    let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let name: String =
        address.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(200).collect();
    Some(cache.join("tenure").join(format!("old-etcd-{name}")))
}

/// Whether the last warning is a day old. Updates the file; if that fails, every run warns.
fn is_due(stamp: Option<&Path>) -> bool {
    let Some(stamp) = stamp else { return true };
    let written = std::fs::metadata(stamp).and_then(|metadata| metadata.modified());
    // A time in the future counts as old: the clock was set back.
    let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
    if age.is_some_and(|age| age < AGAIN_AFTER) {
        return false;
    }
    if let Some(folder) = stamp.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = std::fs::write(stamp, "");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_is_due_daily_per_address() {
        let home = tempfile::tempdir().unwrap();
        let env = BTreeMap::from([("HOME".to_owned(), home.path().to_str().unwrap().to_owned())]);
        let at = |address: &str| stamp(&env, address).unwrap();
        assert!(is_due(Some(&at("etcd://a:1"))));
        assert!(!is_due(Some(&at("etcd://a:1"))));
        assert!(is_due(Some(&at("etcd://b:1"))), "another address");
        let old = SystemTime::now() - AGAIN_AFTER - Duration::from_secs(1);
        std::fs::File::options().write(true).open(at("etcd://a:1")).unwrap().set_modified(old).unwrap();
        assert!(is_due(Some(&at("etcd://a:1"))), "a day later");
    }

    #[test]
    fn stamp_that_cannot_be_written_is_harmless() {
        assert!(is_due(Some(Path::new("/proc/none/old-etcd"))));
        assert!(is_due(None));
        assert_eq!(stamp(&BTreeMap::new(), "etcd://a:1"), None);
    }
}
