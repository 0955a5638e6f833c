//! Fuzz target: no reply, of a server or of another program, turns a lost request into a refused
//! one.

use tonic::{Code, Status};

use super::{Class, RequestSize, classify};
use crate::version::{ServerVersion, known_defects};

/// The shortest words by which an answer is known are longer than this.
const TEXT_LEN_MIN: usize = 15;

/// The input is a code followed by the text.
fn status(bytes: &[u8]) -> String {
    let (code, text) = bytes.split_first().map_or((0, bytes), |(code, text)| (*code, text));
    let text = String::from_utf8_lossy(text);
    if let Some(version) = ServerVersion::parse(&text) {
        assert_eq!(ServerVersion::parse(&version.to_string()), Some(version));
        assert!(known_defects(version).len() < 100);
    }
    let code = Code::from_i32(i32::from(code % 20));
    let class = by_code(code, &text);
    let is_lost = matches!(class, Class::Lost(_));
    if text.len() < TEXT_LEN_MIN && code != Code::Unimplemented && !text.starts_with("etcdserver: ") {
        assert!(is_lost, "{class:?} out of so few words");
    }
    if !text.starts_with("etcdserver: ") && code != Code::Unimplemented {
        let other = by_code(Code::Unknown, &text);
        assert_eq!(kind(&class), kind(&other), "the code alone decides");
    }
    let transport = Status::from_error(Box::new(std::io::Error::other(text.into_owned())));
    assert!(matches!(classify(&transport, RequestSize::default()), Class::Lost(_)), "only a server answers");
    kind(&class)
}

fn by_code(code: Code, text: &str) -> Class {
    classify(&Status::new(code, text), RequestSize::default())
}

/// The class, and of an answer which.
fn kind(class: &Class) -> String {
    let text = format!("{class:?}");
    let end = text.match_indices(['(', '{']).nth(1).map_or(text.len(), |(at, _)| at);
    match class {
        Class::Answer(_) => text[..end].to_owned(),
        Class::Stale(_) | Class::Unsent(_) | Class::Refused(_) | Class::Overlong(_) | Class::Lost(_) => {
            text.split('(').next().unwrap_or_default().to_owned()
        }
    }
}

#[test]
fn statuses_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "status", status);
}
