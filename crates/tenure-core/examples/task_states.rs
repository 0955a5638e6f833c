//! Prints `docs/task-states.md`: the states of tasks.

use std::io::Write;

use tenure_core::task::state::TABLE;
use tenure_core::task::{TaskMessageKind, TaskState};

const HEAD: &str = "\
# The states of a task

Written by `cargo xtask fix` from `core::task::state`; change it there.

A task without a stored state is `runnable`.
A row is a state, a column is a message to the task, and a cell is the state that it leads to.
A dash is a refusal: the error is `IllegalTransition`, and nothing changes.

";

const TAIL: &str = "
`completed`, `failed` and `killed` are terminal: they accept no message, and a task that was submitted again in one of them is not run.
`forget` removes the stored state, and then the task is run.
`retry` runs a task again that has ended, as it was submitted: it replaces the final state with `runnable`, without the earlier errors.

A handler that fails or panics sends `error`: the task is in `fault`, and the error policy decides in the same write.
By default eight errors within four hours are too many: the policy sends `error` again, with the reason `exceeded error rate`, and the task has `failed`.
Otherwise it sends `sleep` for ten minutes.

`sleep` carries a time on the wall clock, so it survives moves and restarts.
`checkpoint` stores progress beside the state, and the next owner gets it.
`checkpoint` and `release` change no state; the state is written only when it or the checkpoint changed, and only by the owner.
";

fn main() -> std::io::Result<()> {
    let mut page = HEAD.to_owned();
    let columns = TaskMessageKind::ALL.map(|message| format!(" {message} |")).concat();
    page += &format!("| |{columns}\n|---|{}\n", "---|".repeat(TaskMessageKind::ALL.len()));
    for state in TaskState::ALL {
        let cell = |message| {
            let rule = TABLE.iter().find(|(from, said, _)| (*from, *said) == (state, message));
            rule.map_or_else(|| " – |".to_owned(), |(_, _, to)| format!(" `{to}` |"))
        };
        page += &format!("| `{state}` |{}\n", TaskMessageKind::ALL.map(cell).concat());
    }
    page += TAIL;
    std::io::stdout().write_all(page.as_bytes())
}
