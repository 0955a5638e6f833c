//! Fuzz target: `KEY=VALUE` never reaches beyond the registry of its namespace.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use tenure_core::id::Namespace;
use tenure_core::layout::{Key, Layout};

use super::parse;
use crate::failure::Failure;

/// Arguments up to each NUL, which no argument can have.
fn pairs(bytes: &[u8]) -> String {
    let namespace = Namespace::parse("shop").expect("a namespace");
    let layout = Layout::new(&namespace);
    let texts: Vec<OsString> =
        bytes.split(|byte| *byte == 0).map(|text| OsString::from_vec(text.to_vec())).collect();
    match parse(&texts, &namespace) {
        Ok(pairs) => {
            assert_eq!(pairs.len(), texts.len());
            for (pair, text) in pairs.iter().zip(&texts) {
                assert!(pair.path.starts_with(b"/shop/registry/"), "{:?}", pair.path);
                let Some(Key::Registration(stored)) = layout.parse(&pair.path) else {
                    panic!("{:?}", pair.path)
                };
                let is_instance = stored.as_instance().is_some();
                assert!(stored == pair.name || is_instance, "{stored:?}");
                let together = [pair.name.as_str().as_bytes(), b"=", &pair.value].concat();
                assert_eq!(OsString::from_vec(together), *text);
            }
            let paths: BTreeSet<_> = pairs.iter().map(|pair| &pair.path).collect();
            assert_eq!(paths.len(), pairs.len(), "one key twice");
            format!("{} pairs", pairs.len().min(8))
        }
        Err(bad) => {
            let variant = format!("{bad:?}").chars().take_while(|c| c.is_alphabetic()).collect();
            let failure = Failure::from(bad);
            assert!(!failure.message.contains(char::is_control), "{failure:?}");
            assert!(failure.hint.is_some());
            variant
        }
    }
}

#[test]
fn pairs_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "pairs", pairs);
}
