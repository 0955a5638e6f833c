//! `tenure config`: prints the settings with their sources.

use serde::Serialize;

use crate::cli::{ConfigCommand, Global};
use crate::connect::{self, ConnectSettings, Origin, Password, Sourced};
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
pub(crate) fn setting_rows(settings: &ConnectSettings) -> Vec<SettingRow> {
    fn shown<T>(name: &'static str, found: &Sourced<T>, value: impl Fn(&T) -> String) -> SettingRow {
        SettingRow { name, value: value(&found.value), source: found.origin.clone() }
    }
    let path = |path: &std::path::PathBuf| path.display().to_string();
    let mut rows = Vec::new();
    rows.extend(settings.store.as_ref().ok().map(|found| shown("store", found, ToString::to_string)));
    rows.push(shown("namespace", &settings.namespace, ToString::to_string));
    rows.extend(settings.cacert.as_ref().map(|found| shown("cacert", found, path)));
    rows.extend(settings.cert.as_ref().map(|found| shown("cert", found, path)));
    rows.extend(settings.key.as_ref().map(|found| shown("key", found, path)));
    rows.extend(settings.user.as_ref().map(|found| shown("user", found, Clone::clone)));
    rows.extend(settings.password.as_ref().map(|found| {
        shown("password", found, |password| match password {
            Password::Text(_) => "(set)".to_owned(),
            Password::File(path) => format!("(in {})", path.display()),
        })
    }));
    rows.extend(settings.node.as_ref().map(|found| shown("node", found, Clone::clone)));
    rows
}

fn show(settings: &ConnectSettings, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ConfigReport {
        schema: &'static str,
        settings: Vec<SettingRow>,
        notes: Vec<String>,
    }
    let rows = setting_rows(settings);
    if output.is_json {
        output.object(&ConfigReport {
            schema: "tenure.config/v1",
            settings: rows,
            notes: settings.notes.clone(),
        })?;
    } else {
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|shown| vec![shown.name.to_owned(), shown.value, shown.source.to_string()])
            .collect();
        output.table(&["setting", "value", "source"], &rows)?;
        for note in &settings.notes {
            output.note(note);
        }
    }
    settings.store.as_ref().map(drop).map_err(Clone::clone)
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
    let paths: Vec<ConfigPath> = connect::config_paths()
        .into_iter()
        .map(|path| ConfigPath { exists: path.exists(), path: path.display().to_string() })
        .collect();
    if output.is_json {
        return output.object(&ConfigPathReport { schema: "tenure.config/v1", paths });
    }
    let rows: Vec<Vec<String>> = paths
        .into_iter()
        .map(|path| vec![path.path, if path.exists { "exists" } else { "missing" }.to_owned()])
        .collect();
    output.table(&["path", "state"], &rows)
}
