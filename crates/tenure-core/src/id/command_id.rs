//! Ids of commands. They sort by the time at which they were made, so a listing of commands is a
//! queue.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{InvalidName, NAME_BYTES_MAX, check};
use crate::record::Timestamp;

/// The id of a command. This program makes UUIDs of version 7, which sort by time. A command that
/// another program or an operator stores may have any name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommandId(String);

impl CommandId {
    /// Reads an id. Refuses an empty one, a too long one, and control characters.
    pub fn parse(text: &str) -> Result<CommandId, InvalidName> {
        check(text, NAME_BYTES_MAX)?;
        Ok(CommandId(text.to_owned()))
    }

    /// The smallest id of this time: every id that was made before sorts before it.
    pub fn first_at(time: Timestamp) -> CommandId {
        CommandIds::default().next(time, [0; 8])
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CommandId {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<CommandId, InvalidName> {
        CommandId::parse(&text)
    }
}

impl From<CommandId> for String {
    fn from(id: CommandId) -> String {
        id.0
    }
}

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes ids, each larger than the one before, even if the clock goes back.
///
/// The caller passes the random bytes. The ids of two senders are ordered only as well as their
/// clocks agree.
#[derive(Clone, Debug, Default)]
pub struct CommandIds {
    /// The time of the newest id, in ms, and the number of ids with that time.
    newest: (u64, u16),
}

/// The counter has 12 bits.
const COUNT_END: u16 = 1 << 12;

impl CommandIds {
    /// Returns the next id, made at this time, with these random bytes.
    pub fn next(&mut self, now: Timestamp, random: [u8; 8]) -> CommandId {
        let (ms, count) = self.newest;
        self.newest = if now.0 > ms {
            (now.0, 0)
        } else if count + 1 < COUNT_END {
            (ms, count + 1)
        } else {
            // More than four thousand in a millisecond use the next one.
            (ms.saturating_add(1), 0)
        };
        let (ms, count) = self.newest;
        let low = u64::from_be_bytes(random) >> 2 | 1 << 63;
        let ms = ms & ((1 << 48) - 1);
        let node = low & ((1 << 48) - 1);
        let text = format!("{:08x}-{:04x}-7{count:03x}-{:04x}-{node:012x}", ms >> 16, ms & 0xffff, low >> 48);
        CommandId(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7() {
        let mut ids = CommandIds::default();
        let id = ids.next(Timestamp(0x0190_a000_1234), [0xff; 8]);
        assert_eq!(id.as_str(), "0190a000-1234-7000-bfff-ffffffffffff");
        let id = ids.next(Timestamp(0x0190_a000_1234), [0; 8]);
        assert_eq!(id.as_str(), "0190a000-1234-7001-8000-000000000000");
        assert_eq!(CommandId::parse(id.as_str()), Ok(id));
    }

    #[test]
    fn ids_of_one_sender_sort_by_time() {
        let mut ids = CommandIds::default();
        // A clock that does not advance for ten thousand ids, goes back an hour, and then runs
        // again.
        let times =
            std::iter::repeat_n(5_000_000, 10_000).chain([1_400_000, 1_400_001, 5_000_001, 9_000_000]);
        let made: Vec<CommandId> =
            times.enumerate().map(|(n, ms)| ids.next(Timestamp(ms), (n as u64).to_le_bytes())).collect();
        assert!(made.is_sorted_by(|a, b| a < b));
        assert!(made.iter().all(|id| CommandId::parse(id.as_str()).is_ok()));
    }

    #[test]
    fn extreme_clock_makes_a_valid_id() {
        let mut ids = CommandIds::default();
        for _ in 0..5_000 {
            let id = ids.next(Timestamp(u64::MAX - 1), [7; 8]);
            assert!(CommandId::parse(id.as_str()).is_ok());
        }
    }
}
