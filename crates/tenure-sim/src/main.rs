//! `tenure-sim`: runs seeds, and prints the run of one that violates an invariant.

#![allow(clippy::print_stdout, reason = "a command speaks to its user")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tenure_core::sabotage::SabotageRule;
use tenure_sim::run::{run_seed, run_seeds};

const USAGE: &str =
    "usage: tenure-sim SEED [--log] [--broken RULE] | --seeds N [--from SEED] [--broken RULE]";

fn main() -> ExitCode {
    match SimArgs::read(std::env::args().skip(1)) {
        Some(SimArgs { broken: Some(rule), .. }) if !cfg!(tenure_sabotage) => {
            println!("this build cannot break {rule:?}: build it with RUSTFLAGS=\"--cfg tenure_sabotage\"");
            ExitCode::from(2)
        }
        Some(SimArgs { what: SeedSelection::One(seed), with_log, broken }) => {
            print_run(seed, with_log, broken)
        }
        Some(SimArgs { what: SeedSelection::Many { from, count }, broken, .. }) => many(from, count, broken),
        None => {
            println!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The arguments of the command line.
struct SimArgs {
    what: SeedSelection,
    with_log: bool,
    broken: Option<SabotageRule>,
}

enum SeedSelection {
    One(u64),
    Many { from: u64, count: u64 },
}

impl SimArgs {
    fn read(mut args: impl Iterator<Item = String>) -> Option<SimArgs> {
        let number = |text: String| text.replace('_', "").parse::<u64>().ok();
        let (mut seed, mut from, mut count, mut with_log, mut broken) = (None, None, None, false, None);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => count = Some(number(args.next()?)?),
                "--from" => from = Some(number(args.next()?)?),
                "--log" => with_log = true,
                "--broken" => {
                    let name = args.next()?;
                    broken = Some(SabotageRule::ALL.into_iter().find(|rule| format!("{rule:?}") == name)?);
                }
                _ => seed = Some(number(arg)?),
            }
        }
        let what = match (seed, count) {
            (Some(seed), None) if from.is_none() => SeedSelection::One(seed),
            (None, Some(count)) => SeedSelection::Many { from: from.unwrap_or(0), count },
            (Some(_) | None, _) => return None,
        };
        Some(SimArgs { what, with_log, broken })
    }
}

/// Prints one run.
fn print_run(seed: u64, with_log: bool, broken: Option<SabotageRule>) -> ExitCode {
    let run = run_seed(seed, broken);
    print!("{}", run.trace());
    if with_log {
        for entry in &run.log {
            println!("{:>9.3} s  {:?}", entry.at.as_secs_f64(), entry.change);
        }
    }
    let violations = run.violations();
    for violation in &violations {
        println!("VIOLATED: {violation}");
    }
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays many, and names those that broke a promise.
fn many(from: u64, count: u64, rule: Option<SabotageRule>) -> ExitCode {
    let begun = Instant::now();
    let (seeds, faults, virtual_ms) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    let broken = Mutex::new(Vec::new());
    run_seeds(from..from + count, rule, |run| {
        seeds.fetch_add(1, Ordering::Relaxed);
        faults.fetch_add(run.faults(), Ordering::Relaxed);
        let ms = u64::try_from(run.lasted.as_millis()).unwrap_or(u64::MAX);
        virtual_ms.fetch_add(ms, Ordering::Relaxed);
        let violations = run.violations();
        if let Some(violation) = violations.first() {
            println!("seed {}: {} violations, first: {violation}", run.plan.seed, violations.len());
            broken.lock().unwrap_or_else(PoisonError::into_inner).push(run.plan.seed);
        }
        true
    });
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    let hours = virtual_ms.load(Ordering::Relaxed) / 3_600_000;
    println!(
        "{} seeds, {hours} virtual hours, {} faults, {} seeds with violations, {:.1} s",
        seeds.load(Ordering::Relaxed),
        faults.load(Ordering::Relaxed),
        broken.len(),
        begun.elapsed().as_secs_f64()
    );
    match broken.first() {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            println!("the run of one of them: cargo xtask sim {seed}");
            ExitCode::FAILURE
        }
    }
}
