//! Random scripts: what is asked of a store, in words that mean the same on every one.
//!
//! Keys, leases and revisions are numbers here; a lane makes real ones of them.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tenure::store::{Comparison, SortOrder, ValueMode};

/// The names of keys that a script uses, in key order; the last three share a prefix.
pub(super) const NAMES: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];

/// How many leases a script uses.
pub(super) const SLOTS: u8 = 6;

/// A script.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
}

/// A revision: so many after the script began, or so many before the last one.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Start(u8),
    Back(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Select {
    Key(u8),
    Prefix,
    All,
    Range(u8, u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Under {
    Nothing,
    Keep,
    Lease(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Look {
    Version(u8),
    Created(At),
    Modified(At),
    Lease(Option<u8>),
    Value(u8),
}

#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) select: Select,
    pub(super) at: Option<At>,
    pub(super) limit: Option<u8>,
    pub(super) order: SortOrder,
    pub(super) created_max: Option<At>,
    pub(super) values: ValueMode,
}

#[derive(Clone, Debug)]
pub(super) enum Act {
    Put(u8, u8, Under),
    Delete(Select),
    Get(Read),
}

#[derive(Clone, Debug)]
pub(super) struct Deal {
    pub(super) when: Vec<(u8, Comparison, Look)>,
    pub(super) then: Vec<Act>,
    pub(super) otherwise: Vec<Act>,
}

/// How long a lease is to live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Longer than any script.
    Long,
    /// Until the script waits for its end.
    Short,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Do(Deal),
    Get(Read),
    Grant(u8, Life),
    Renew(u8),
    Revoke(u8),
    View(u8),
    Compact(At),
    /// Lets all short leases end, except those that are renewed half-way, which are revoked in the end.
    Expire(Vec<u8>),
}

/// Scripts without expiry, of up to this many steps.
pub(super) fn scripts(steps_max: usize) -> impl Strategy<Value = Script> {
    vec(step(Life::Long), 1..=steps_max).prop_map(|steps| Script { steps })
}

/// Scripts of about so many steps. In the middle leases end, each with its keys.
pub(super) fn with_expiry(steps: usize) -> impl Strategy<Value = Script> {
    let grants: Vec<Step> = (0..SLOTS).map(|slot| Step::Grant(slot, Life::Short)).collect();
    let before = vec(step(Life::Short), steps / 2..=steps);
    let owners = vec(0..SLOTS, NAMES.len() - 1);
    let after = vec(step(Life::Long), steps / 2..=steps);
    // The first lease always has the first key and is never renewed, so that there is something to wait for.
    (before, owners, vec(1..SLOTS, 0..3), after).prop_map(move |(before, owners, renewed, after)| {
        let owned = (0..).zip([0].into_iter().chain(owners));
        let puts: Vec<Step> = owned.map(|(key, slot)| alone(Act::Put(key, 1, Under::Lease(slot)))).collect();
        let steps =
            [grants.clone(), before, grants.clone(), puts, vec![Step::Expire(renewed)], after].concat();
        Script { steps }
    })
}

fn alone(act: Act) -> Step {
    Step::Do(Deal { when: vec![], then: vec![act], otherwise: vec![] })
}

fn step(life: Life) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => act(true).prop_map(alone),
        5 => deal().prop_map(Step::Do),
        3 => read(true).prop_map(Step::Get),
        3 => (0..SLOTS).prop_map(move |slot| Step::Grant(slot, life)),
        1 => (0..SLOTS).prop_map(Step::Renew),
        1 => (0..SLOTS).prop_map(Step::Revoke),
        1 => (0..SLOTS).prop_map(Step::View),
        1 => prop_oneof![(1..20u8).prop_map(At::Start), (0..5u8).prop_map(At::Back)].prop_map(Step::Compact),
    ]
}

/// A transaction. Reads of the past and puts that may be refused do not share one: which of two reasons for a refusal is
/// named is no part of the contract.
fn deal() -> impl Strategy<Value = Deal> {
    let look = prop_oneof![
        (0..4u8).prop_map(Look::Version),
        at().prop_map(Look::Created),
        at().prop_map(Look::Modified),
        option::of(0..SLOTS).prop_map(Look::Lease),
        (0..4u8).prop_map(Look::Value),
    ];
    let comparison = prop_oneof![
        Just(Comparison::Equal),
        Just(Comparison::NotEqual),
        Just(Comparison::Less),
        Just(Comparison::Greater)
    ];
    let when = vec((key(), comparison, look), 0..3);
    (when, vec(act(false), 0..5), vec(act(false), 0..3)).prop_map(|(when, then, otherwise)| Deal {
        when,
        then,
        otherwise,
    })
}

fn act(is_alone: bool) -> impl Strategy<Value = Act> {
    let under = prop_oneof![
        3 => Just(Under::Nothing),
        1 => Just(Under::Keep),
        3 => (0..SLOTS).prop_map(Under::Lease),
    ];
    prop_oneof![
        6 => (key(), 0..4u8, under).prop_map(|(key, value, under)| Act::Put(key, value, under)),
        2 => select().prop_map(Act::Delete),
        1 => read(is_alone).prop_map(Act::Get),
    ]
}

/// A read. Keys created in one transaction tie, so what a limit leaves of a list by creation is not compared.
fn read(with_past: bool) -> impl Strategy<Value = Read> {
    let order = prop_oneof![4 => Just(SortOrder::Key), 1 => Just(SortOrder::Created), 1 => Just(SortOrder::CreatedDescending)];
    let values = prop_oneof![3 => Just(ValueMode::Whole), 1 => Just(ValueMode::Omitted)];
    (select(), option::of(at()), option::of(1..4u8), order, option::weighted(0.2, at()), values).prop_map(
        move |(select, at, limit, order, created_max, values)| Read {
            select,
            at: at.filter(|_| with_past),
            limit: limit.filter(|_| order == SortOrder::Key),
            order,
            created_max,
            values,
        },
    )
}

fn key() -> impl Strategy<Value = u8> {
    0..u8::try_from(NAMES.len()).expect("there are a handful of names")
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![1 => (0..40u8).prop_map(At::Start), 3 => (0..6u8).prop_map(At::Back)]
}

fn select() -> impl Strategy<Value = Select> {
    prop_oneof![
        5 => key().prop_map(Select::Key),
        2 => Just(Select::Prefix),
        1 => Just(Select::All),
        1 => (key(), key()).prop_map(|(from, to)| Select::Range(from, to)),
    ]
}
