//! Reports of the start and the end of a term.

use serde::Serialize;
use tenure::election::Term;
use tenure_core::revision::Token;

use super::SCHEMA;
use super::subject::ElectionSubject;
use crate::failure::Failure;
use crate::hold::{Acquired, HoldSubject};

/// Why a term has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopCause {
    /// The command ended, or this process got a signal.
    Ended,
    /// Leadership was lost.
    Lost,
    /// A step-down was requested.
    Asked,
}

impl StopCause {
    fn as_str(self) -> &'static str {
        match self {
            StopCause::Ended => "ended",
            StopCause::Lost => "lost",
            StopCause::Asked => "asked",
        }
    }
}

#[derive(Serialize)]
struct LeadingReport<'a> {
    schema: &'static str,
    event: &'static str,
    #[serde(flatten)]
    acquired: &'a Acquired<'a>,
    candidate: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct StoppedReport<'a> {
    schema: &'static str,
    event: &'static str,
    name: &'a str,
    token: String,
    why: StopCause,
}

impl ElectionSubject<'_> {
    pub(super) fn report_leading(&self, term: &Term) -> Result<(), Failure> {
        let (event, name) = ("leading", self.name());
        let acquired = &self.context.acquired(name, term);
        let Acquired { key, token, lease, .. } = acquired;
        let report =
            LeadingReport { schema: SCHEMA, event, acquired, candidate: &self.candidate, value: &self.value };
        let note = format!("leading '{name}' with token {token}");
        self.report(&report, &[event, name, token, lease, key], &note)
    }

    pub(super) fn report_stopped(&self, token: Token, why: StopCause) -> Result<(), Failure> {
        let (event, name, token) = ("stopped", self.name(), token.to_string());
        let note = format!("the term of '{name}' with token {token} has ended");
        let cells = [event, name, &token.clone(), why.as_str()];
        self.report(&StoppedReport { schema: SCHEMA, event, name, token, why }, &cells, &note)
    }

    /// Writes a line to stdout unless that belongs to a command, and a note to stderr.
    fn report(&self, object: &impl Serialize, cells: &[&str], note: &str) -> Result<(), Failure> {
        let output = self.context.output;
        match (self.context.program.is_some(), output.is_json) {
            (true, true) => output.note_object(object),
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
