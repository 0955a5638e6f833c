//! From flags, variables and files to an open store.
//!
//! The decision itself is pure (`source`); here are the reading around it and the opening after it.

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

/// Decides which store is meant, from all there is.
pub(crate) fn decide(global: &Global) -> Result<ConnectSettings, Failure> {
    let env = environment();
    variables::check(&env)?;
    let mut files = Vec::new();
    for path in file::places(&env) {
        if let Some(values) = file::read(&path)? {
            files.push((path, values));
        }
    }
    let mut settings = source::decide(&Sources { flags: flags(global), is_local: global.local, env, files })?;
    settings.retry = ConnectRetry::new(global.connect_timeout);
    set_namespace(settings.namespace.value.as_str());
    Ok(settings)
}

/// The same, for a command that waits: connecting is part of the wait.
pub(crate) fn decide_waiting(global: &Global, wait: Option<Duration>) -> Result<ConnectSettings, Failure> {
    let mut settings = decide(global)?;
    settings.retry = settings.retry.with_wait(wait, global.connect_timeout);
    Ok(settings)
}

/// Where configuration files are looked for.
pub(crate) fn config_paths() -> Vec<PathBuf> {
    file::places(&environment())
}

/// Variables that are not text cannot be ours.
fn environment() -> BTreeMap<String, String> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).collect()
}

/// Opens the store that was decided upon. Never another one.
pub(crate) async fn open(settings: &ConnectSettings, output: &Output) -> Result<Store, Failure> {
    for note in settings.notes.iter().filter(|_| !output.is_quiet) {
        output.note(note);
    }
    let url = &settings.store.as_ref().map_err(Clone::clone)?.value;
    // A person may take their time to type a password.
    let config = match url {
        StoreUrl::Etcd { endpoints, security } => Some(etcd_config(endpoints, *security, settings).await?),
        StoreUrl::Memory | StoreUrl::File(_) => None,
    };
    let retry = settings.retry;
    let opened = match (url, config) {
        // The engine ends by itself when the write lock makes no progress; while it does, five hundred starts at once are served.
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

/// What to do next is another thing before a store is open than after: there is no key to read back, and a file has no users.
fn not_opened(error: StoreError, url: &StoreUrl) -> Failure {
    let hint = match (&error, url) {
        (StoreError::Invalid(_), StoreUrl::File(_)) => Some("name a file with --store file:///path/store.db"),
        (StoreError::Denied(_), StoreUrl::File(_)) => {
            Some("see who may write to the file and to its folder, and whether its disk is read-only")
        }
        (StoreError::Unusable(UnusableStore::SecondName(_)), StoreUrl::File(_)) => {
            Some("use one name: remove the other hard link, or mount the folder instead of the file")
        }
        (StoreError::Unusable(UnusableStore::Untrusted(_)), StoreUrl::File(_)) => Some(
            "use a folder that only you can write (chmod 700), and remove what other users have put there",
        ),
        (StoreError::Busy(_), StoreUrl::File(_)) => {
            Some("try again in a moment; `fuser -v FOLDER` lists the processes that use the store's folder")
        }
        (StoreError::Invalid(_), StoreUrl::Etcd { .. }) => {
            Some("check --endpoints, --cacert, --cert and --key with `tenure config show`")
        }
        (StoreError::Ambiguous(_), _) => Some("try again; if that does not help, run `tenure doctor`"),
        _ => None,
    };
    // A failure of TLS names its server, which may be one of many in the address.
    let names_its_server = matches!(error, StoreError::Tls { .. });
    let failure = Failure::from(error);
    let failure = if names_its_server { failure } else { failure.while_doing(&url.to_string()) };
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Opens a store file, and makes it, in a folder for its owner alone, if there is none.
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

    /// Root may write everywhere, so a test that runs as root cannot see this happen.
    #[test]
    fn a_file_that_must_not_be_written_has_no_password() {
        let denied = || StoreError::Denied("attempt to write a readonly database".into());
        let hint = |url: &str| not_opened(denied(), &url.parse().unwrap()).hint.unwrap();
        assert!(hint("file:///a/b.db").contains("who may write to the file"));
        assert!(!hint("file:///a/b.db").contains("password"));
        assert!(hint("etcd://a:1").contains("password"));
    }
}
