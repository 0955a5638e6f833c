//! Times, as users type them and as they are printed.

use crate::record::Timestamp;

/// The last moment of the year 9999. Later years have five digits, which RFC 3339 does not allow.
const READABLE_MAX: Timestamp = Timestamp(253_402_300_799_999);

/// Every number is printed, and what is printed is read back.
pub(super) fn time(bytes: &[u8]) -> String {
    let mut number = [0; 8];
    let len = bytes.len().min(8);
    number[..len].copy_from_slice(&bytes[..len]);
    there_and_back(Timestamp(u64::from_le_bytes(number)));
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match text.parse::<Timestamp>() {
        Ok(time) => {
            there_and_back(time);
            format!("a time of {}", time.0.checked_ilog10().unwrap_or(0))
        }
        Err(bad) => {
            assert!(!bad.to_string().contains(char::is_control), "{bad}");
            format!("refused, {} digits", text.chars().filter(char::is_ascii_digit).count().min(30))
        }
    }
}

fn there_and_back(time: Timestamp) {
    let shown = time.to_string();
    assert!(shown.ends_with('Z'), "{shown}");
    if time <= READABLE_MAX {
        assert_eq!(shown.parse(), Ok(time), "{shown}");
    }
}
