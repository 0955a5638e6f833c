//! The tests of the tree with their packages, under the names that the test runner gives them.

use super::tree::Tree;

/// All tests with their package, named as the test runner does: the modules, then the function.
pub(super) fn tests(tree: &Tree) -> Vec<(String, String)> {
    let mut tests = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let Some((folder, below)) = path.split_once("/src/").or_else(|| path.split_once("/tests/")) else {
            continue;
        };
        let Some(package) = folder.rsplit('/').next() else { continue };
        let file = file_modules(below, !path.contains("/src/"));
        tests.extend(functions(text).into_iter().map(|name| {
            let whole = if file.is_empty() { name } else { format!("{file}::{name}") };
            (package.to_owned(), whole)
        }));
    }
    tests
}

/// The modules of a file: `a/b.rs` is `a::b`. The first folder of an integration test is the name of its program.
fn file_modules(below: &str, is_integration: bool) -> String {
    let below = below.trim_end_matches(".rs");
    let below = match below.split_once('/') {
        Some((_, rest)) if is_integration => rest,
        _ => below,
    };
    if ["lib", "main"].contains(&below) { String::new() } else { below.replace('/', "::") }
}

/// The tests in a source file, below the modules inside of it. Formatted code shows by its indentation where a module ends.
fn functions(text: &str) -> Vec<String> {
    let mut modules: Vec<(usize, &str)> = Vec::new();
    let mut names = Vec::new();
    // The attribute that makes the next function a test, and the indentation of a macro that makes a test of each name in it.
    let (mut is_test, mut made) = (false, None);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with('}') {
            modules.retain(|(outer, _)| *outer < indent);
            made = made.filter(|outer| *outer < indent);
        }
        let named = |name: &str| {
            let path: Vec<&str> = modules.iter().map(|(_, module)| *module).chain([name]).collect();
            path.join("::")
        };
        let code = code.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
        if let Some(module) = code.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            modules.push((indent, module));
        } else if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if code.starts_with("on_every_engine! {") {
            made = Some(indent);
        } else if let (Some(_), Some(name)) = (made, code.strip_suffix(';')) {
            names.push(named(name));
        } else if let Some(rest) = code.trim_start_matches("async ").strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            names.push(named(rest.split('(').next().unwrap_or_default()));
        }
    }
    names
}
