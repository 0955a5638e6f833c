//! Messages of the keepalive stream.
