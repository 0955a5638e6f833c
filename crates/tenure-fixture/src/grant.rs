//! An etcd with authentication and one user that has one grant, for every test that starts one: `TENURE_ETCD_GRANT=/tenure/`.
//!
//! It shows that a suite written without users passes with the least privilege. Tests that write elsewhere, or that use a client of their own,
//! fail under it, so a filter chooses the tests.

use crate::member::Member;

/// The variable with the prefix that the user may read and write.
const VARIABLE: &str = "TENURE_ETCD_GRANT";

/// The user of [`granted_user`], as `name:password`.
const USER: &str = "granted:granted";

/// The user that tests sign in as, as `name:password`; none unless `TENURE_ETCD_GRANT` is set.
pub fn granted_user() -> Option<&'static str> {
    std::env::var_os(VARIABLE).map(|_| USER)
}

/// Enables authentication if the variable asks for it.
///
/// # Panics
/// If the member refuses a step.
pub(crate) fn enable(member: &Member) {
    let Ok(prefix) = std::env::var(VARIABLE) else { return };
    let end = format!("{}0", prefix.strip_suffix('/').expect("a granted prefix ends in '/'"));
    let (key, end) = (base64(prefix.as_bytes()), base64(end.as_bytes()));
    let (name, password) = USER.split_once(':').expect("a name and a password");
    for (path, document) in [
        ("user/add", r#"{"name":"root","password":"root"}"#.to_owned()),
        ("role/add", r#"{"name":"root"}"#.to_owned()),
        ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
        ("user/add", format!(r#"{{"name":"{name}","password":"{password}"}}"#)),
        ("role/add", format!(r#"{{"name":"{name}"}}"#)),
        (
            "role/grant",
            format!(
                r#"{{"name":"{name}","perm":{{"permType":"READWRITE","key":"{key}","range_end":"{end}"}}}}"#
            ),
        ),
        ("user/grant", format!(r#"{{"user":"{name}","role":"{name}"}}"#)),
        ("enable", "{}".to_owned()),
    ] {
        let answer = member.post(&format!("/v3/auth/{path}"), &document);
        answer.unwrap_or_else(|error| panic!("{path} is refused: {error}"));
    }
}

/// Bytes as etcd's JSON takes them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * n) & 63).unwrap_or(0);
            text.push(if n <= chunk.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_are_written_as_base64() {
        for (bytes, text) in [(&b""[..], ""), (b"/", "Lw=="), (b"/a", "L2E="), (b"/tenure/", "L3RlbnVyZS8=")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
