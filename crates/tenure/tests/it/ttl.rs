//! TTL elections: on storages that fail in every way we could think of, and on every storage that we ship.

mod elections;
mod faulty;
mod giving_up;
mod kit;
mod servers;
mod wrong;
