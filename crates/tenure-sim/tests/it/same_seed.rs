//! One seed, one story.

use tenure_sim::play::play;

#[test]
fn the_same_seed_tells_the_same_story_to_the_byte() {
    for seed in 0..12 {
        let (first, second) = (play(seed, None), play(seed, None));
        assert_eq!(first.trace(), second.trace(), "seed {seed}");
        assert_eq!(first.log.len(), second.log.len());
        assert!(
            first.log.iter().zip(&second.log).all(|(a, b)| a.at == b.at && a.change == b.change),
            "the store's record of seed {seed} differs"
        );
    }
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
