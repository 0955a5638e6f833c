//! A process as other processes see it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process: its host, its user and its program. Stored with queue keys, candidates and audit
/// records.
///
/// For display only. No decision depends on it: any client can write any name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Identity {
    /// The node that it acts for; its host if no node is configured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Its host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its process id; 0 if that is not known.
    #[serde(default)]
    pub pid: u32,
    /// Its user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Its program, or the command that it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
}

impl Identity {
    /// A name that no other process of the machines has: the node, or host and process id if no
    /// node is configured.
    pub fn name(&self) -> String {
        if self.node.is_empty() || self.node == self.host {
            format!("{}-{}", self.host, self.pid)
        } else {
            self.node.clone()
        }
    }
}

/// `web-2 pid 4121 (./deploy.sh)`; a process without a name is `unknown process`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = if self.node.is_empty() { "unknown process" } else { &self.node };
        f.write_str(node)?;
        if self.pid != 0 {
            write!(f, " pid {}", self.pid)?;
        }
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parts_are_not_shown() {
        assert_eq!(Identity::default().to_string(), "unknown process");
        let full = Identity {
            node: "web-2".into(),
            host: "web-2".into(),
            pid: 4121,
            user: "deploy".into(),
            program: "./deploy.sh".into(),
        };
        assert_eq!(full.to_string(), "web-2 pid 4121 (./deploy.sh)");
        assert_eq!(full.name(), "web-2-4121");
        assert_eq!(Identity { node: "blue".into(), ..full }.name(), "blue");
    }
}
