//! Verbs and flags of other tools, with the matching command of this tool.

/// For each command: words that are not its verbs, and the hint.
const MEANT: &[(&str, &[&str], &str)] = &[
    ("tenure", &["ls", "list", "ps", "show", "get-all"], "`tenure status` shows everything on one screen"),
    ("tenure", &["worker-ls", "workers", "members"], "`tenure node ls` lists the workers"),
    (
        "tenure",
        &["get", "put", "del", "delete", "range", "watch", "txn"],
        "raw keys are under `tenure kv`, as in `tenure kv get /a`",
    ),
    (
        "tenure",
        &["unlock", "release"],
        "a lock is released when its command ends; `tenure locks break NAME` revokes it from its holder",
    ),
    ("tenure", &["leader"], "`tenure election show NAME` shows the leader"),
    ("tenure", &["log", "logs", "history"], "`tenure events` lists what happened"),
    (
        "tenure",
        &["run", "exec"],
        "`tenure lock NAME -- CMD` runs a command under a lock, `tenure worker --exec CMD` runs tasks",
    ),
    ("tenure", &["kill", "cancel", "stop"], "`tenure task kill ID` ends a task"),
    (
        "tenure",
        &["init", "setup", "start", "server"],
        "nothing must be set up; `tenure doctor` checks this machine",
    ),
    (
        "tenure task",
        &["stop", "cancel", "abort", "end"],
        "`tenure task kill ID` ends a task, `tenure task pause ID` stops it until it is resumed",
    ),
    (
        "tenure task",
        &["start", "run", "unpause", "continue"],
        "`tenure task resume ID` runs a task that is paused or sleeps",
    ),
    ("tenure task", &["submit", "add", "create", "new"], "`tenure submit ID --kind KIND` submits a task"),
    ("tenure task", &["status", "info"], "`tenure task show ID` shows a task"),
    ("tenure task", &["logs", "log", "events"], "`tenure task history ID` shows the changes of a task"),
    (
        "tenure node",
        &["rm", "delete", "remove", "stop", "kill", "leave", "evict"],
        "`tenure node drain ID` moves a node's tasks away and lets it leave",
    ),
    ("tenure node", &["cordon", "pause"], "`tenure node freeze ID` stops a node from claiming tasks"),
    ("tenure node", &["uncordon", "resume"], "`tenure node unfreeze ID` lets a node claim tasks again"),
    (
        "tenure locks",
        &["rm", "delete", "release", "unlock", "steal", "revoke"],
        "`tenure locks break NAME` revokes a lock from its holder",
    ),
    (
        "tenure locks",
        &["acquire", "take", "hold", "lock"],
        "`tenure lock NAME -- CMD` runs a command under a lock",
    ),
    ("tenure election", &["leader", "who"], "`tenure election show NAME` shows the leader"),
    (
        "tenure election",
        &["step-down", "rm", "delete"],
        "`tenure election resign NAME` requests that the leader steps down",
    ),
    (
        "tenure election",
        &["run", "campaign", "elect"],
        "`tenure elect NAME -- CMD` runs a command while it leads",
    ),
    (
        "tenure lease",
        &["grant", "create", "new"],
        "`tenure kv put KEY VALUE --ttl 15s` puts a key under a new lease",
    ),
    ("tenure lease", &["keep-alive", "renew"], "`tenure register KEY=VALUE` keeps a key alive"),
    (
        "tenure service",
        &["register", "add", "create", "new"],
        "`tenure register NAME/INSTANCE=ADDRESS` registers an instance",
    ),
    (
        "tenure service",
        &["rm", "delete", "deregister", "unregister"],
        "an instance ends with its `tenure register`; end that process",
    ),
    ("tenure kv", &["set", "create", "update"], "`tenure kv put KEY VALUE` writes a key"),
    ("tenure config", &["set", "edit"], "`tenure config path` shows the files to edit"),
];

/// The hint for a word that is not a verb of a command.
pub(super) fn meant(command: &str, word: &str) -> Option<&'static str> {
    MEANT.iter().find(|(of, words, _)| *of == command && words.contains(&word)).map(|(_, _, hint)| *hint)
}

/// The hint for an unknown flag or argument.
pub(super) fn flag(command: &str, word: &str) -> Option<&'static str> {
    match (command, word) {
        (_, "-o" | "--output" | "--format" | "-j") => Some("add --json for JSON; tables are the default"),
        ("tenure worker", "ls" | "list" | "show" | "get") => Some("`tenure node ls` lists the workers"),
        ("tenure worker", "--id" | "--name") => Some("--node ID gives the worker its id"),
        (_, "-f" | "--follow") => Some("`tenure events --follow` prints new events"),
        (_, "--host" | "-h" | "--server" | "--endpoint" | "--etcd") => {
            Some("--endpoints host:2379 names the members of an etcd")
        }
        (_, "-n" | "--ns") => Some("--namespace NAME chooses the namespace"),
        (_, "-w" | "--timeout") => Some("--wait DUR limits how long to wait, where a command waits"),
        (_, "--password") => {
            Some("--password-file FILE names a file with the password; a flag would show it to others")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// A word that became a verb must be removed from the table, and each suggested command must exist.
    #[test]
    fn suggested_commands_exist() {
        for (command, words, hint) in MEANT {
            let path: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let verbs = Cli::subcommands(&path);
            for word in *words {
                assert!(!verbs.iter().any(|verb| verb == word), "{command} {word}");
            }
            for suggested in hint.split('`').skip(1).step_by(2) {
                let typed: Vec<std::ffi::OsString> = suggested.split(' ').map(Into::into).collect();
                assert!(Cli::path(&typed).len() > 1, "{suggested}");
            }
        }
    }
}
