//! Wrong command lines are refused before anything is measured.

use crate::run;

#[test]
fn etcd_that_is_named_must_be_configured() {
    for which in ["store", "session", "lock", "election", "tasks"] {
        let ran = run(&[which, "--engines", "etcd"], None);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("TENURE_ENDPOINTS") && ran.stdout.is_empty(), "{ran:?}");
    }
}

#[test]
fn wrong_value_is_refused() {
    for which in ["lock", "election"] {
        for (words, reason) in [
            (["--n", "0"], "must be at least 1"),
            (["--n", "many"], "not a number"),
            (["--rounds", "0"], "must be at least 1"),
            (["--engines", "etc"], "etcd"),
            (["--workloads", "nothing"], "there are"),
            (["--endpoints", "https://127.0.0.1:1"], "invalid value"),
        ] {
            let ran = run(&[which, words[0], words[1]], None);
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(ran.stderr.contains(reason) && ran.stdout.is_empty(), "{reason}: {ran:?}");
        }
    }
}
