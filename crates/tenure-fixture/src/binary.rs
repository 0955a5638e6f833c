//! Which etcd the tests run: the vendored one, unless `TENURE_ETCD_BIN` names another.
//!
//! The vendored binary comes through cargo, so a machine with nothing but cargo has it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Major, minor and patch of an etcd, ordered as versions are.
pub type EtcdVersion = (u32, u32, u32);

/// The etcd to test with: `TENURE_ETCD_BIN` if set, else the vendored one.
///
/// # Panics
/// If there is no such file. A test without etcd must fail: a skipped test looks like a passed one.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TENURE_ETCD_BIN") {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "TENURE_ETCD_BIN names {}, and there is no such file: unset it to use the vendored etcd",
            path.display()
        );
        return path;
    }
    let path = match etcd_bin_vendored::etcd_bin_path() {
        Ok(path) => path,
        Err(error) => panic!("no vendored etcd for this platform ({error}): set TENURE_ETCD_BIN"),
    };
    assert!(
        path.is_file(),
        "the vendored etcd is not at {}: was the cargo registry cleaned after the build?",
        path.display()
    );
    path.to_owned()
}

/// The version that `etcd --version` reports, read once per binary and process.
///
/// # Panics
/// If the file cannot be run or does not answer like etcd.
pub fn version_of(binary: &Path) -> EtcdVersion {
    static KNOWN: Mutex<BTreeMap<PathBuf, EtcdVersion>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().expect("nothing panics while the map is held, except this very question");
    if let Some(version) = known.get(binary) {
        return *version;
    }
    let output = match Command::new(binary).arg("--version").output() {
        Ok(output) => output,
        Err(error) => panic!("{} cannot be run: {error}", binary.display()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(version) = parse_version(&text) else {
        panic!("{} --version does not answer like etcd: {text:?}", binary.display());
    };
    known.insert(binary.to_owned(), version);
    version
}

/// Reads the line `etcd Version: 3.7.2`; a suffix such as `-rc.0` is dropped.
fn parse_version(text: &str) -> Option<EtcdVersion> {
    let line = text.lines().find_map(|line| line.strip_prefix("etcd Version:"))?;
    let mut numbers = line.trim().split(['.', '-', '+']).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_line_parses_with_suffix() {
        assert_eq!(parse_version("etcd Version: 3.4.45\nGit SHA: x\n"), Some((3, 4, 45)));
        assert_eq!(parse_version("etcd Version: 3.7.0-rc.1\n"), Some((3, 7, 0)));
        assert_eq!(parse_version("etcd Version: 3\n"), None);
        assert_eq!(parse_version("GNU tar 1.34\n"), None);
    }

    #[test]
    fn etcd_binary_prints_known_version() {
        let version = version_of(&binary());
        assert!(version >= (3, 4, 0), "{version:?}");
    }
}
