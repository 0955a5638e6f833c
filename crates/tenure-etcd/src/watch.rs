//! The watch stream.
