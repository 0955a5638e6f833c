//! Insert, swap and delete: each compares, and each is one step.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::elections::Key;
use super::super::stamp::Value;
use super::super::storage::{StorageError, TtlStorage};
use super::scene::{LONG, Scene};
use super::{Case, case, ensure, expect};
use crate::conformance::Verdict;

/// How many ask at once where only one may succeed.
const RIVALS: usize = 16;

pub(super) fn cases<K, V, S>() -> Vec<Case<K, V, S>>
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    vec![
        case!("I01", "an absent key is inserted, a present one is not", inserts_once),
        case!("I02", "a refused insert leaves what is there", refused_insert),
        case!("I03", "a TTL of zero is refused, and nothing is stored or changed", zero),
        case!("I04", "of many who insert at once exactly one succeeds", insert_race),
        case!("I05", "keys that look alike are independent", keys_apart),
        case!("S01", "a swap from what is there stores the new value", swaps),
        case!("S02", "a swap from another value is refused and leaves what is there", refused_swap),
        case!("S03", "a swap of an absent key is refused and stores nothing", swap_of_nothing),
        case!("S04", "of many who swap from one value at once exactly one succeeds", swap_race),
        case!("S05", "values are compared whole, whatever they hold", values_apart),
        case!("D01", "what is there can be deleted, and inserted again", deletes),
        case!("D02", "a delete with another value is refused and leaves what is there", refused_delete),
        case!("D03", "what is gone cannot be deleted again", deletes_once),
    ]
}

async fn inserts_once<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the first insert", scene.insert("a", "one", LONG).await, true)?;
    expect("the same insert again", scene.insert("a", "one", LONG).await, false)?;
    expect("another insert", scene.insert("a", "two", LONG).await, false)
}

async fn refused_insert<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("another insert", scene.insert("a", "two", LONG).await, false)?;
    expect("a delete of the refused value", scene.delete("a", "two").await, false)?;
    expect("a delete of the first value", scene.delete("a", "one").await, true)
}

async fn zero<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let refused = |answer: &Result<bool, StorageError>| matches!(answer, Err(StorageError::ZeroTtl));
    let insert = scene.insert("a", "one", Duration::ZERO).await;
    ensure(refused(&insert), || format!("an insert with a TTL of zero was answered {insert:?}"))?;
    expect("an insert after it", scene.insert("a", "two", LONG).await, true)?;
    let swap = scene.swap("a", "two", "three", Duration::ZERO).await;
    ensure(refused(&swap), || format!("a swap with a TTL of zero was answered {swap:?}"))?;
    expect("a delete of what was there before", scene.delete("a", "two").await, true)
}

async fn insert_race<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let names: Vec<String> = (0..RIVALS).map(|rival| format!("rival-{rival}")).collect();
    let answers = join_all(names.iter().map(|name| scene.insert("a", name, LONG))).await;
    one_winner(scene, &names, answers).await
}

async fn one_winner<K, V, S>(
    scene: &Scene<K, V, S>,
    names: &[String],
    answers: Vec<Result<bool, StorageError>>,
) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let mut winners = Vec::new();
    for (name, answer) in names.iter().zip(answers) {
        if answer? {
            winners.push(name);
        }
    }
    ensure(winners.len() == 1, || format!("{} of {} succeeded", winners.len(), names.len()))?;
    expect("a delete of the winner's value", scene.delete("a", winners[0]).await, true)
}

async fn keys_apart<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let names = ["a", "A", "aa", "a/b", "a%2Fb", "a b", "a:b", "ä"];
    for name in names {
        expect(&format!("an insert of {name:?}"), scene.insert(name, name, LONG).await, true)?;
    }
    for name in names {
        expect(&format!("a delete of {name:?}"), scene.delete(name, name).await, true)?;
    }
    Ok(())
}

async fn swaps<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("a swap", scene.swap("a", "one", "two", LONG).await, true)?;
    expect("the same swap again", scene.swap("a", "one", "two", LONG).await, false)?;
    expect("a swap of the value for itself", scene.swap("a", "two", "two", LONG).await, true)?;
    expect("an insert", scene.insert("a", "three", LONG).await, false)?;
    expect("a delete of what was swapped in", scene.delete("a", "two").await, true)
}

async fn refused_swap<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("a swap from another value", scene.swap("a", "two", "three", LONG).await, false)?;
    expect("a delete of what was to be swapped in", scene.delete("a", "three").await, false)?;
    expect("a delete of what was there", scene.delete("a", "one").await, true)
}

async fn swap_of_nothing<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("a swap of an absent key", scene.swap("a", "one", "two", LONG).await, false)?;
    expect("a swap of an absent key for itself", scene.swap("a", "one", "one", LONG).await, false)?;
    expect("an insert after it", scene.insert("a", "three", LONG).await, true)
}

async fn swap_race<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    let names: Vec<String> = (0..RIVALS).map(|rival| format!("rival-{rival}")).collect();
    let answers = join_all(names.iter().map(|name| scene.swap("a", "one", name, LONG))).await;
    one_winner(scene, &names, answers).await
}

async fn values_apart<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    let large = "x".repeat(64 * 1024);
    let nearly = format!("{}y", &large[1..]);
    let values =
        ["", " ", "a", "A", "a ", "a\n", "a\0b", "a\0c", "'\"\\", "ä", "1", "1.0", "null", &large, &nearly];
    for (index, value) in values.iter().enumerate() {
        let key = format!("key-{index}");
        let shown: String = value.chars().take(8).collect();
        expect(&format!("an insert of {shown:?}"), scene.insert(&key, value, LONG).await, true)?;
        for other in values.iter().filter(|other| *other != value) {
            let swapped = scene.swap(&key, other, "stolen", LONG).await;
            expect(&format!("a swap of {shown:?} from another value"), swapped, false)?;
        }
        expect(&format!("a delete of {shown:?}"), scene.delete(&key, value).await, true)?;
    }
    Ok(())
}

async fn deletes<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("a delete", scene.delete("a", "one").await, true)?;
    expect("an insert after it", scene.insert("a", "two", LONG).await, true)?;
    expect("a delete of the first value", scene.delete("a", "one").await, false)?;
    expect("a delete of the second value", scene.delete("a", "two").await, true)
}

async fn refused_delete<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("a delete with another value", scene.delete("a", "two").await, false)?;
    expect("an insert after it", scene.insert("a", "two", LONG).await, false)?;
    expect("a swap of what is there", scene.swap("a", "one", "one", LONG).await, true)
}

async fn deletes_once<K, V, S>(scene: &Scene<K, V, S>) -> Verdict
where
    K: Key + From<String>,
    V: Value + From<String>,
    S: TtlStorage<K, V>,
{
    expect("a delete of an absent key", scene.delete("a", "one").await, false)?;
    expect("the insert", scene.insert("a", "one", LONG).await, true)?;
    expect("a delete", scene.delete("a", "one").await, true)?;
    expect("the same delete again", scene.delete("a", "one").await, false)
}
