//! Rules that a test can break on purpose, to see that its checks notice.
//!
//! A check that never failed proves nothing. Each [`SabotageRule`] is one rule of the protocols,
//! and the code that keeps it calls `is_broken`. In a build with `--cfg tenure_sabotage`, and in
//! the unit tests of this crate, a test can make the result *yes* for its thread. In every other
//! build, with any features, the result is *no* at compile time, and nothing of this remains in a
//! program.

/// A rule that can be broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SabotageRule {
    /// Validity counts from when a renewal was sent; broken: from when its reply arrived.
    ValidityFromSending,
    /// A holder stops a margin before its lease can expire; broken: exactly when it can.
    Margin,
    /// A waiter that may hold next reads its own key again; broken: a deleted key counts as stored.
    OwnPlace,
    /// An enter with a lost reply may have been applied; broken: it counts as not applied.
    UnknownMayBeThere,
    /// A lost enter cannot be applied after its key was left; broken: the key is only deleted.
    SettledEnter,
    /// A fenced write is applied only while its holder holds; broken: always.
    Fence,
    /// Stop, join, then release; broken: a task is released while its handler is being stopped.
    StopBeforeRelease,
    /// A claim that is released is deleted only if it is still this worker's; broken: any worker's.
    GuardedRelease,
    /// A task's state is written only by its owner; broken: by any former owner too.
    GuardedState,
    /// A key is exact, or a prefix that ends in a slash; broken: the end of `t1` deletes all keys
    /// that begin with it.
    SlashAtTheEnd,
    /// A new listing misses nothing; broken: it does not report deleted keys.
    WholePicture,
    /// A command is deleted together with the put of its result; broken: before it is handled.
    CommandsAreAnswered,
    /// Only legal transitions are made; broken: a paused task completes when it is resumed.
    LegalSteps,
}

impl SabotageRule {
    /// All rules that the simulator must notice. [`SabotageRule::SettledEnter`] is not among them:
    /// its late requests are too rare there (none in 500 seeds), so the random tests of `queue`
    /// break it instead.
    pub const ALL: [SabotageRule; 12] = [
        SabotageRule::ValidityFromSending,
        SabotageRule::Margin,
        SabotageRule::OwnPlace,
        SabotageRule::UnknownMayBeThere,
        SabotageRule::Fence,
        SabotageRule::StopBeforeRelease,
        SabotageRule::GuardedRelease,
        SabotageRule::GuardedState,
        SabotageRule::SlashAtTheEnd,
        SabotageRule::WholePicture,
        SabotageRule::CommandsAreAnswered,
        SabotageRule::LegalSteps,
    ];
}

/// Whether a rule is broken on this thread.
#[cfg(not(any(tenure_sabotage, test)))]
#[inline]
pub(crate) const fn is_broken(_: SabotageRule) -> bool {
    false
}

#[cfg(any(tenure_sabotage, test))]
pub use broken::Sabotage;
#[cfg(any(tenure_sabotage, test))]
pub(crate) use broken::is_broken;

#[cfg(any(tenure_sabotage, test))]
mod broken {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::SabotageRule;

    thread_local! {
        static BROKEN: Cell<Option<SabotageRule>> = const { Cell::new(None) };
    }

    /// Whether a rule is broken on this thread.
    pub(crate) fn is_broken(rule: SabotageRule) -> bool {
        BROKEN.get() == Some(rule)
    }

    /// Breaks a rule on this thread until it is dropped.
    #[derive(Debug)]
    #[must_use = "the rule holds again when this is dropped"]
    pub struct Sabotage {
        /// It belongs to the thread that created it.
        here: PhantomData<*const ()>,
    }

    impl Sabotage {
        /// Breaks a rule.
        ///
        /// # Panics
        ///
        /// If another rule is broken already: a failure could not be attributed to one of them.
        pub fn of(rule: SabotageRule) -> Sabotage {
            assert!(BROKEN.replace(Some(rule)).is_none(), "one rule is broken at a time");
            Sabotage { here: PhantomData }
        }
    }

    impl Drop for Sabotage {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
}
