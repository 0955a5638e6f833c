//! A whole picture of a prefix: list, then watch, and list again when the watch broke.
