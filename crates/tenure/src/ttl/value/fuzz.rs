//! Fuzz target: a stored value is split as it was stamped, and no other bytes are split.

use bytes::Bytes;

use super::{Nonce, TtlValue};

fn stamp(stored: &[u8]) -> String {
    let apart = stored.to_vec().unstamped();
    let in_bytes = Bytes::copy_from_slice(stored).unstamped();
    assert_eq!(apart.clone().map(|(nonce, value)| (nonce, Bytes::from(value))), in_bytes);
    if let Ok(text) = std::str::from_utf8(stored) {
        let in_text = text.to_owned().unstamped().map(|(nonce, value)| (nonce, value.into_bytes()));
        assert_eq!(in_text, apart, "text and bytes are split alike");
    }
    let nonce = Nonce(7);
    assert_eq!(stored.to_vec().stamped(nonce).unstamped(), Some((nonce, stored.to_vec())));
    match apart {
        Some((nonce, value)) => {
            assert_eq!(value.stamped(nonce), stored, "there is one stored form");
            format!("a value of {}", value.len().min(8))
        }
        None => format!("foreign from {} on", stored.iter().zip(b"v1:0").take_while(|(a, b)| a == b).count()),
    }
}

#[test]
fn soak_stamped_values() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "stamp", stamp);
}
