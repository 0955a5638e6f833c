//! `tenure config`: what is configured, and who said so.

use serde::Serialize;

use crate::cli::{ConfigCommand, Global};
use crate::connect::{self, Decision, Origin, Password, Sourced};
use crate::failure::Failure;
use crate::output::Output;

/// Runs a `config` command.
pub(crate) fn run(command: &ConfigCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show => show(&connect::decide(global)?, output),
        ConfigCommand::Path => path(output),
    }
}

/// One setting as it is shown.
#[derive(Serialize)]
pub(crate) struct SettingRow {
    name: &'static str,
    value: String,
    source: Origin,
}

impl std::fmt::Display for SettingRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} (from {})", self.name, self.value, self.source)
    }
}

/// Every setting that has a value, secrets as `(set)`.
pub(crate) fn settings(decision: &Decision) -> Vec<SettingRow> {
    fn shown<T>(name: &'static str, found: &Sourced<T>, value: impl Fn(&T) -> String) -> SettingRow {
        SettingRow { name, value: value(&found.value), source: found.origin.clone() }
    }
    let path = |path: &std::path::PathBuf| path.display().to_string();
    let mut settings = Vec::new();
    settings.extend(decision.store.as_ref().ok().map(|found| shown("store", found, ToString::to_string)));
    settings.push(shown("namespace", &decision.namespace, ToString::to_string));
    settings.extend(decision.cacert.as_ref().map(|found| shown("cacert", found, path)));
    settings.extend(decision.cert.as_ref().map(|found| shown("cert", found, path)));
    settings.extend(decision.key.as_ref().map(|found| shown("key", found, path)));
    settings.extend(decision.user.as_ref().map(|found| shown("user", found, Clone::clone)));
    settings.extend(decision.password.as_ref().map(|found| {
        shown("password", found, |password| match password {
            Password::Text(_) => "(set)".to_owned(),
            Password::File(path) => format!("(in {})", path.display()),
        })
    }));
    settings.extend(decision.node.as_ref().map(|found| shown("node", found, Clone::clone)));
    settings
}

fn show(decision: &Decision, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ConfigReport {
        schema: &'static str,
        settings: Vec<SettingRow>,
        notes: Vec<String>,
    }
    let settings = settings(decision);
    if output.is_json {
        output.object(&ConfigReport {
            schema: "tenure.config/v1",
            settings,
            notes: decision.notes.clone(),
        })?;
    } else {
        let rows: Vec<Vec<String>> = settings
            .into_iter()
            .map(|shown| vec![shown.name.to_owned(), shown.value, shown.source.to_string()])
            .collect();
        output.table(&["setting", "value", "source"], &rows)?;
        for note in &decision.notes {
            output.note(note);
        }
    }
    decision.store.as_ref().map(drop).map_err(Clone::clone)
}

fn path(output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ConfigPath {
        path: String,
        exists: bool,
    }
    #[derive(Serialize)]
    struct ConfigPathReport {
        schema: &'static str,
        paths: Vec<ConfigPath>,
    }
    let places: Vec<ConfigPath> = connect::config_paths()
        .into_iter()
        .map(|path| ConfigPath { exists: path.exists(), path: path.display().to_string() })
        .collect();
    if output.is_json {
        return output.object(&ConfigPathReport { schema: "tenure.config/v1", paths: places });
    }
    let rows: Vec<Vec<String>> = places
        .into_iter()
        .map(|place| vec![place.path, if place.exists { "exists" } else { "missing" }.to_owned()])
        .collect();
    output.table(&["path", "state"], &rows)
}
