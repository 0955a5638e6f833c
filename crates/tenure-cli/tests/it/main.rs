//! The real binary, run as scripts run it: exit codes, JSON shapes, which store, hostile input.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

mod crew;
mod demo;
mod doctor;
mod elect;
mod election;
mod etcd;
mod events;
mod exit_codes;
mod file_store;
mod hostile;
mod json;
mod lease;
mod least_privilege;
mod ledger;
mod lock;
mod machine;
mod mistakes;
mod next_steps;
mod no_etcd;
mod nodes;
mod old_etcd;
mod orders;
mod patience;
mod register;
mod status;
mod stderr;
mod submit;
mod supervise;
mod task;
mod terminal;
mod tls_matrix;
mod watch;
mod which_store;
mod worker;
