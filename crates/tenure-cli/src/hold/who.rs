//! The identity of this process, with the node and the command that the command line names.

use std::ffi::OsString;

use tenure::Identity;

use crate::connect::Decision;
use crate::output::escape;

/// How much of a command line others are shown.
const COMMAND_CHARS_MAX: usize = 200;

/// The identity that is stored with what this process holds and does. Without a command it names none.
pub(crate) fn introduce(decision: &Decision, command: &[OsString]) -> Identity {
    let own = tenure::identity::current();
    let words: Vec<String> = command.iter().map(|word| escape(word.as_encoded_bytes())).collect();
    let mut line = words.join(" ");
    if let Some((end, _)) = line.char_indices().nth(COMMAND_CHARS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    let node = decision.node.as_ref().map_or(own.node, |node| node.value.clone());
    Identity { node, program: line, ..own }
}
