//! Names of tests: subject, condition, result. The claim in full belongs into the doc comment.

use super::Breach;
use super::rust::{items, tokens};
use super::tree::Tree;

const NAME_PARTS_MAX: usize = 8;

/// Tests with names that are too long to read at a glance.
pub(super) fn short(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.ending(".rs") {
        for item in items(&tokens(text)).into_iter().filter(|item| item.is_test) {
            let words = item.name.split('_').filter(|word| !word.is_empty()).count();
            if words > NAME_PARTS_MAX {
                let why = format!("`{}` has {words} words, at most {NAME_PARTS_MAX}", item.name);
                breaches.push(Breach::at(path, item.line, why));
            }
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_part_names_are_found() {
        let text = "#[test]\nfn a_b_c_d_e_f_g_h() {}\n#[tokio::test(start_paused = true)]\nasync fn a_b_c_d_e_f_g_h_i() {}\n";
        let found = short(&Tree::of(&[("crates/a/src/x.rs", text)]));
        assert_eq!(found.iter().map(|breach| breach.line).collect::<Vec<_>>(), [Some(4)]);
        assert_eq!(short(&Tree::of(&[("x.rs", "fn a_b_c_d_e_f_g_h_i() {}\n")])), [], "no test");
    }
}
