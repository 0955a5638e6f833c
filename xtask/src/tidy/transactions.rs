//! Which files may build a transaction: the machines of tenure-core, and those that are about the store itself.

use super::Breach;
use super::sources::contains_identifier;
use super::tree::Tree;

/// How a transaction begins.
const BEGINNINGS: [&str; 2] = ["Txn::new(", "Txn::default("];

/// Files and folders that build transactions, by the beginning of their path.
const BUILDERS: &[&str] = &[
    // The protocols.
    "crates/tenure-core/",
    // A transaction of the etcd protocol, under the same name.
    "crates/tenure-etcd/",
    // The store's own interface, its engines, and the suite that compares them.
    "crates/tenure/src/store/",
    "crates/tenure/src/conformance/",
    // A storage on a store: one transaction is one of its operations.
    "crates/tenure/src/ttl/store_storage.rs",
    // Commands on raw keys and leases, and the audit records of those.
    "crates/tenure-cli/src/kv/",
    "crates/tenure-cli/src/audit.rs",
    // Whether the user may write, asked with a transaction that changes nothing.
    "crates/tenure-cli/src/doctor/etcd.rs",
    // Workloads: what a user of the library would write.
    "crates/tenure-bench/src/",
    "crates/tenure-nemesis/src/client/",
    "crates/tenure-sim/src/workload",
];

/// Transactions that are built elsewhere than in the core. Tests may build any.
pub(super) fn built(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let sources = tree.ending(".rs").filter(|(path, _)| {
        path.starts_with("crates/")
            && path.contains("/src/")
            && !path.contains("/tests")
            && !BUILDERS.iter().any(|builder| path.starts_with(builder))
    });
    for (path, text) in sources {
        let before_tests = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
        for (index, line) in before_tests.enumerate() {
            let is_code = !line.trim_start().starts_with("//");
            if is_code && BEGINNINGS.iter().any(|beginning| contains_identifier(line, beginning)) {
                let why =
                    "a transaction is built outside tenure-core: let a machine or an `Exchange` build it";
                breaches.push(Breach::at(path, index + 1, why));
            }
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_files_and_tests_build_transactions() {
        let build = "let txn = Txn::new().then(put);\n";
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{build}}}\n");
        for (path, text, expected) in [
            ("crates/tenure/src/session/perform.rs", build, 1),
            ("crates/tenure/src/lock/view.rs", "Txn { then, ..Txn::default() }\n", 1),
            ("crates/tenure-core/src/session/request.rs", build, 0),
            ("crates/tenure/src/store/handle.rs", build, 0),
            ("crates/tenure/src/session/tests.rs", build, 0),
            ("crates/tenure/tests/it/session.rs", build, 0),
            ("crates/tenure/src/session/perform.rs", &in_tests, 0),
            ("crates/tenure/src/session/perform.rs", "/// Txn::new()\n", 0),
            ("crates/tenure/src/session/perform.rs", "fn txn(&self) -> Txn {\n", 0),
        ] {
            assert_eq!(built(&Tree::of(&[(path, text)])).len(), expected, "{path}: {text}");
        }
    }
}
