//! Chooses the store from flags, variables and files, and opens it.
//!
//! The choice is a pure function (`source`). This module reads its inputs and opens the chosen store.

mod address;
mod defects;
mod empty;
mod etcd;
mod file;
mod password;
mod purpose;
mod retry;
mod source;
mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::store::etcd::EtcdEngine;
use tenure::store::file::FileEngine;
use tenure::store::{Store, StoreError, StoreUrl, UnusableStore};

pub(crate) use etcd::{config as etcd_config, is_loopback};
pub(crate) use purpose::{StorePurpose, open_for};
pub(crate) use retry::ConnectRetry;
pub(crate) use source::{ConnectSettings, Origin, Password, Sourced};

use self::source::{Setting, Sources, Values};
use crate::cli::Global;
use crate::failure::{Code, Failure, set_namespace};
use crate::output::Output;

/// Reads flags, variables and configuration files, and chooses the store.
pub(crate) fn decide(global: &Global) -> Result<ConnectSettings, Failure> {
    let env = environment();
    variables::check(&env)?;
    let mut files = Vec::new();
    for path in file::paths(&env) {
        if let Some(values) = file::read(&path)? {
            files.push((path, values));
        }
    }
    let mut settings = source::decide(&Sources { flags: flags(global), is_local: global.local, env, files })?;
    settings.retry = ConnectRetry::new(global.connect_timeout);
    set_namespace(settings.namespace.value.as_str());
    Ok(settings)
}

/// The same for a command with `--wait`, which limits connecting, too.
pub(crate) fn decide_waiting(global: &Global, wait: Option<Duration>) -> Result<ConnectSettings, Failure> {
    let mut settings = decide(global)?;
    settings.retry = settings.retry.with_wait(wait, global.connect_timeout);
    Ok(settings)
}

/// The paths of configuration files.
pub(crate) fn config_paths() -> Vec<PathBuf> {
    file::paths(&environment())
}

/// The environment. Variables that are not text are ignored, because no setting has such a name or value.
fn environment() -> BTreeMap<String, String> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).collect()
}

/// Opens the chosen store, never another one.
pub(crate) async fn open(settings: &ConnectSettings, output: &Output) -> Result<Store, Failure> {
    for note in settings.notes.iter().filter(|_| !output.is_quiet) {
        output.note(note);
    }
    let url = &settings.store.as_ref().map_err(Clone::clone)?.value;
    // Before the time limit starts: a person may type a password slowly.
    let config = match url {
        StoreUrl::Etcd { endpoints, security } => Some(etcd_config(endpoints, *security, settings).await?),
        StoreUrl::Memory | StoreUrl::File(_) => None,
    };
    let retry = settings.retry;
    let opened = match (url, config) {
        // No time limit here: the engine fails by itself when the write lock makes no progress. While it does, five hundred processes can start at once.
        (StoreUrl::File(path), _) => open_file(path).await.map_err(Some),
        (_, Some(config)) => match retry.open(|| EtcdEngine::connect(config.clone())).await {
            Ok(etcd) => {
                defects::warn(etcd.client(), &url.to_string(), &environment(), output);
                Ok(Store::new(etcd))
            }
            Err(error) => Err(error),
        },
        (_, None) => Ok(Store::memory()),
    };
    opened.map_err(|error| match error {
        Some(error) => not_opened(error, url),
        None => Failure::new(
            Code::Unavailable,
            format!("{url} did not answer within {}", crate::duration::format(retry.within)),
        )
        .hint("check the address with `tenure config show`, then run `tenure doctor`"),
    })
}

/// The failure of opening a store. Its hints differ from those for an open store: there is no key to read back, and a file has no users.
fn not_opened(error: StoreError, url: &StoreUrl) -> Failure {
    let hint = match (&error, url) {
        (StoreError::Invalid(_), StoreUrl::File(_)) => Some("name a file with --store file:///path/store.db"),
        (StoreError::Denied(_), StoreUrl::File(_)) => Some(
            "check the permissions of the file and its folder with `ls -ld`, and whether the disk is read-only",
        ),
        (StoreError::Unusable(UnusableStore::SecondName(_)), StoreUrl::File(_)) => {
            Some("use one name: remove the other hard link, or mount the folder instead of the file")
        }
        (StoreError::Unusable(UnusableStore::Untrusted(_)), StoreUrl::File(_)) => {
            Some("use a folder that only you can write (chmod 700), and remove the files of other users")
        }
        (StoreError::Busy(_), StoreUrl::File(_)) => {
            Some("try again in a moment; `fuser -v FOLDER` lists the processes that use the store's folder")
        }
        (StoreError::Invalid(_), StoreUrl::Etcd { .. }) => {
            Some("check --endpoints, --cacert, --cert and --key with `tenure config show`")
        }
        (StoreError::Ambiguous(_), _) => Some("try again; if that does not help, run `tenure doctor`"),
        _ => None,
    };
    // A TLS failure already names its server, one of perhaps many in the address.
    let names_its_server = matches!(error, StoreError::Tls { .. });
    let failure = Failure::from(error);
    let failure = if names_its_server { failure } else { failure.while_doing(&url.to_string()) };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Opens a store file. Creates it, in a folder with mode 0700, if there is none.
pub(crate) async fn open_file(path: &Path) -> Result<Store, StoreError> {
    Ok(Store::new(FileEngine::open(path).await?))
}

fn flags(global: &Global) -> Values {
    let entries = [
        (Setting::Store, &global.store),
        (Setting::Endpoints, &global.endpoints),
        (Setting::Namespace, &global.namespace),
        (Setting::Cacert, &global.cacert),
        (Setting::Cert, &global.cert),
        (Setting::Key, &global.key),
        (Setting::User, &global.user),
        (Setting::PasswordFile, &global.password_file),
    ];
    entries.into_iter().filter_map(|(setting, value)| Some((setting, value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root may write everywhere, so a test that runs as root cannot provoke this error.
    #[test]
    fn read_only_file_hints_at_permissions() {
        let denied = || StoreError::Denied("attempt to write a readonly database".into());
        let hint = |url: &str| not_opened(denied(), &url.parse().unwrap()).hint.unwrap();
        assert!(hint("file:///a/b.db").contains("permissions of the file"));
        assert!(!hint("file:///a/b.db").contains("password"));
        assert!(hint("etcd://a:1").contains("password"));
    }
}
