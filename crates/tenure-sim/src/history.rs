//! What happened in a world, in the order in which it happened: what the invariants read, and what a person reads when one is broken.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::testing::World;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;
use tenure_core::task::TaskState;

/// Something that happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Fact {
    /// A fault began, or ended.
    Fault(String),
    /// A process was notified that it holds, leads or owns.
    Held {
        /// What.
        subject: String,
        /// Which process.
        process: String,
        /// Since which revision.
        token: Token,
        /// With which others it may hold.
        mode: LockMode,
        /// The other processes with a valid hold at that moment that may not hold beside it, with
        /// their tokens.
        conflicting: Vec<(String, Token)>,
    },
    /// A process resumed, or its clock was corrected, and these had a valid hold at that moment
    /// that may not exist together.
    Overlapping {
        /// What.
        subject: String,
        /// Which processes.
        by: Vec<(String, Token)>,
    },
    /// A process does not hold any more.
    Ended {
        /// What.
        subject: String,
        /// Which process.
        process: String,
        /// Its token.
        token: Token,
        /// How that came.
        how: &'static str,
    },
    /// The store deleted a queue key before its holder released it.
    KeyDeleted {
        /// What.
        subject: String,
        /// Which process held it.
        process: String,
        /// Its token.
        token: Token,
        /// Whether the holder still was_valid, awake and alive.
        was_valid: bool,
        /// Whether an operator had revoked its lease or deleted its key.
        by_operator: bool,
    },
    /// Work was done under a hold.
    Acted {
        /// What.
        subject: String,
        /// Which process.
        process: String,
        /// Its token.
        token: Token,
        /// Whether the hold was valid at that moment.
        valid: bool,
    },
    /// An observer saw a leader, or none.
    Observed {
        /// What.
        subject: String,
        /// Which observer.
        process: String,
        /// The leader's token.
        token: Option<Token>,
    },
    /// A key is wanted in the store, or not any more.
    Wanted {
        /// Which process wants it.
        process: String,
        /// The key.
        key: String,
        /// Its value; `None` if the key is not wanted any more.
        value: Option<String>,
    },
    /// A task was submitted.
    Submitted {
        /// Which.
        task: String,
    },
    /// A client deleted a task.
    Deleted {
        /// Which.
        task: String,
    },
    /// A command was accepted.
    Sent {
        /// Which.
        command: String,
        /// Which process sent it.
        process: String,
        /// The receiver and the content.
        what: String,
    },
    /// The sender of a command received its result.
    Handled {
        /// Which.
        command: String,
        /// What came of it.
        outcome: String,
    },
    /// The state of a task at the end of the run.
    Final {
        /// Which.
        task: String,
        /// How.
        state: Option<TaskState>,
    },
    /// A view and the store at the end of the run.
    View {
        /// Which process, and the view of what.
        of: String,
        /// What it showed.
        shows: BTreeSet<String>,
        /// What is so.
        truth: BTreeSet<String>,
    },
    /// The run is over: all processes release what they hold.
    Over,
    /// Now every wanted key must be there, and no other.
    Compared {
        /// The processes that are not dead.
        living: BTreeSet<String>,
    },
    /// What was still there when all processes had left.
    Left(String),
    /// Something that should have come in time did not.
    Overdue(String),
    /// For the reader.
    Note(String),
}

/// All that happened so far. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct RunHistory {
    world: World,
    facts: Arc<Mutex<Vec<(Duration, Fact)>>>,
}

impl RunHistory {
    /// Nothing has happened.
    pub fn new(world: &World) -> RunHistory {
        RunHistory { world: world.clone(), facts: Arc::default() }
    }

    /// It happened now.
    pub fn note(&self, fact: Fact) {
        let now = self.world.elapsed();
        self.lock().push((now, fact));
    }

    /// A remark for the reader.
    pub fn remark(&self, text: impl Into<String>) {
        self.note(Fact::Note(text.into()));
    }

    /// All of it.
    pub fn facts(&self) -> Vec<(Duration, Fact)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Duration, Fact)>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Fault(text) => write!(f, "! {text}"),
            Fact::Held { subject, process, token, conflicting, .. } if conflicting.is_empty() => {
                write!(f, "{process} holds {subject} with token {token}")
            }
            Fact::Held { subject, process, token, conflicting, .. } => {
                write!(f, "{process} holds {subject} with token {token} BESIDE {conflicting:?}")
            }
            Fact::Overlapping { subject, by } => write!(f, "{subject} is was_valid held by {by:?}"),
            Fact::Ended { subject, process, token, how } => {
                write!(f, "{process} ends {subject} with token {token}: {how}")
            }
            Fact::KeyDeleted { subject, process, token, was_valid, by_operator } => {
                let hold = if *was_valid { "STILL VALID" } else { "not valid any more" };
                let hand = if *by_operator { ", by an operator" } else { "" };
                write!(f, "the key of {subject} is deleted, token {token} of {process}, {hold}{hand}")
            }
            Fact::Acted { subject, process, token, valid } => {
                let word = if *valid { "works" } else { "works WITHOUT RIGHT" };
                write!(f, "{process} {word} under {subject} with token {token}")
            }
            Fact::Observed { subject, process, token: Some(token) } => {
                write!(f, "{process} sees {subject} led with token {token}")
            }
            Fact::Observed { subject, process, token: None } => {
                write!(f, "{process} sees {subject} without a leader")
            }
            Fact::Wanted { process, key, value: Some(value) } => write!(f, "{process} wants {key} = {value}"),
            Fact::Wanted { process, key, value: None } => write!(f, "{process} does not want {key} any more"),
            Fact::Submitted { task } => write!(f, "{task} is submitted"),
            Fact::Deleted { task } => write!(f, "{task} is deleted"),
            Fact::Sent { command, process, what } => write!(f, "{process} sends command {command}: {what}"),
            Fact::Handled { command, outcome } => write!(f, "command {command} is handled: {outcome}"),
            Fact::Final { task, state } => write!(f, "{task} ends as {state:?}"),
            Fact::View { of, shows, truth } => write!(f, "{of} shows {shows:?}, true is {truth:?}"),
            Fact::Over => write!(f, "the day is over"),
            Fact::Compared { living } => write!(f, "what {living:?} registered is compared"),
            Fact::Left(what) => write!(f, "left behind: {what}"),
            Fact::Overdue(what) => write!(f, "overdue: {what}"),
            Fact::Note(text) => write!(f, "{text}"),
        }
    }
}
