//! Fuzz target: a configured store is never replaced by another one, and no password is shown.

use std::path::PathBuf;

use super::{Origin, Setting, Sources, decide};

/// A unique text, so that only a password can contain it.
const SECRET: &str = "hidden-8f1e";

/// Reads lines such as `flag store=etcd://a:1`, `env HOME=/h`, `user node=a`, `machine node=b` and `local`.
fn sources(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    let mut sources = Sources { files: vec![], ..Sources::default() };
    let (mut user, mut machine) = Default::default();
    for line in text.lines() {
        let (source, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
        let setting = Setting::ALL.into_iter().find(|setting| setting.name() == name && name != "password");
        let values = match source {
            "flag" => &mut sources.flags,
            "user" => &mut user,
            "machine" => &mut machine,
            "local" => {
                sources.is_local = true;
                continue;
            }
            _ => {
                sources.env.insert(name.to_owned(), value.to_owned());
                continue;
            }
        };
        if let Some(setting) = setting {
            values.insert(setting, value.to_owned());
        }
    }
    sources.env.insert("ETCDCTL_PASSWORD".to_owned(), SECRET.to_owned());
    sources.files = vec![(PathBuf::from("/u"), user), (PathBuf::from("/m"), machine)];
    let outcome = decide(&sources);
    assert!(!format!("{outcome:?}").contains(SECRET), "a password is shown");
    let files = sources.files.iter().flat_map(|(_, values)| values);
    let is_named = files
        .chain(&sources.flags)
        .any(|(setting, value)| matches!(setting, Setting::Store | Setting::Endpoints) && !value.is_empty());
    match outcome {
        Ok(settings) => match settings.store {
            Ok(store) => {
                assert!(!is_named || store.origin != Origin::Default, "a store was named and not taken");
                let scheme = store.value.to_string();
                format!("{} by {}", scheme.split(':').next().unwrap_or_default(), store.origin)
            }
            Err(failure) => short(&failure.message),
        },
        Err(failure) => short(&failure.message),
    }
}

fn short(message: &str) -> String {
    message.split(|c: char| c.is_ascii_digit() || c == '"').next().unwrap_or_default().to_owned()
}

#[test]
fn sources_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "sources", sources);
}
