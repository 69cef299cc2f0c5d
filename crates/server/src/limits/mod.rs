//! What clients, users, addresses, namespaces and API keys may use, and what they have used of it.

pub(crate) mod admission;
pub(crate) mod budget;
#[cfg(test)]
mod budget_tests;
pub(crate) mod fanout_scheduler;
pub(crate) mod memory;
pub(crate) mod pressure;
pub(crate) mod shared_buckets;
pub(crate) mod user_connections;
