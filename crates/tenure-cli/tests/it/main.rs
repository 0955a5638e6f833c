//! The real binary, run as scripts run it: exit codes, JSON shapes, choice of the store, hostile input.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its environment has failed")]

mod connect_timeout;
mod demo;
mod doctor;
mod elect;
mod election;
mod etcd;
mod events;
mod exit_codes;
mod file_store;
mod foreign_server;
mod hints;
mod hostile;
mod json;
mod lease;
mod least_privilege;
mod ledger;
mod lock;
mod mistakes;
mod node_commands;
mod nodes;
mod old_etcd;
mod register;
mod sandbox;
mod status;
mod stderr;
mod store_selection;
mod submit;
mod supervise;
mod task;
mod terminal;
mod test_cluster;
mod tls_matrix;
mod watch;
mod worker;
