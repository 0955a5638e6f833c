//! Ratchets: rules that old code still breaks. `xtask/tidy_baseline.txt` has the number of breaches per file, which may only shrink.
//!
//! A line per file, sorted, so that changes of different files merge. Git keeps the lines of both sides where it cannot merge
//! (`.gitattributes`), and of two lines about one file the smaller numbers count.

use std::collections::BTreeMap;

use super::tree::Tree;
use super::{Breach, prose, test_names, types};

pub(super) const PATH: &str = "xtask/tidy_baseline.txt";

/// A rule: its name in the file, and the function that finds its breaches.
type Ratchet = (&'static str, fn(&Tree) -> Vec<Breach>);

pub(super) const RATCHETS: [Ratchet; 3] =
    [("words", prose::banned), ("types", types::once_per_crate), ("tests", test_names::short)];

/// The breaches of each file under each rule, in the order of [`RATCHETS`].
pub(super) type Counts = BTreeMap<String, [usize; RATCHETS.len()]>;

/// All breaches of the tree, with their counts.
pub(super) struct Now {
    pub(super) counts: Counts,
    pub(super) breaches: Vec<(usize, Breach)>,
}

pub(super) fn now(tree: &Tree) -> Now {
    let mut now = Now { counts: Counts::new(), breaches: Vec::new() };
    for (rule, (_, find)) in RATCHETS.iter().enumerate() {
        for breach in find(tree) {
            now.counts.entry(breach.path.clone()).or_default()[rule] += 1;
            now.breaches.push((rule, breach));
        }
    }
    now
}

/// Reads the file. A line that cannot be read allows nothing.
pub(super) fn parse(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let Some(path) = words.next() else { continue };
        let mut row = [0; RATCHETS.len()];
        for word in words {
            let Some((name, number)) = word.split_once('=') else { continue };
            if let Some(rule) = RATCHETS.iter().position(|(known, _)| *known == name) {
                row[rule] = number.parse().unwrap_or(0);
            }
        }
        let kept = counts.entry(path.to_owned()).or_insert(row);
        for (kept, new) in kept.iter_mut().zip(row) {
            *kept = new.min(*kept);
        }
    }
    counts
}

/// The text of the file.
pub(super) fn format(counts: &Counts) -> String {
    let mut text = String::from(
        "# How often each file still breaks a rule that is a ratchet: never more. `cargo xtask tidy --lower` lowers the numbers.\n",
    );
    for (path, row) in counts.iter().filter(|(_, row)| row.iter().any(|count| *count > 0)) {
        text += path;
        for ((name, _), count) in RATCHETS.iter().zip(row).filter(|(_, count)| **count > 0) {
            text += &format!(" {name}={count}");
        }
        text.push('\n');
    }
    text
}

/// Files with more breaches than allowed: every breach of that rule in them, because none of them is known to be the new one.
pub(super) fn exceeded(now: &Now, allowed: &Counts) -> Vec<Breach> {
    let mut found = Vec::new();
    for (path, row) in &now.counts {
        let before = allowed.get(path).copied().unwrap_or_default();
        for (rule, (name, _)) in RATCHETS.iter().enumerate().filter(|(rule, _)| row[*rule] > before[*rule]) {
            found.push(Breach::in_file(
                path,
                format!("{} breaches of `{name}`, {} are allowed:", row[rule], before[rule]),
            ));
            let all = now.breaches.iter().filter(|(of, breach)| *of == rule && breach.path == *path);
            found.extend(all.map(|(_, breach)| Breach {
                why: breach.why.clone(),
                path: path.clone(),
                line: breach.line,
            }));
        }
    }
    found
}

/// The file for the tree as it is, or a rule that is now broken more often than before in all files together.
///
/// A file that was renamed takes its breaches along, so only the sum is compared.
pub(super) fn lowered(now: &Now, allowed: &Counts) -> Result<String, String> {
    for (rule, (name, _)) in RATCHETS.iter().enumerate() {
        let (is, was) = (sum(&now.counts, rule), sum(allowed, rule));
        if is > was {
            return Err(format!("`{name}` is broken {is} times in all files, and {was} are allowed"));
        }
    }
    Ok(format(&now.counts))
}

fn sum(counts: &Counts, rule: usize) -> usize {
    counts.values().map(|row| row[rule]).sum()
}

/// A row per crate or document with the numbers of all rules.
pub(super) fn table(now: &Counts) -> String {
    let mut crates = Counts::new();
    for (path, row) in now {
        let end = match path.strip_prefix("crates/") {
            Some(rest) => "crates/".len() + rest.find('/').unwrap_or(rest.len()),
            None => path.find('/').unwrap_or(path.len()),
        };
        let sum = crates.entry(path[..end].to_owned()).or_default();
        sum.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
    }
    let header = RATCHETS.iter().map(|(name, _)| format!("{name:>8}")).collect::<String>();
    let mut text = format!("   {:<24}{header}\n", "still broken");
    let total = (0..RATCHETS.len()).map(|rule| sum(now, rule)).collect::<Vec<_>>();
    let rows = crates.iter().map(|(path, row)| (path.as_str(), row.to_vec())).chain([("in all", total)]);
    for (path, row) in rows {
        let numbers = row.iter().map(|count| format!("{count:>8}")).collect::<String>();
        text += &format!("   {path:<24}{numbers}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "#[test]\nfn a_b_c_d_e_f_g_h_i() {}\n";

    fn tree(files: &[(&str, usize)]) -> Tree {
        let texts: Vec<String> = files.iter().map(|(_, tests)| LONG.repeat(*tests)).collect();
        let files: Vec<_> =
            files.iter().zip(&texts).map(|((path, _), text)| (*path, text.as_str())).collect();
        Tree::of(&files)
    }

    #[test]
    fn more_breaches_than_allowed_are_found() {
        let allowed = parse("crates/a/src/x.rs tests=2\n");
        let at_most = |tests| exceeded(&now(&tree(&[("crates/a/src/x.rs", tests)])), &allowed).len();
        assert_eq!((at_most(1), at_most(2), at_most(3)), (0, 0, 1 + 3));
        assert_eq!(exceeded(&now(&tree(&[("crates/a/src/new.rs", 1)])), &allowed).len(), 1 + 1);
    }

    #[test]
    fn written_file_is_read_back() {
        let counts = parse("# comment\nb words=3 tests=1\na types=2\n\nclean words=0\n");
        let text = format(&counts);
        assert!(text.ends_with("\na types=2\nb words=3 tests=1\n"), "{text}");
        assert_eq!(format(&parse(&text)), text);
    }

    #[test]
    fn smaller_numbers_of_two_lines_count() {
        let merged = parse("a words=3 tests=1\na words=2 tests=4\n");
        assert_eq!(format(&merged), format(&parse("a words=2 tests=1\n")));
        assert_eq!(parse("a words=3\na\n")["a"], [0; RATCHETS.len()]);
    }

    #[test]
    fn renamed_file_keeps_its_allowance() {
        let allowed = parse("crates/a/src/old.rs tests=2\n");
        let renamed = now(&tree(&[("crates/a/src/new.rs", 2)]));
        assert!(lowered(&renamed, &allowed).unwrap().ends_with("\ncrates/a/src/new.rs tests=2\n"));
        let grown = now(&tree(&[("crates/a/src/new.rs", 3)]));
        assert!(lowered(&grown, &allowed).unwrap_err().contains("3 times"));
    }

    #[test]
    fn table_has_a_row_per_crate() {
        let counts = parse("crates/a/src/x.rs words=1\ncrates/a/src/y.rs words=2\nREADME.md words=4\n");
        let table = table(&counts);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1..],
            [
                vec!["README.md", "4", "0", "0"],
                vec!["crates/a", "3", "0", "0"],
                vec!["in", "all", "7", "0", "0"]
            ]
        );
    }
}
