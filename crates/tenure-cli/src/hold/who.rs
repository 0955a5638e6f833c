//! Who we are, as others see it.

use std::ffi::OsString;

use tenure::core::record::HolderRecord;

use crate::connect::Decision;
use crate::output::escape;

/// How much of a command line others are shown.
const COMMAND_CHARS_MAX: usize = 200;

/// What others see of us.
pub(crate) fn introduce(decision: &Decision, command: &[OsString]) -> HolderRecord {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let words: Vec<String> = command.iter().map(|word| escape(word.as_encoded_bytes())).collect();
    let mut line = words.join(" ");
    if let Some((end, _)) = line.char_indices().nth(COMMAND_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    HolderRecord {
        node: decision.node.as_ref().map_or_else(|| host.clone(), |node| node.value.clone()),
        pid: std::process::id(),
        host,
        user: user(),
        command: line,
        ..HolderRecord::default()
    }
}

/// The name of our user; its number where nobody gave it a name.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    name.unwrap_or(uid)
}
