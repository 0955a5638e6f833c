//! The rig itself, for a few seconds.
