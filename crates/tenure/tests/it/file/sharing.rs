//! Sharing.
