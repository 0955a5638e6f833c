//! The keepalive stream.
