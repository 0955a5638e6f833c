//! TTL elections on faulty storages, and on every shipped storage.

mod conformance;
mod elections;
mod faulty;
mod flawed;
mod release;
mod servers;
