//! What the server of a stream may be believed.
//!
//! Before 3.4.25 and 3.5.8 progress on request could overtake the events it speaks of (etcd issue 15220); resuming
//! after it would lose them. Before 3.4.36 and 3.5.18 a watch from the compacted revision missed a delete in it
//! (etcd issues 18089 and 19179).

use crate::version::ServerVersion;

/// What a server may be believed; nothing as long as its version is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct VersionQuirks {
    /// Requested progress comes after the events it covers.
    pub(super) progress: bool,
    /// A watch that the server accepts gets every event from its start on.
    pub(super) history: bool,
}

impl VersionQuirks {
    pub(super) fn of(version: ServerVersion) -> Self {
        Self { progress: has(version, 25, 8), history: has(version, 36, 18) }
    }
}

/// Whether the version has what 3.4 and 3.5 got with these patches.
fn has(version: ServerVersion, patch_of_3_4: u32, patch_of_3_5: u32) -> bool {
    let needed = match (version.major, version.minor) {
        (3, 4) => patch_of_3_4,
        (3, 5) => patch_of_3_5,
        (major, minor) => return (major, minor) > (3, 5),
    };
    version.patch >= needed
}

#[cfg(test)]
mod tests {
    use super::VersionQuirks;
    use crate::version::ServerVersion;

    #[test]
    fn quirks_end_with_fixed_version() {
        let cases = [
            ("3.3.27", false, false),
            ("3.4.24", false, false),
            ("3.4.25", true, false),
            ("3.4.35", true, false),
            ("3.4.36", true, true),
            ("3.5.7", false, false),
            ("3.5.8", true, false),
            ("3.5.17", true, false),
            ("3.5.18", true, true),
            ("3.6.0", true, true),
            ("3.7.2", true, true),
            ("4.0.0", true, true),
        ];
        for (text, progress, history) in cases {
            assert_eq!(
                VersionQuirks::of(ServerVersion::parse(text).unwrap()),
                VersionQuirks { progress, history },
                "{text}"
            );
        }
    }
}
