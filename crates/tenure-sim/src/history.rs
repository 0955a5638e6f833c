//! SeedSelection happened in a world, in the order in which it happened: what the invariants read, and what a person reads when one is broken.

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
    /// Somebody was told that it holds, or leads, or owns.
    Held {
        /// SeedSelection.
        subject: String,
        /// Who.
        who: String,
        /// Since which revision.
        token: Token,
        /// Beside whom it may.
        mode: LockMode,
        /// Who else believed so at that moment and may not beside it, with their tokens.
        beside: Vec<(String, Token)>,
    },
    /// Somebody woke up, or its clock was set right; these believed in one thing at that moment, and may not together.
    Believed {
        /// SeedSelection.
        subject: String,
        /// Who.
        by: Vec<(String, Token)>,
    },
    /// Somebody does not hold any more.
    Ended {
        /// SeedSelection.
        subject: String,
        /// Who.
        who: String,
        /// Its token.
        token: Token,
        /// How that came.
        how: &'static str,
    },
    /// The store let go of a place whose holder had not given it up.
    KeyDeleted {
        /// SeedSelection.
        subject: String,
        /// Who held it.
        who: String,
        /// Its token.
        token: Token,
        /// Whether the holder still believed, awake and alive.
        believed: bool,
        /// Whether somebody had revoked its lease or deleted its key by hand.
        by_hand: bool,
    },
    /// WorkloadKind went on under a hold.
    Acted {
        /// SeedSelection.
        subject: String,
        /// Who.
        who: String,
        /// Its token.
        token: Token,
        /// Whether the hold was valid at that moment.
        valid: bool,
    },
    /// An observer saw a leader, or none.
    Observed {
        /// SeedSelection.
        subject: String,
        /// Who looked.
        who: String,
        /// The leader's token.
        token: Option<Token>,
    },
    /// A key is wanted in the store, or not any more.
    Wanted {
        /// Who wants it.
        who: String,
        /// The key.
        key: String,
        /// SeedSelection it says; none if it is not wanted any more.
        value: Option<String>,
    },
    /// A task was submitted.
    Submitted {
        /// Which.
        task: String,
    },
    /// Somebody deleted a task.
    Deleted {
        /// Which.
        task: String,
    },
    /// A command was accepted.
    Sent {
        /// Which.
        command: String,
        /// By whom.
        who: String,
        /// To what, and what it says.
        what: String,
    },
    /// The sender of a command was told what came of it.
    Handled {
        /// Which.
        command: String,
        /// SeedSelection came of it.
        outcome: String,
    },
    /// How a task stood at the very end.
    Final {
        /// Which.
        task: String,
        /// How.
        state: Option<TaskState>,
    },
    /// How a view and the store stood at the very end.
    View {
        /// Whose view, of what.
        of: String,
        /// SeedSelection it showed.
        shows: BTreeSet<String>,
        /// SeedSelection is so.
        truth: BTreeSet<String>,
    },
    /// The day is over: everybody puts down what they have.
    Over,
    /// Now every wanted key must be there, and no other.
    Compared {
        /// Who is not dead.
        living: BTreeSet<String>,
    },
    /// SeedSelection was still there when everybody had gone.
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
            Fact::Held { subject, who, token, beside, .. } if beside.is_empty() => {
                write!(f, "{who} holds {subject} with token {token}")
            }
            Fact::Held { subject, who, token, beside, .. } => {
                write!(f, "{who} holds {subject} with token {token} BESIDE {beside:?}")
            }
            Fact::Believed { subject, by } => write!(f, "{subject} is believed held by {by:?}"),
            Fact::Ended { subject, who, token, how } => {
                write!(f, "{who} ends {subject} with token {token}: {how}")
            }
            Fact::KeyDeleted { subject, who, token, believed, by_hand } => {
                let hold = if *believed { "who STILL BELIEVES" } else { "who does not believe any more" };
                let hand = if *by_hand { ", by hand" } else { "" };
                write!(f, "the store lets go of {subject}, token {token} of {who}, {hold}{hand}")
            }
            Fact::Acted { subject, who, token, valid } => {
                let word = if *valid { "works" } else { "works WITHOUT RIGHT" };
                write!(f, "{who} {word} under {subject} with token {token}")
            }
            Fact::Observed { subject, who, token: Some(token) } => {
                write!(f, "{who} sees {subject} led with token {token}")
            }
            Fact::Observed { subject, who, token: None } => write!(f, "{who} sees {subject} led by nobody"),
            Fact::Wanted { who, key, value: Some(value) } => write!(f, "{who} wants {key} = {value}"),
            Fact::Wanted { who, key, value: None } => write!(f, "{who} does not want {key} any more"),
            Fact::Submitted { task } => write!(f, "{task} is submitted"),
            Fact::Deleted { task } => write!(f, "{task} is deleted"),
            Fact::Sent { command, who, what } => write!(f, "{who} sends command {command}: {what}"),
            Fact::Handled { command, outcome } => write!(f, "command {command} is handled: {outcome}"),
            Fact::Final { task, state } => write!(f, "{task} stands at {state:?} in the end"),
            Fact::View { of, shows, truth } => write!(f, "{of} shows {shows:?}, true is {truth:?}"),
            Fact::Over => write!(f, "the day is over"),
            Fact::Compared { living } => write!(f, "what {living:?} registered is compared"),
            Fact::Left(what) => write!(f, "left behind: {what}"),
            Fact::Overdue(what) => write!(f, "overdue: {what}"),
            Fact::Note(text) => write!(f, "{text}"),
        }
    }
}
