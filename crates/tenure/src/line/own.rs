//! The places of ours in one line that are to be watched, and which of them are.
//!
//! Most locks are given back before a watch of their place would be of use: whoever leaves is told whether its place was still there. So a place is
//! watched only when it has stood for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::layout::Place;
use tenure_core::revision::Token;
use tenure_core::time::Moment;

/// How long a place must have stood before it is watched. Doubled, a holder learns so much later that somebody broke its lock.
const OWN_AFTER: Duration = Duration::from_millis(100);

/// The places of ours in one line.
#[derive(Default)]
pub(super) struct Own {
    places: Vec<Kept>,
}

struct Kept {
    place: Place,
    /// Since when it is there, in the store's count; none if it should not be there.
    token: Option<Token>,
    /// When its watch begins.
    at: Moment,
    is_watched: bool,
}

impl Own {
    /// These places are to be watched from now on, and no others. Gives those whose watch ends.
    pub(super) fn want(
        &mut self,
        wanted: impl Iterator<Item = (Place, Option<Token>)> + Clone,
        now: Moment,
    ) -> Vec<Place> {
        if wanted.clone().map(|(place, _)| place).eq(self.places.iter().map(|kept| kept.place)) {
            return Vec::new();
        }
        let mut former: BTreeMap<Place, Kept> =
            self.places.drain(..).map(|kept| (kept.place, kept)).collect();
        self.places.extend(wanted.map(|(place, token)| {
            let new = || Kept { place, token, at: now + OWN_AFTER, is_watched: false };
            former.remove(&place).unwrap_or_else(new)
        }));
        former.into_values().filter(|kept| kept.is_watched).map(|kept| kept.place).collect()
    }

    /// A place whose watch begins now, and since when it is there.
    pub(super) fn next_due(&mut self, now: Moment) -> Option<(Place, Option<Token>)> {
        let kept = self.places.iter_mut().find(|kept| !kept.is_watched && kept.at <= now)?;
        kept.is_watched = true;
        Some((kept.place, kept.token))
    }

    /// When the next watch begins.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.places.iter().filter(|kept| !kept.is_watched).map(|kept| kept.at).min()
    }

    /// Whether a place is watched, or about to be.
    pub(super) fn may_be_watched(&self, now: Moment) -> bool {
        self.places.iter().any(|kept| kept.is_watched || kept.at <= now + OWN_AFTER / 2)
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::revision::Revision;

    use super::*;
    use crate::store::LeaseId;

    const NOW: Moment = Moment::from_ms(1_000);

    fn place(nonce: u64) -> (Place, Option<Token>) {
        let lease = LeaseId::new(7).unwrap();
        (Place { lease, nonce }, Some(Token(Revision(5))))
    }

    #[test]
    fn a_place_that_is_left_soon_is_never_watched() {
        let mut own = Own::default();
        assert!(own.want([place(1)].into_iter(), NOW).is_empty());
        assert_eq!(own.next_due(NOW + OWN_AFTER - Duration::from_millis(1)), None);
        assert!(own.want(std::iter::empty(), NOW).is_empty(), "no watch ends that has not begun");
        assert_eq!((own.next_wake(), own.next_due(NOW + OWN_AFTER)), (None, None));
    }

    #[test]
    fn a_place_that_stays_is_watched_once_whoever_comes_and_goes_beside_it() {
        let mut own = Own::default();
        for ms in 0..90 {
            own.want([place(1), place(ms + 2)].into_iter(), NOW + Duration::from_millis(ms));
        }
        assert_eq!(own.next_wake(), Some(NOW + OWN_AFTER));
        assert_eq!(own.next_due(NOW + OWN_AFTER), Some(place(1)));
        assert_eq!(own.next_due(NOW + OWN_AFTER), None);
        assert_eq!(own.want(std::iter::empty(), NOW + OWN_AFTER), [place(1).0]);
    }

    #[test]
    fn a_place_may_be_watched_before_its_time_but_not_long_before() {
        let mut own = Own::default();
        own.want([place(1)].into_iter(), NOW);
        assert!(!own.may_be_watched(NOW));
        assert!(own.may_be_watched(NOW + OWN_AFTER / 2));
    }
}
