//! Rules that a test can break on purpose, to see that whoever checks them notices.
//!
//! A checker that never failed proves nothing. Each [`SabotageRule`] is one sentence of the promises; where the code keeps it, the code calls
//! `is_broken`. In a build with `--cfg tenure_sabotage`, and in the unit tests of this crate, a test can make the result *yes* for its
//! thread. In every other build, with any features, the result is *no* at compile time, and nothing of this is left in a program.

/// A rule that can be broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SabotageRule {
    /// Validity counts from when a renewal was sent; broken: from when its answer came.
    ValidityFromSending,
    /// A holder stops a margin early; broken: exactly when the store may.
    Margin,
    /// Whoever's turn it is reads its own place again; broken: a place that is gone is taken for one that stands.
    OwnPlace,
    /// A lost answer may have been a yes; broken: a place whose entering was not answered is forgotten.
    UnknownMayBeThere,
    /// A lost enter cannot be applied after its place was left; broken: the place is only deleted.
    SettledEnter,
    /// What is guarded happens only while its holder holds; broken: always.
    Fence,
    /// Stop, join, then release; broken: a task is released while its handler is asked to stop.
    StopBeforeRelease,
    /// A claim that is given back or released is deleted only if it is still ours; broken: whoever's it is.
    GuardedRelease,
    /// A task's state is written only by its owner; broken: by anybody who owned it once.
    GuardedState,
    /// A key is exact, or a prefix that ends in a slash; broken: the end of `t1` deletes what begins with it.
    SlashAtTheEnd,
    /// A picture that was listed again misses nothing; broken: what is gone is not told.
    WholePicture,
    /// A command goes in the step in which its result comes; broken: it goes before anybody has done it.
    CommandsAreAnswered,
    /// Only legal steps are made; broken: a paused task that is told to run is done.
    LegalSteps,
}

impl SabotageRule {
    /// All that simulated worlds must notice. [`SabotageRule::SettledEnter`] is not among them: its late requests are too rare there (none in 500 seeds), so
    /// the random worlds of `queue` break it instead.
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

    /// As long as it lives, a rule is broken on this thread.
    #[derive(Debug)]
    #[must_use = "the rule holds again when this is dropped"]
    pub struct Sabotage {
        /// It belongs to the thread that it was begun on.
        here: PhantomData<*const ()>,
    }

    impl Sabotage {
        /// Breaks a rule.
        ///
        /// # Panics
        ///
        /// If one is broken already: nobody could say which of the two was noticed.
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
