//! A host: its queue, its connections and its state.

use std::sync::Arc;

use dunlin_net::{ConnId, Url};
use dunlin_wire::fair_queue::FairQueue;

use super::config::{Depth, HostConfig};
use crate::{Budget, Window};

/// The id of a host of one client. Another client may use the same id for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// The panic message for the id of another client.
    pub(crate) const FOREIGN: &str = "a host of this client";
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) url: Url,
    pub(crate) name: Arc<str>,
    pub(crate) config: HostConfig,
    /// Queued requests by their slots among the records; flows take turns, and in each the oldest is first.
    pub(crate) queue: FairQueue<u32>,
    pub(crate) queue_bytes: usize,
    /// `send` has returned `Full`; [`on_room`](crate::Caller::on_room) is still to be called.
    pub(crate) refused: bool,
    /// Open connections.
    pub(crate) links: Vec<ConnId>,
    /// Connections being opened.
    pub(crate) dials: u32,
    pub(crate) budget: Budget,
    /// The depth found by earlier connections.
    pub(crate) window: Window,
    /// Consecutive failed dials.
    pub(crate) failures: u32,
    /// No dial before this time, in milliseconds of the loop's clock.
    pub(crate) dial_after_ms: u64,
    /// It accepts no more requests; its slot is reused after its last connection has closed.
    pub(crate) removed: bool,
    /// In the list of hosts to process at the end of the turn.
    pub(crate) dirty: bool,
}

impl Host {
    pub(crate) fn new(url: Url, config: HostConfig) -> Host {
        let window = match config.depth {
            Depth::Auto(bounds) => Window::new(bounds),
            Depth::Fixed(_) => Window::new(crate::WindowConfig::default()),
        };
        Host {
            name: url.to_string().into(),
            url,
            queue: FairQueue::new(1),
            queue_bytes: 0,
            refused: false,
            links: Vec::new(),
            dials: 0,
            budget: Budget::default(),
            window,
            failures: 0,
            dial_after_ms: 0,
            removed: false,
            dirty: false,
            config,
        }
    }

    /// Returns the number of requests that a new connection can be expected to accept, to decide how many to open.
    pub(crate) fn depth(&self) -> u32 {
        let depth = match self.config.depth {
            Depth::Fixed(depth) => depth.max(1),
            Depth::Auto(_) => self.window.depth(),
        };
        let budget =
            self.budget.limit().map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
        depth.min(budget)
    }
}
