//! What a command needs of a store, and whether it may create one.
//!
//! A command that only reads must not create a store: a mistyped path would then show "0 tasks" forever. A command that holds a lock must
//! not use a store that no other process sees.

use std::path::{Path, PathBuf};

use tenure::store::{Store, StoreUrl};

use super::empty::EmptyStore;
use super::{ConnectSettings, Origin, open};
use crate::cli::CliCommand;
use crate::election::ElectionCommand;
use crate::failure::{Code, Failure};
use crate::kv::KvCommand;
use crate::output::Output;
use crate::service::ServiceCommand;

/// What a command needs of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StorePurpose {
    /// Reads what exists. Never creates a store.
    Read,
    /// Follows changes. A missing store is an error: waiting for its file would miss the change that creates it.
    Follow,
    /// Writes keys. May create a store.
    Write,
    /// Holds something against other processes, which must see the store. May create it.
    Hold,
}

impl StorePurpose {
    pub(crate) fn of(command: Option<&CliCommand>) -> StorePurpose {
        match command {
            Some(
                CliCommand::Lock(_)
                | CliCommand::Elect(_)
                | CliCommand::Once(_)
                | CliCommand::Register(_)
                | CliCommand::Worker(_),
            ) => StorePurpose::Hold,
            Some(CliCommand::Submit(_) | CliCommand::Kv(KvCommand::Put(_) | KvCommand::Txn(_))) => {
                StorePurpose::Write
            }
            Some(CliCommand::Events(args)) if !args.follow => StorePurpose::Read,
            Some(
                CliCommand::Events(_)
                | CliCommand::Kv(KvCommand::Watch(_))
                | CliCommand::Election(ElectionCommand::Watch(_))
                | CliCommand::Service(ServiceCommand::Watch(_)),
            ) => StorePurpose::Follow,
            // The other writing commands change existing keys, so a store without a file has nothing for them.
            _ => StorePurpose::Read,
        }
    }
}

/// Opens the chosen store for a purpose. A reader gets an empty store if the default one does not exist yet.
pub(crate) async fn open_for(
    purpose: StorePurpose,
    settings: &ConnectSettings,
    output: &Output,
) -> Result<Store, Failure> {
    let Ok(store) = &settings.store else { return open(settings, output).await };
    let is_default = match &store.origin {
        Origin::Default => true,
        Origin::Flag(flag) => flag == "--local",
        Origin::Variable(_) | Origin::File(_) => false,
    };
    match (&store.value, purpose) {
        (StoreUrl::Memory, StorePurpose::Hold) => {
            return Err(Failure::usage(
                "memory: is a store inside this process, so a lock in it excludes no other process",
            )
            .hint("use the store of this host with --local, or --store file:///path/store.db, or --endpoints host:2379"));
        }
        (StoreUrl::File(path), StorePurpose::Read) if is_default && !path.exists() => {
            for note in settings.notes.iter().filter(|_| !output.is_quiet) {
                output.note(note);
            }
            return Ok(Store::new(EmptyStore::new()));
        }
        (StoreUrl::File(path), StorePurpose::Follow) if is_default => refuse_missing(path)?,
        (StoreUrl::File(path), _) if !is_default => refuse_mistyped(path, purpose)?,
        _ => {}
    }
    open(settings, output).await
}

/// Refuses a path that is most likely mistyped. A store may be created in one new folder, but not below several.
fn refuse_mistyped(path: &Path, purpose: StorePurpose) -> Result<(), Failure> {
    let may_create = matches!(purpose, StorePurpose::Write | StorePurpose::Hold);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let needed = if may_create { folder.parent().unwrap_or(folder) } else { folder };
    let missing: Option<PathBuf> =
        needed.ancestors().take_while(|folder| is_missing(folder)).last().map(Path::to_owned);
    if let Some(missing) = missing {
        let message =
            format!("no store at file://{}: the folder {} does not exist", path.display(), missing.display());
        return Err(Failure::new(Code::NotFound, message)
            .hint(format!("check the path, or create the folder: mkdir -p -m 700 {}", folder.display())));
    }
    if may_create { Ok(()) } else { refuse_missing(path) }
}

/// Refuses a store file that does not exist. The hint names no folder, because a user does not create the folders of the default store.
fn refuse_missing(path: &Path) -> Result<(), Failure> {
    if !is_missing(path) {
        return Ok(());
    }
    let message = format!("no store at file://{}: the file does not exist", path.display());
    Err(Failure::new(Code::NotFound, message)
        .hint("check the path; the first `tenure lock`, `submit` or `kv put` creates a store"))
}

/// Whether the path certainly does not exist. An unreadable folder is reported when the store is opened.
fn is_missing(path: &Path) -> bool {
    path.try_exists().is_ok_and(|exists| !exists)
}
