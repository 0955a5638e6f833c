//! What is said when leading begins and when it ends.

use serde::Serialize;
use tenure::election::Term;
use tenure_core::revision::Token;

use super::SCHEMA;
use super::candidacy::Candidacy;
use crate::failure::Failure;
use crate::hold::{Acquired, Line};

/// Why leading has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    /// The command did, or a signal ended us.
    Ended,
    /// It was lost.
    Lost,
    /// Somebody asked for it.
    Asked,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Why::Ended => "ended",
            Why::Lost => "lost",
            Why::Asked => "asked",
        }
    }
}

#[derive(Serialize)]
struct Leading<'a> {
    schema: &'static str,
    event: &'static str,
    #[serde(flatten)]
    acquired: &'a Acquired<'a>,
    candidate: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct Stopped<'a> {
    schema: &'static str,
    event: &'static str,
    name: &'a str,
    fence: String,
    why: Why,
}

impl Candidacy<'_> {
    pub(super) fn tell_leading(&self, term: &Term) -> Result<(), Failure> {
        let (event, name) = ("leading", self.name());
        let acquired = &self.stage.acquired(name, term);
        let Acquired { key, fence, lease, .. } = acquired;
        let said =
            Leading { schema: SCHEMA, event, acquired, candidate: &self.candidate, value: &self.value };
        self.say(&said, &[event, name, fence, lease, key], &format!("leading '{name}' with fence {fence}"))
    }

    pub(super) fn tell_stopped(&self, token: Token, why: Why) -> Result<(), Failure> {
        let (event, name, fence) = ("stopped", self.name(), token.to_string());
        let note = format!("not leading '{name}' any more, fence {fence} is over");
        let cells = [event, name, &fence.clone(), why.as_str()];
        self.say(&Stopped { schema: SCHEMA, event, name, fence, why }, &cells, &note)
    }

    /// To stdout where nobody else writes there; to stderr as talk.
    fn say(&self, object: &impl Serialize, cells: &[&str], note: &str) -> Result<(), Failure> {
        let output = self.stage.output;
        match (self.stage.program.is_some(), output.is_json) {
            (true, true) => output.talk_object(object),
            (false, true) => output.object(object)?,
            (has_command, false) => {
                if !output.is_quiet {
                    output.note(note);
                }
                if !has_command {
                    output.record(cells)?;
                }
            }
        }
        Ok(())
    }
}
