//! A hundred thousand tasks: nobody races, and the work for each stays what it is for ten thousand. Steps are counted, not seconds.

use std::time::Duration;

use super::world::World;
use crate::layout::Key;
use crate::name::TaskId;
use crate::node::Tally;
use crate::txn::{Op, Txn};

/// Submits many tasks at once to eight nodes, and says how much all of them have worked.
fn claim_all(tasks: usize) -> Tally {
    let mut world = World::calm(8);
    let before = total(&world);
    for chunk in (0..tasks).collect::<Vec<_>>().chunks(100) {
        let mut txn = Txn::new();
        for n in chunk {
            let key = Key::Task(TaskId::parse(&format!("t{n}")).unwrap());
            txn = txn.then(Op::put(world.layout.encode(&key), "{}"));
        }
        world.apply(&txn);
    }
    world.pass(Duration::from_secs(12));
    let shares = world.shares();
    assert_eq!(shares.iter().sum::<usize>(), tasks, "{shares:?}");
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(most * 10 <= least * 12, "{shares:?}");
    let after = total(&world);
    Tally {
        weighed: after.weighed - before.weighed,
        tries: after.tries - before.tries,
        won: after.won - before.won,
        timers: after.timers - before.timers,
        changes: after.changes - before.changes,
    }
}

fn total(world: &World) -> Tally {
    world.processes.iter().map(|process| process.machine.tally()).fold(Tally::default(), |sum, one| Tally {
        weighed: sum.weighed + one.weighed,
        tries: sum.tries + one.tries,
        won: sum.won + one.won,
        timers: sum.timers + one.timers,
        changes: sum.changes + one.changes,
    })
}

/// Five thousand in every check, a hundred thousand only when it is asked for: `TENURE_SOAK=1`.
#[test]
fn claiming_takes_few_tries_and_as_much_work_for_each_of_many_tasks_as_of_few_soak() {
    let is_soak = std::env::var_os("TENURE_SOAK").is_some();
    let (few, many) = if is_soak { (10_000, 100_000) } else { (500, 5_000) };
    let (small, large) = (claim_all(few), claim_all(many));
    let per = |tally: Tally, tasks: usize| {
        let tasks = tasks as u64;
        (tally.weighed * 100 / tasks, tally.timers * 100 / tasks, tally.changes * 100 / tasks)
    };
    assert_eq!(large.won, many as u64);
    assert!(large.tries * 10 <= large.won * 11, "{large:?}");
    let (small, large) = (per(small, few), per(large, many));
    assert!(large.0 <= small.0 * 3 / 2 + 100, "weighing: {small:?} {large:?}");
    assert!(large.1 <= small.1 * 3 / 2 + 100, "timers: {small:?} {large:?}");
    assert_eq!(large.2, small.2, "changes of the board");
}
