//! Which servers may be believed when they announce progress on request.
//!
//! Before 3.4.25 and 3.5.8 the answer could overtake the events it speaks of (etcd issue 15220); resuming after it
//! would lose them.

use crate::version::Version;

/// Whether requested progress comes after the events it covers.
pub(super) fn announces_progress_in_order(version: Version) -> bool {
    let needed = match (version.major, version.minor) {
        (3, 4) => 25,
        (3, 5) => 8,
        (major, minor) => return (major, minor) > (3, 5),
    };
    version.patch >= needed
}

#[cfg(test)]
mod tests {
    use super::announces_progress_in_order;
    use crate::version::Version;

    #[test]
    fn each_line_is_believed_from_its_fix_on() {
        let cases = [
            ("3.3.27", false),
            ("3.4.24", false),
            ("3.4.25", true),
            ("3.5.7", false),
            ("3.5.8", true),
            ("3.6.0", true),
            ("3.7.2", true),
            ("4.0.0", true),
        ];
        for (text, wanted) in cases {
            assert_eq!(announces_progress_in_order(Version::parse(text).unwrap()), wanted, "{text}");
        }
    }
}
