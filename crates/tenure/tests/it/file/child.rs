//! Other processes.
