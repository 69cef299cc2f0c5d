//! `POST /api/push` of a real server against the simulator: a backend's pushes, credentials changed at run time, and
//! the devices that turn out dead.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

mod batches;
mod broadcasts;
mod credentials;
mod devices;
mod durable;
mod kit;
mod pushes;
mod routes;
