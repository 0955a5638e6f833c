//! The Redis that the tests run: `TENURE_REDIS_BIN`, else the one on the PATH, else the distribution's package.
//!
//! Redis is not in any crate, and a test without it must fail. So the check installs it where it may: as root, with apt-get.
//!
//! **Invariant**: installing does not start the distribution's service; each test starts a server of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{XtaskError, output, run, succeeds};

/// The name of the package in Debian and its descendants.
const PACKAGE: &str = "redis-server";

/// The file that invoke-rc.d and systemd's counterpart run before they start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Ensures that there is a Redis, and prints its path and version.
pub(crate) fn ensure() -> Result<(), XtaskError> {
    if let Some(path) = std::env::var_os("TENURE_REDIS_BIN") {
        return print_version(&PathBuf::from(path));
    }
    if let Some(path) = on_path() {
        return print_version(&path);
    }
    if !may_install() || !install() {
        return Err(missing());
    }
    print_version(&on_path().ok_or_else(missing)?)
}

/// One line: the package, the variable, the switch.
fn missing() -> XtaskError {
    XtaskError(format!(
        "no redis-server: install the package {PACKAGE}, set TENURE_REDIS_BIN, or run `cargo xtask check --without redis`"
    ))
}

fn print_version(binary: &Path) -> Result<(), XtaskError> {
    let version = output(Command::new(binary).arg("--version"))?;
    println!("   {}: {}", binary.display(), version.trim());
    Ok(())
}

fn on_path() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join("redis-server")).find(|path| path.is_file())
}

/// Whether this user is root and the host has apt-get.
fn may_install() -> bool {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    is_root && succeeds(Command::new("apt-get").arg("--version"))
}

fn install() -> bool {
    let _quiet = NoServices::begin();
    // A fresh host has no list of packages yet; on others the first attempt succeeds without an update.
    run(&mut apt_get(&["install"])).is_ok()
        || (run(&mut apt_get(&["update"])).is_ok() && run(&mut apt_get(&["install"])).is_ok())
}

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Another process may hold the lock of dpkg.
    command.args(["--quiet", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=60"]).args(args);
    if args == ["install"] {
        command.arg(PACKAGE);
    }
    // In runlevel 1 no service is started: the second line of defence beside the policy.
    command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    command
}

/// While this lives, installing a package starts no service. A policy that is there already is left alone.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn begin() -> NoServices {
        let policy = Path::new(POLICY);
        let is_ours = !policy.exists()
            && fs::write(policy, "#!/bin/sh\nexit 101\n").is_ok()
            && fs::set_permissions(policy, fs::Permissions::from_mode(0o755)).is_ok();
        NoServices { is_ours }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            // If it cannot be removed, the next installation starts no service either: nothing breaks.
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_redis_names_package_and_switch() {
        let line = missing().to_string();
        assert_eq!(line.lines().count(), 1);
        for word in ["redis-server", "TENURE_REDIS_BIN", "cargo xtask check --without redis"] {
            assert!(line.contains(word), "{word}");
        }
    }

    #[test]
    fn redis_package_is_named_only_for_install() {
        let args = |command: Command| -> Vec<String> {
            command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
        };
        assert!(args(apt_get(&["install"])).ends_with(&["install".to_owned(), PACKAGE.to_owned()]));
        assert!(!args(apt_get(&["update"])).contains(&PACKAGE.to_owned()));
    }
}
