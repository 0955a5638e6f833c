//! `tenure-sim`: plays seeds, and tells the story of one that breaks a promise.

#![allow(clippy::print_stdout, reason = "a command speaks to its user")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tenure_sim::play::{play, play_all};

const USAGE: &str = "usage: tenure-sim SEED [--log] | --seeds N [--from SEED]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.replace('_', "").parse::<u64>().ok();
    match args.as_slice() {
        [seed] if number(seed).is_some() => tell(number(seed).unwrap_or(0), false),
        [seed, "--log"] if number(seed).is_some() => tell(number(seed).unwrap_or(0), true),
        ["--seeds", count] if number(count).is_some() => many(0, number(count).unwrap_or(0)),
        ["--seeds", count, "--from", from] if number(count).is_some() && number(from).is_some() => {
            many(number(from).unwrap_or(0), number(count).unwrap_or(0))
        }
        _ => {
            println!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Tells one story.
fn tell(seed: u64, with_log: bool) -> ExitCode {
    let story = play(seed, None);
    print!("{}", story.trace());
    if with_log {
        for entry in &story.log {
            println!("{:>9.3} s  {:?}", entry.at.as_secs_f64(), entry.change);
        }
    }
    let violations = story.violations();
    for violation in &violations {
        println!("VIOLATED: {violation}");
    }
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays many, and names those that broke a promise.
fn many(from: u64, count: u64) -> ExitCode {
    let begun = Instant::now();
    let (seeds, faults, virtual_ms) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    let broken = Mutex::new(Vec::new());
    play_all(from..from + count, None, |story| {
        seeds.fetch_add(1, Ordering::Relaxed);
        faults.fetch_add(story.faults(), Ordering::Relaxed);
        let ms = u64::try_from(story.lasted.as_millis()).unwrap_or(u64::MAX);
        virtual_ms.fetch_add(ms, Ordering::Relaxed);
        let violations = story.violations();
        if let Some(violation) = violations.first() {
            println!("seed {}: {} violations, first: {violation}", story.plan.seed, violations.len());
            broken.lock().unwrap_or_else(PoisonError::into_inner).push(story.plan.seed);
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
            println!("the story of one of them: cargo xtask sim {seed}");
            ExitCode::FAILURE
        }
    }
}
