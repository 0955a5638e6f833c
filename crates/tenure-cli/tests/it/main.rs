//! The real binary, run as scripts run it: exit codes, JSON shapes, which store, hostile input.

mod bench;
mod demo;
mod doctor;
mod exit_codes;
mod hostile;
mod json;
mod machine;
mod watch;
mod which_store;
