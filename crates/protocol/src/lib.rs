//! Client protocols as state machines.
