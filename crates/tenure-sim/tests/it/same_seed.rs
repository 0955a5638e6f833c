//! One seed, one run.

use std::ops::ControlFlow;

use tenure_sim::run::{RunRecord, play};

/// Seeds whose stories once differed between two runs: several waited for the end of one lease, or for one participant to go on, and
/// tokio threw rng about who was woken first. Each of them differed in about every second run, hence the replays.
const ONCE_DIFFERED: [u64; 11] = [31, 97, 151, 154, 159, 255, 351, 377, 421, 455, 463];

/// How often each seed is told again.
const REPLAYS: usize = 3;

#[test]
fn the_same_seed_tells_the_same_story_to_the_byte() {
    let differ: Vec<String> =
        (0..12).chain(ONCE_DIFFERED).filter_map(|seed| replay(seed).break_value()).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

/// Tells a seed again and again, until it is told in other words: those are the result.
fn replay(seed: u64) -> ControlFlow<String> {
    let first = whole(&play(seed, None));
    (0..REPLAYS).try_for_each(|_| {
        let again = whole(&play(seed, None));
        match first.iter().zip(&again).find(|(before, now)| before != now) {
            Some((before, now)) => {
                ControlFlow::Break(format!("seed {seed}: first\n  {before}\nand then\n  {now}"))
            }
            None if first.len() != again.len() => {
                ControlFlow::Break(format!("seed {seed}: {} lines, then {}", first.len(), again.len()))
            }
            None => ControlFlow::Continue(()),
        }
    })
}

/// SeedSelection happened, and the store's record of it.
fn whole(run: &RunRecord) -> Vec<String> {
    let record = run.log.iter().map(|entry| format!("{:?} {:?}", entry.at, entry.change));
    run.trace().lines().map(str::to_owned).chain(record).collect()
}

#[test]
fn another_seed_tells_another_story() {
    assert_ne!(play(1, None).trace(), play(2, None).trace());
}

#[test]
fn a_story_is_told_alike_on_every_thread() {
    let here = play(7, None).trace();
    let there = std::thread::spawn(|| play(7, None).trace()).join().expect("it is only told");
    assert_eq!(here, there);
}
