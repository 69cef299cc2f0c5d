//! The mesh between workers: rings, doorbells, request and reply.
//!
//! [`mesh`] makes one [`Endpoint`] for each thread that takes part. From every endpoint to every
//! other runs an *edge*: a bounded single-producer single-consumer ring. A receiver learns which
//! edges hold something from one word of *ready bits*, so receiving with all quiet costs the same
//! for 2 endpoints and for 128.
//!
//! Sending to a thread that is awake costs no system call. A thread that goes to sleep says so
//! ([`EndpointState`]: run, sleep, notified), looks once more, and is rung through an eventfd, its
//! *doorbell*, once for each sleep.
//!
//! `dunlin bench bus`, 64 endpoints, on 2 virtual cores of a busy machine, median ns, with the cores
//! near each other and far apart: a cache line there (the floor) 31 and 110; a hop to an awake
//! worker 77 and 248; a request and its reply 150 and 510; a message in a stream 30 and 76; a
//! hop to a sleeping worker 500 more than a bare eventfd and `epoll_wait` (12,000 to 17,000).
//!
//! A full edge refuses the message and gives it back ([`SendError`]); the sender hears when there
//! is room ([`Endpoint::poll_room`]). Requests find their replies through [`RequestTable`]. What is
//! published to all through an atomic pointer, and whether everyone has taken it, is [`Rollout`]'s.
//!
//! ```
//! use std::sync::Arc;
//! use dunlin_bus::{MeshConfig, mesh};
//!
//! let mut endpoints = mesh::<Arc<str>>(3, &MeshConfig::default())?;
//! let [a, b, c] = &mut endpoints[..] else { unreachable!() };
//! a.send(1, "to b alone".into())?;
//! let all: Arc<str> = "to everyone else".into();
//! assert_eq!(a.broadcast(|_| Arc::clone(&all)).sent, 2);
//! a.flush(); // rings whoever sleeps
//!
//! assert_eq!(b.recv(), Some((0, "to b alone".into())));
//! assert_eq!(b.recv(), Some((0, Arc::clone(&all))));
//! assert_eq!(c.recv(), Some((0, all)));
//! assert!(c.recv().is_none() && c.prepare_sleep()); // and now epoll_wait(-1)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(all(feature = "tokio", not(loom)))]
mod async_doorbell;
mod counter;
mod doorbell;
mod endpoint;
mod mesh;
mod port;
mod request_table;
mod ring;
mod rollout;
mod send_error;
mod stats;
mod sync;

#[cfg(all(test, loom))]
mod models;

#[cfg(all(feature = "tokio", not(loom)))]
pub use async_doorbell::AsyncDoorbell;
pub use endpoint::Endpoint;
pub use mesh::{ENDPOINTS_MAX, MeshConfig, mesh};
pub use port::EndpointState;
pub use request_table::{RequestId, RequestTable, TableFull};
pub use rollout::{AdoptionAwaited, FollowerState, Rollout};
pub use send_error::{BroadcastOutcome, SendError};
pub use stats::{EdgeStats, Monitor};
