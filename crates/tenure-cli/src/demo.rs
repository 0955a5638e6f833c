//! `tenure demo`: the engines at work in a few seconds, on a store of its own, with a verdict.
//!
//! It needs nothing and leaves nothing. Every step is a promise of the store that is tried out; the exit code is 0 only if all held.

mod one_process;
mod two_processes;

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::Serialize;
use tenure::store::{Change, Store, WatchItem, WatchStream};

use crate::failure::{Code, Failure};
use crate::output::{Output, Tone};

/// One promise that was tried out.
#[derive(Serialize)]
struct Step {
    engine: &'static str,
    claim: &'static str,
    held: bool,
    detail: String,
    seconds: f64,
}

/// The steps so far, told as they happen.
struct Story<'a> {
    output: &'a Output,
    steps: Vec<Step>,
}

/// What a step found: evidence, or what was wrong.
type Outcome = Result<String, Failure>;

impl Story<'_> {
    /// Tells what a step found.
    fn tell(
        &mut self,
        engine: &'static str,
        claim: &'static str,
        begin: Instant,
        outcome: Outcome,
    ) -> Result<(), Failure> {
        let held = outcome.is_ok();
        let detail = outcome.unwrap_or_else(|failure| failure.message);
        if !self.output.is_json {
            let word = if held {
                self.output.toned(Tone::Good, "held ")
            } else {
                self.output.toned(Tone::Bad, "BROKEN")
            };
            self.output.text(&format!("{word} {engine:<7} {claim}: {detail}\n"))?;
        }
        self.steps.push(Step { engine, claim, held, detail, seconds: begin.elapsed().as_secs_f64() });
        Ok(())
    }
}

/// Tells the story.
pub(crate) async fn run(output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Answer {
        schema: &'static str,
        ok: bool,
        verdict: String,
        seconds: f64,
        steps: Vec<Step>,
    }
    let begin = Instant::now();
    let mut story = Story { output, steps: Vec::new() };
    one_process::play(&mut story, &Store::memory()).await?;
    let folder = tempfile::Builder::new()
        .prefix("tenure-demo-")
        .tempdir()
        .map_err(|error| Failure::new(Code::Failed, format!("no temporary folder can be made: {error}")))?;
    let path = folder.path().join("store.db");
    two_processes::play(&mut story, &path).await?;
    let broken = story.steps.iter().filter(|step| !step.held).count();
    let seconds = begin.elapsed().as_secs_f64();
    let count = story.steps.len();
    let verdict =
        format!("{} of {count} promises held on 2 engines and 3 processes in {seconds:.1} s", count - broken);
    if output.is_json {
        let steps = story.steps;
        output.object(&Answer { schema: "tenure.demo/v1", ok: broken == 0, verdict, seconds, steps })?;
    } else {
        output.text(&format!("{verdict}\n"))?;
    }
    if broken > 0 {
        return Err(Failure::new(Code::Failed, format!("{broken} of {count} promises did not hold"))
            .hint("run `tenure doctor`, then report what it says"));
    }
    Ok(())
}

/// Nothing in the demo takes longer than this; a store that does is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// The next change that a watch tells.
async fn next_change(stream: &mut WatchStream) -> Result<Change, Failure> {
    let next = async {
        while let Some(item) = stream.next().await {
            if let WatchItem::Batch { changes, .. } = item?
                && let Some(change) = changes.into_iter().next()
            {
                return Ok(change);
            }
        }
        Err(broken("the watch ended"))
    };
    tokio::time::timeout(PATIENCE, next).await.unwrap_or_else(|_| Err(broken("the watch told nothing")))
}

fn broken(what: impl Into<String>) -> Failure {
    Failure::new(Code::Failed, what)
}

/// The evidence, or that something is not as it was promised.
fn must(is_as_promised: bool, evidence: impl Into<String>) -> Outcome {
    let evidence = evidence.into();
    if is_as_promised { Ok(evidence) } else { Err(broken(evidence)) }
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}
