//! Tasks that a node has because no peer took them in time.

use super::*;

/// A peer on a starved host was too slow to take its share. The node kept the task for ever, so 4 and 2 never became 3 and 3. A task that
/// no peer takes again stays four times as long, so it is not stopped again and again.
#[test]
fn unwanted_task_is_released_again_later() {
    let mut fair = Fair::new();
    let mut scene = BalanceCase::of(&[("a", 3), ("b", 2)]).unowned(1);
    for stays_ms in [5_000, 20_000, 80_000] {
        assert!(takes(&scene.offered_task(&mut fair, &task(3), 1, 2_000)));
        scene.hold(3, 1);
        scene.unowned = Demand::default();
        scene.now = scene.now + Duration::from_millis(stays_ms - 1);
        assert_eq!(scene.released(&mut fair), [0; 0], "before {stays_ms} ms");
        scene.now = scene.now + Duration::from_millis(1);
        assert_eq!(scene.released(&mut fair), [3], "after {stays_ms} ms");
        scene.own.remove(&task(3));
        scene.workers.set(&node("a"), scene.own.load(), Moment::ORIGIN);
        scene = scene.unowned(1);
    }
}
