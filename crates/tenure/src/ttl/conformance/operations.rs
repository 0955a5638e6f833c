//! Insert, swap and delete: each compares, and each is atomic.

use futures_util::future::join_all;

use super::super::storage::StorageError;
use super::context::{LONG, StorageContext, TextStorage};
use super::{StorageCase, case, ensure, expect};
use crate::conformance::CheckResult;

/// The concurrent requests of which one may succeed.
const RIVALS: usize = 16;

pub(super) fn cases<S: TextStorage>() -> Vec<StorageCase<S>> {
    vec![
        case!("I01", "an absent key is inserted, a present one is not", inserts_once),
        case!("I02", "a refused insert changes nothing", refused_insert),
        case!("I04", "of many concurrent inserts exactly one succeeds", insert_race),
        case!("I05", "similar keys are independent", keys_apart),
        case!("S01", "a swap from the stored value stores the new one", swaps),
        case!("S02", "a swap from another value is refused and changes nothing", refused_swap),
        case!("S03", "a swap of an absent key is refused and stores nothing", swap_of_nothing),
        case!("S04", "of many concurrent swaps exactly one succeeds", swap_race),
        case!("S05", "values are compared completely", values_apart),
        case!("D01", "a stored key can be deleted and inserted again", deletes),
        case!("D02", "a delete with another value is refused and changes nothing", refused_delete),
        case!("D03", "a deleted key cannot be deleted again", deletes_once),
    ]
}

async fn inserts_once<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the first insert", context.insert("a", "one", LONG).await, true)?;
    expect("the same insert again", context.insert("a", "one", LONG).await, false)?;
    expect("another insert", context.insert("a", "two", LONG).await, false)
}

async fn refused_insert<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("another insert", context.insert("a", "two", LONG).await, false)?;
    expect("a delete of the refused value", context.delete("a", "two").await, false)?;
    expect("a delete of the first value", context.delete("a", "one").await, true)
}

async fn insert_race<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let names: Vec<String> = (0..RIVALS).map(|rival| format!("rival-{rival}")).collect();
    let answers = join_all(names.iter().map(|name| context.insert("a", name, LONG))).await;
    one_winner(context, &names, answers).await
}

async fn one_winner<S: TextStorage>(
    context: &StorageContext<S>,
    names: &[String],
    answers: Vec<Result<bool, StorageError>>,
) -> CheckResult {
    let mut winners = Vec::new();
    for (name, answer) in names.iter().zip(answers) {
        if answer? {
            winners.push(name);
        }
    }
    ensure(winners.len() == 1, || format!("{} of {} succeeded", winners.len(), names.len()))?;
    expect("a delete of the winner's value", context.delete("a", winners[0]).await, true)
}

async fn keys_apart<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let names = ["a", "A", "aa", "a/b", "a%2Fb", "a b", "a:b", "ä"];
    for name in names {
        expect(&format!("an insert of {name:?}"), context.insert(name, name, LONG).await, true)?;
    }
    for name in names {
        expect(&format!("a delete of {name:?}"), context.delete(name, name).await, true)?;
    }
    Ok(())
}

async fn swaps<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("a swap", context.swap("a", "one", "two", LONG).await, true)?;
    expect("the same swap again", context.swap("a", "one", "two", LONG).await, false)?;
    expect("a swap of the value for itself", context.swap("a", "two", "two", LONG).await, true)?;
    expect("an insert", context.insert("a", "three", LONG).await, false)?;
    expect("a delete of the new value", context.delete("a", "two").await, true)
}

async fn refused_swap<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("a swap from another value", context.swap("a", "two", "three", LONG).await, false)?;
    expect("a delete of the refused value", context.delete("a", "three").await, false)?;
    expect("a delete of the stored value", context.delete("a", "one").await, true)
}

async fn swap_of_nothing<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("a swap of an absent key", context.swap("a", "one", "two", LONG).await, false)?;
    expect("a swap of an absent key for itself", context.swap("a", "one", "one", LONG).await, false)?;
    expect("an insert after it", context.insert("a", "three", LONG).await, true)
}

async fn swap_race<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    let names: Vec<String> = (0..RIVALS).map(|rival| format!("rival-{rival}")).collect();
    let answers = join_all(names.iter().map(|name| context.swap("a", "one", name, LONG))).await;
    one_winner(context, &names, answers).await
}

async fn values_apart<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    let large = "x".repeat(64 * 1024);
    let nearly = format!("{}y", &large[1..]);
    let values =
        ["", " ", "a", "A", "a ", "a\n", "a\0b", "a\0c", "'\"\\", "ä", "1", "1.0", "null", &large, &nearly];
    for (index, value) in values.iter().enumerate() {
        let key = format!("key-{index}");
        let shown: String = value.chars().take(8).collect();
        expect(&format!("an insert of {shown:?}"), context.insert(&key, value, LONG).await, true)?;
        for other in values.iter().filter(|other| *other != value) {
            let swapped = context.swap(&key, other, "stolen", LONG).await;
            expect(&format!("a swap of {shown:?} from another value"), swapped, false)?;
        }
        expect(&format!("a delete of {shown:?}"), context.delete(&key, value).await, true)?;
    }
    Ok(())
}

async fn deletes<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("a delete", context.delete("a", "one").await, true)?;
    expect("an insert after it", context.insert("a", "two", LONG).await, true)?;
    expect("a delete of the first value", context.delete("a", "one").await, false)?;
    expect("a delete of the second value", context.delete("a", "two").await, true)
}

async fn refused_delete<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("a delete with another value", context.delete("a", "two").await, false)?;
    expect("an insert after it", context.insert("a", "two", LONG).await, false)?;
    expect("a swap of the stored value", context.swap("a", "one", "one", LONG).await, true)
}

async fn deletes_once<S: TextStorage>(context: &StorageContext<S>) -> CheckResult {
    expect("a delete of an absent key", context.delete("a", "one").await, false)?;
    expect("the insert", context.insert("a", "one", LONG).await, true)?;
    expect("a delete", context.delete("a", "one").await, true)?;
    expect("the same delete again", context.delete("a", "one").await, false)
}
