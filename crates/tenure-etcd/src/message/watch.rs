//! Messages of the watch stream.
