//! Fuzz target: endpoints become one address, and no message repeats a password.

use super::{parse_endpoints, parse_url};

fn endpoints(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    for outcome in [parse_url(text), parse_endpoints(text, false), parse_endpoints(text, true)] {
        match outcome {
            Ok(url) => assert_eq!(parse_url(&url.to_string()), Ok(url)),
            Err(failure) if text.contains('@') && !text.starts_with("file:") => {
                assert_eq!(failure.message, "an address must not carry a user or a password");
            }
            Err(failure) => assert!(!failure.message.contains(char::is_control), "{failure:?}"),
        }
    }
    match parse_endpoints(text, false) {
        Ok(url) => format!("{} members", url.to_string().matches(',').count().min(5) + 1),
        Err(failure) => failure.message.split('"').next().unwrap_or_default().to_owned(),
    }
}

#[test]
fn endpoints_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "endpoints", endpoints);
}
