//! What clients, users, addresses, namespaces and API keys may use, and what they have used of it.

pub mod admission;
pub mod budget;
pub mod shared_buckets;
pub mod user_connections;
