//! `cargo xtask nemesis`: real processes on a real store while faults hit them, and the table of what came of it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sabotage;
use crate::shell::{XtaskError, cargo, root, run};

/// Where figures are kept, as lines `key = value`.
const RESULTS: &str = "docs/results";

/// The document with the table.
pub(crate) const DOCUMENT: &str = "docs/guarantees.md";

/// The markers before and after the table.
const BEGIN: &str = "<!-- written from docs/results by `cargo xtask fix` -->\n";
const END: &str = "<!-- until here -->\n";

/// Runs the rig, optimised and with backtraces; on both stores unless one is named.
pub(crate) fn nemesis(args: &[&str]) -> Result<(), XtaskError> {
    let stores: &[&str] =
        if args.iter().any(|arg| ["--store", "--against"].contains(arg)) { &[] } else { &["etcd", "file"] };
    let folder = root().join(RESULTS);
    let mut words: Vec<String> = Vec::new();
    for arg in args {
        words.push((*arg).to_owned());
        if *arg == "--record" {
            std::fs::create_dir_all(&folder)
                .map_err(|error| XtaskError(format!("{RESULTS} cannot be made: {error}")))?;
            words.push(folder.display().to_string());
        }
    }
    let cargo = if breaks_a_rule(args) { sabotage::cargo } else { cargo };
    let rig = ["run", "--quiet", "--locked", "--profile", "traced", "--package", "tenure-nemesis", "--"];
    if stores.is_empty() {
        return run(cargo(&rig).args(&words));
    }
    for store in stores {
        run(cargo(&rig).args(["--store", store]).args(&words))?;
    }
    Ok(())
}

/// Whether a rule of this project is to be broken: what `--against` names otherwise is a lock of others.
fn breaks_a_rule(args: &[&str]) -> bool {
    let named = args.windows(2).find_map(|pair| (pair[0] == "--against").then_some(pair[1]));
    named.is_some_and(|named| !["tenure", "plain", "etcdctl"].contains(&named))
}

/// The table of all results that were kept.
pub(crate) fn table(root: &Path) -> Result<String, XtaskError> {
    let folder = root.join(RESULTS);
    let mut rows = Vec::new();
    let entries = std::fs::read_dir(&folder).map_err(|error| XtaskError(format!("{RESULTS}: {error}")))?;
    for entry in entries {
        let path = entry.map_err(|error| XtaskError(format!("{RESULTS}: {error}")))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("nemesis-") {
            let text =
                std::fs::read_to_string(&path).map_err(|error| XtaskError(format!("{name}: {error}")))?;
            rows.push(row(&text).map_err(|key| XtaskError(format!("{name} has no {key}")))?);
        }
    }
    rows.sort();
    let mut table =
        "| lock | store | minutes | faults | operations | violations |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (_, row) in rows {
        table.push_str(&row);
    }
    Ok(table)
}

/// One row and its sort key: Tenure first.
fn row(text: &str) -> Result<((bool, String), String), &'static str> {
    let lines = text.lines().filter_map(|line| line.split_once(" = "));
    let values: BTreeMap<&str, &str> = lines.collect();
    let value = |key: &'static str| values.get(key).copied().ok_or(key);
    let (lock, store) = (value("lock")?, value("store")?);
    let subject = match lock {
        "tenure" => "Tenure, with all other work beside it".to_owned(),
        "plain" => "a key with a lease, and nothing else (must be found)".to_owned(),
        "etcdctl" => "`etcdctl lock` with a command".to_owned(),
        rule => format!("Tenure with the rule `{rule}` broken (must be found)"),
    };
    let kinds: Vec<String> = values
        .iter()
        .filter_map(|(key, count)| Some(format!("{} {count}", key.strip_prefix("violated ")?)))
        .collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(", ")) };
    let row = format!(
        "| {subject} | {store} | {} | {} | {} | {}{kinds} |\n",
        value("minutes")?,
        value("faults")?,
        value("operations")?,
        value("violations")?
    );
    Ok(((lock != "tenure", format!("{lock} {store}")), row))
}

/// The document with this table in its place.
pub(crate) fn with_table(document: &str, table: &str) -> Result<String, XtaskError> {
    let missing = || XtaskError(format!("{DOCUMENT} has no place for the table: {BEGIN}"));
    let (before, rest) = document.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = "run = etcd\nstore = etcd\nlock = tenure\nminutes = 10.0\nfaults = 300\noperations = 20000\nviolations = 0\n";

    #[test]
    fn only_rule_runs_require_a_sabotage_build() {
        assert!(breaks_a_rule(&["--minutes", "1", "--against", "OwnPlace"]));
        for other in ["tenure", "plain", "etcdctl"] {
            assert!(!breaks_a_rule(&["--against", other, "--minutes", "1"]), "{other}");
        }
        assert!(!breaks_a_rule(&["--minutes", "1"]));
    }

    #[test]
    fn results_become_rows_with_tenure_first() {
        let (ours, text) = row(RESULT).unwrap();
        assert_eq!(text, "| Tenure, with all other work beside it | etcd | 10.0 | 300 | 20000 | 0 |\n");
        let found = format!("{}violated one holder = 3\n", RESULT.replace("tenure", "plain"));
        let (plain, text) = row(&found.replace("violations = 0", "violations = 3")).unwrap();
        assert!(ours < plain);
        assert!(text.ends_with("| 3: one holder 3 |\n"), "{text}");
        assert_eq!(row(&RESULT.replace("faults", "fault")).unwrap_err(), "faults");
    }

    #[test]
    fn new_table_replaces_old_one() {
        let document = format!("a\n{BEGIN}old\n{END}b\n");
        let fresh = with_table(&document, "new\n").unwrap();
        assert_eq!(fresh, format!("a\n{BEGIN}\nnew\n\n{END}b\n"));
        assert_eq!(with_table(&fresh, "new\n").unwrap(), fresh, "written twice it stays");
        assert!(with_table("a\n", "new\n").is_err());
    }

    #[test]
    fn guarantees_show_the_recorded_table() {
        let kept = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
        let fresh = with_table(&kept, &table(&root()).unwrap()).unwrap();
        assert_eq!(kept, fresh, "`cargo xtask fix` writes it");
    }
}
