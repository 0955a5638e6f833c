//! The identity of this process: what other processes see of it.

use std::sync::OnceLock;

pub use tenure_core::record::Identity;

/// The parts that stay the same for the life of a process.
static PARTS: OnceLock<Identity> = OnceLock::new();

/// The identity of this process: host, process id, user and the name of its program.
///
/// Arguments of the program are left out: they may contain secrets.
pub fn current() -> Identity {
    // A run that a seed decides writes the same bytes in every process.
    #[cfg(feature = "testing")]
    if crate::testing::seed::wall().is_some() {
        return Identity {
            node: "test".into(),
            host: "test".into(),
            pid: 1,
            user: "test".into(),
            program: "test".into(),
        };
    }
    // The process id is read each time: a fork keeps the other parts.
    Identity { pid: std::process::id(), ..PARTS.get_or_init(read).clone() }
}

/// A holder in a message, such as `web-2, pid 4121`.
pub(crate) fn described(identity: Option<&Identity>) -> String {
    let Some(Identity { node, host, pid, .. }) = identity else { return "another process".to_owned() };
    let name = if node.is_empty() { host } else { node };
    let on = if host.is_empty() || host == name { String::new() } else { format!(" on {host}") };
    // A record may leave it out.
    let pid = if *pid == 0 { String::new() } else { format!(", pid {pid}") };
    format!("{name}{pid}{on}")
}

fn read() -> Identity {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    Identity {
        node: host.clone(),
        host,
        pid: 0,
        user: user(),
        program: program.to_string_lossy().into_owned(),
    }
}

/// The name of the user; its number where the system has no name for it.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    name.unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_filled_in() {
        let identity = current();
        assert_eq!(identity.pid, std::process::id());
        for part in [&identity.node, &identity.host, &identity.user, &identity.program] {
            assert!(!part.is_empty(), "{identity:?}");
        }
    }
}
