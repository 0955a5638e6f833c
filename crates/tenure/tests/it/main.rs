//! Public behaviour of the stores, in one binary: what every engine does, and that the checks of it can fail.

mod conformance;
mod controls;
mod differential;
mod equivalence;
mod etcd;
mod feed;
mod file;
mod tokio_clock;
mod twisted;
