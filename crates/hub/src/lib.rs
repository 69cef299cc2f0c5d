//! Sessions, channels, history, presence and outboxes, without I/O or clock.
