//! The checker against constructed histories, and against an exhaustive search over all orders.

use super::*;
use crate::rng::NemesisRng;

fn write(value: u8, asked: Stamp, answered: Stamp) -> Operation {
    Operation { is_write: true, value: Some(value.to_string()), asked, answered, revision: None }
}

fn read(value: Option<u8>, asked: Stamp, answered: Stamp) -> Operation {
    let value = value.map(|value| value.to_string());
    Operation { is_write: false, value, asked, answered, revision: None }
}

#[test]
fn stale_read_is_found() {
    assert!(linear(&[write(1, 1, 2), write(2, 3, 4), read(Some(2), 5, 6)]).is_ok());
    assert!(linear(&[write(1, 1, 2), write(2, 3, 4), read(Some(1), 5, 6)]).is_err());
    assert!(linear(&[write(1, 1, 2), read(None, 3, 4)]).is_err());
    assert!(linear(&[read(Some(1), 1, 2)]).is_err(), "never written");
    assert!(linear(&[read(Some(1), 1, 2), write(1, 3, 4)]).is_err(), "not yet written");
}

#[test]
fn reappearing_value_is_found() {
    let back = [write(1, 1, 2), write(2, 3, 9), read(Some(2), 4, 5), read(Some(1), 6, 7)];
    assert!(linear(&back).is_err());
    let forth = [write(1, 1, 2), write(2, 3, 9), read(Some(1), 4, 5), read(Some(2), 6, 7)];
    assert!(linear(&forth).is_ok());
}

#[test]
fn unanswered_write_may_apply_later() {
    let lost = |asked| write(2, asked, Stamp::MAX);
    assert!(linear(&[write(1, 1, 2), lost(3), read(Some(1), 5, 6)]).is_ok());
    assert!(linear(&[write(1, 1, 2), lost(3), read(Some(1), 5, 6), read(Some(2), 7, 8)]).is_ok());
    assert!(linear(&[lost(3), read(Some(2), 1, 2)]).is_err());
}

#[test]
fn deposed_writer_is_found_by_revision() {
    let one = |token: i64, revision| Operation {
        is_write: true,
        value: Some(format!("{token}:0")),
        asked: 0,
        answered: 1,
        revision: Some(revision),
    };
    assert_eq!(in_order(&[one(5, 10), one(6, 11)]), None);
    assert!(in_order(&[one(6, 10), one(5, 11)]).is_some());
}

/// Whether any order of the operations, each between its question and its answer, is that of a register.
fn any_order(rest: &[Operation], value: Option<&String>) -> bool {
    if rest.iter().all(|one| one.answered == Stamp::MAX) {
        return true;
    }
    let soonest = rest.iter().map(|one| one.answered).min().unwrap_or(Stamp::MAX);
    // Only an operation that began before every open one ended can be next.
    (0..rest.len()).filter(|index| rest[*index].asked < soonest).any(|index| {
        let next = &rest[index];
        let others: Vec<Operation> = [&rest[..index], &rest[index + 1..]].concat();
        if next.is_write {
            any_order(&others, next.value.as_ref())
                // A write with a lost reply may never happen.
                || (next.answered == Stamp::MAX && any_order(&others, value))
        } else {
            next.value.as_ref() == value && any_order(&others, value)
        }
    })
}

#[test]
fn checker_agrees_with_exhaustive_search() {
    let mut rng = NemesisRng::new(7);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..20_000 {
        let mut times: Vec<Stamp> = (1..=12).collect();
        let mut operations = Vec::new();
        for number in 0..6_u8 {
            let mut ends = [times.remove(rng.index(times.len())), times.remove(rng.index(times.len()))];
            ends.sort_unstable();
            let lost = rng.percent(20);
            operations.push(match number {
                0..3 => write(number, ends[0], if lost { Stamp::MAX } else { ends[1] }),
                _ => read(
                    Some(u8::try_from(rng.below(3)).unwrap()).filter(|_| !rng.percent(10)),
                    ends[0],
                    ends[1],
                ),
            });
        }
        let expected = any_order(&operations, None);
        assert_eq!(linear(&operations).is_ok(), expected, "{operations:#?}");
        *if expected { &mut good } else { &mut bad } += 1;
    }
    assert!(good > 500 && bad > 500, "{good} good and {bad} bad histories");
}
