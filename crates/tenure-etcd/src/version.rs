//! The server's version, and the known defects of old ones.

use std::fmt;

/// A version as the server's status names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerVersion {
    /// First number.
    pub major: u32,
    /// Second number: the release line.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl ServerVersion {
    /// Reads `3.5.23`, also with something behind it as in `3.6.0-rc.1`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = numbers.next()?;
        let digits = patch.find(|c: char| !c.is_ascii_digit()).unwrap_or(patch.len());
        Some(Self { major, minor, patch: patch[..digits].parse().ok()? })
    }

    /// Whether this version is older than the given fix of its own release line; lines after the
    /// last have it.
    fn lacks(self, fixes: &[(u32, u32)]) -> bool {
        if self.major != 3 {
            return self.major < 3;
        }
        match fixes.iter().find(|(minor, _)| *minor == self.minor) {
            Some((_, patch)) => self.patch < *patch,
            None => fixes.iter().all(|(minor, _)| self.minor < *minor),
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A known defect of a server of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defect {
    /// What goes wrong, for people.
    pub what: &'static str,
    /// The versions that repair it, one for each release line.
    pub fixed_in: &'static str,
}

struct KnownDefect {
    /// Release line and patch that repair it.
    fixes: &'static [(u32, u32)],
    defect: Defect,
}

const KNOWN: &[KnownDefect] = &[
    KnownDefect {
        fixes: &[(4, 24), (5, 8)],
        defect: Defect { what: "a watch may deliver an event twice", fixed_in: "3.4.24, 3.5.8" },
    },
    KnownDefect {
        fixes: &[(4, 25), (5, 8)],
        defect: Defect {
            what: "requested watch progress may be reported before the events it covers",
            fixed_in: "3.4.25, 3.5.8",
        },
    },
    KnownDefect {
        fixes: &[(4, 31), (5, 13)],
        defect: Defect {
            what: "a leader that stalled and was replaced may still revoke leases that were renewed since",
            fixed_in: "3.4.31, 3.5.13",
        },
    },
    KnownDefect {
        fixes: &[(4, 31), (5, 13)],
        defect: Defect {
            what: "a slow watch may lose events after a compaction",
            fixed_in: "3.4.31, 3.5.13",
        },
    },
    KnownDefect {
        fixes: &[(4, 32), (5, 14)],
        defect: Defect {
            what: "revisions may go back after a crash during a compaction",
            fixed_in: "3.4.32, 3.5.14",
        },
    },
    KnownDefect {
        fixes: &[(4, 36), (5, 18)],
        defect: Defect {
            what: "a watch from the compacted revision misses a delete at that revision",
            fixed_in: "3.4.36, 3.5.18",
        },
    },
    KnownDefect {
        fixes: &[(4, 38), (5, 23), (6, 5)],
        defect: Defect {
            what: "later repairs of leases and watches are missing",
            fixed_in: "3.4.38, 3.5.23, 3.6.5",
        },
    },
    KnownDefect {
        fixes: &[(4, 42), (5, 28), (6, 9)],
        defect: Defect {
            what: "with authentication on, strangers may still grant, renew and list leases and compact history",
            fixed_in: "3.4.42, 3.5.28, 3.6.9",
        },
    },
];

/// The known defects of a server of this version; empty for a good one.
#[must_use]
pub fn known_defects(version: ServerVersion) -> Vec<Defect> {
    KNOWN.iter().filter(|known| version.lacks(known.fixes)).map(|known| known.defect).collect()
}

#[cfg(test)]
mod tests {
    use super::{ServerVersion, known_defects};

    fn defects(text: &str) -> usize {
        known_defects(ServerVersion::parse(text).unwrap()).len()
    }

    #[test]
    fn server_versions_parse() {
        let version = |minor, patch| Some(ServerVersion { major: 3, minor, patch });
        assert_eq!(ServerVersion::parse("3.5.23"), version(5, 23));
        assert_eq!(ServerVersion::parse("3.6.0-rc.1"), version(6, 0));
        for bad in ["", "3", "3.5", "three", "3.5.x", "not_decided"] {
            assert_eq!(ServerVersion::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn fixed_versions_have_no_defects() {
        for (clean, last_bad) in [("3.4.42", "3.4.41"), ("3.5.28", "3.5.27"), ("3.6.9", "3.6.8")] {
            assert_eq!(defects(clean), 0, "{clean}");
            assert_eq!(defects(last_bad), 1, "{last_bad}");
        }
        assert_eq!(defects("3.7.0"), 0);
        assert_eq!(defects("4.0.0"), 0);
    }

    #[test]
    fn old_versions_report_their_defects() {
        for bad in ["3.4.37", "3.5.22", "3.6.4"] {
            assert_eq!(defects(bad), 2, "{bad}");
        }
        assert_eq!(defects("3.4.23"), 8);
        assert_eq!(defects("3.3.27"), 8);
        assert_eq!(defects("3.5.1"), 8);
    }
}
