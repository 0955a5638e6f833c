//! The line is fair: who holds has nobody before it.

use std::time::Duration;

use tenure::core::revision::Token;

use super::{Invariant, Replay};
use crate::audit::line_of;
use crate::history::Fact;
use crate::play::Story;

pub(super) const INVARIANT: Invariant =
    Invariant { name: "fair line", source: "BEHAVIOUR 4 and 5: ordered by create revision", check };

fn check(story: &Story) -> Vec<(Duration, String)> {
    let mut replay = Replay::default();
    let mut log = story.log.iter().peekable();
    let mut found = Vec::new();
    for (at, fact) in &story.facts {
        let Fact::Held { line, token, .. } = fact else { continue };
        // Within one millisecond the order is not known: what goes in it may have gone before.
        while let Some(entry) = log.next_if(|entry| entry.at <= *at) {
            replay.step(entry);
        }
        let before =
            replay.pairs.values().filter(|pair| Token(pair.created) < *token).find(|pair| {
                story.layout.parse(&pair.key).and_then(|key| line_of(&key)).as_ref() == Some(line)
            });
        if let Some(before) = before {
            found.push((*at, format!("{fact}, but {} stands before it", before.created)));
        }
    }
    found
}
