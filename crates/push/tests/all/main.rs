//! Senders in virtual time, against the simulator, and against servers of other people.

mod abuses;
mod certificates;
mod examples;
mod others;
mod platforms;
mod simulator;
mod stories;
