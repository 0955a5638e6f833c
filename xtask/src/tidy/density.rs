//! The density of inline comments in protocol code: a report, not a rule, because a comment without a reason is worse than none.

use std::collections::BTreeMap;

use super::rust::{TokenKind, tokens};
use super::tree::Tree;

/// Protocol code: the machines, their drivers, and the connection to etcd.
const FOLDERS: [&str; 4] = [
    "crates/tenure-core/src/",
    "crates/tenure/src/",
    "crates/tenure-etcd/src/watch",
    "crates/tenure-etcd/src/keepalive",
];

/// Below this many per 100 lines of code, a folder is marked.
const WANTED: f64 = 3.0;

/// Lines of code and of inline comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    comments: usize,
}

impl Lines {
    fn per_hundred(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "lines of source")]
        let (code, comments) = (self.code as f64, self.comments as f64);
        if self.code == 0 { 0.0 } else { 100.0 * comments / code }
    }
}

/// A row per module of the protocol folders below a path, sparsest first.
pub(super) fn report(tree: &Tree, beginning: &str) -> String {
    let mut modules = BTreeMap::<String, Lines>::new();
    let sources =
        tree.ending(".rs").filter(|(path, _)| path.starts_with(beginning) && !path.contains("/tests"));
    for (path, text) in sources {
        if let Some(module) = module(path) {
            let lines = count(text);
            let sum = modules.entry(module).or_default();
            sum.code += lines.code;
            sum.comments += lines.comments;
        }
    }
    let mut rows: Vec<_> = modules.into_iter().filter(|(_, lines)| lines.code > 0).collect();
    rows.sort_by(|a, b| a.1.per_hundred().total_cmp(&b.1.per_hundred()));
    let mut text = String::from("   inline comments per 100 lines of code, without tests:\n");
    for (module, lines) in rows {
        let mark = if lines.per_hundred() < WANTED { " <" } else { "" };
        text += &format!("   {:>6.1}  {:>5} lines  {module}{mark}\n", lines.per_hundred(), lines.code);
    }
    text
}

/// The module at the top of its crate that a file belongs to: `crates/tenure/src/lock` for that file and all below.
fn module(path: &str) -> Option<String> {
    let folder = FOLDERS.iter().find(|folder| path.starts_with(**folder))?;
    if !folder.ends_with('/') {
        return Some((*folder).to_owned());
    }
    let first = path[folder.len()..].split('/').next()?.trim_end_matches(".rs");
    Some(format!("{folder}{first}"))
}

/// What is before the first `#[cfg(test)]`, as tests come last in a file.
fn count(text: &str) -> Lines {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let tokens = tokens(&text[..end]);
    let mut code: Vec<usize> =
        tokens.iter().filter(|token| token.is_code()).map(|token| token.line).collect();
    code.dedup();
    let comments = tokens.iter().filter(|token| token.kind == TokenKind::Comment);
    Lines { code: code.len(), comments: comments.map(|token| token.text.lines().count()).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_comments_of_code_are_counted() {
        let text = "//! Doc.\n\n/// Doc.\nfn f() {\n    // Why.\n    g(); // Why, too.\n}\n#[cfg(test)]\nmod tests { // no\n}\n";
        assert_eq!(count(text), Lines { code: 3, comments: 2 });
        let tree = Tree::of(&[("crates/tenure/src/lock/x.rs", text), ("crates/tenure-cli/src/x.rs", text)]);
        let report = report(&tree, "");
        assert_eq!(report.lines().count(), 2);
        assert!(report.contains("  66.7      3 lines  crates/tenure/src/lock\n"), "{report}");
    }
}
