//! Fuzz target: a configuration file is read completely, or refused with the invalid line.

use super::parse;
use crate::connect::source::Setting;

fn file(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match parse(text) {
        Ok(values) => {
            assert!(!values.contains_key(&Setting::Password), "a password in a shared file");
            let misspelt = format!("endpoint = 'a:1'\n{text}");
            assert!(parse(&misspelt).is_err(), "a misspelt key is skipped");
            values.keys().map(|setting| setting.name()).collect::<Vec<_>>().join(" ")
        }
        Err(failure) => {
            let message = &failure.message;
            assert!(!message.contains('\n') && failure.hint.is_some(), "{failure:?}");
            let (location, why) = message.split_once(": ").expect("a location and a reason");
            if let Some(line) = location.strip_prefix("near line ") {
                let line: usize = line.parse().expect("a number");
                assert!(
                    (1..=text.matches('\n').count() + 1).contains(&line),
                    "line {line} is not in the file"
                );
            } else {
                assert_eq!(location, "somewhere in it", "no location is named");
            }
            why.split(|c: char| c.is_ascii_digit() || matches!(c, '"' | '`'))
                .next()
                .unwrap_or_default()
                .to_owned()
        }
    }
}

#[test]
fn files_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "config", file);
}
