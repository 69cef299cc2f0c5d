//! A host: its queue, its connections, and what is known of it.

use std::collections::VecDeque;
use std::sync::Arc;

use dunlin_net::{ConnId, Url};

use super::config::{Depth, HostConfig};
use crate::{Budget, Window};

/// Names a host of one client. To another client it names one of its own hosts, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// What an id that names no host of the client panics with.
    pub(crate) const FOREIGN: &str = "a host of this client";
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) url: Url,
    pub(crate) name: Arc<str>,
    pub(crate) config: HostConfig,
    /// Requests waiting to leave, oldest first, by their places among the records.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) queue_bytes: usize,
    /// `send` has refused, and room is to be reported.
    pub(crate) refused: bool,
    /// Open connections.
    pub(crate) links: Vec<ConnId>,
    /// Connections being opened.
    pub(crate) dials: u32,
    pub(crate) budget: Budget,
    /// What the connections before found about the depth.
    pub(crate) window: Window,
    /// Dials in a row that failed.
    pub(crate) failures: u32,
    /// No dial before this time, in milliseconds of the loop's clock.
    pub(crate) dial_after_ms: u64,
    /// It takes no more requests, and its place is used again when it has no more connections.
    pub(crate) removed: bool,
    /// In the list of hosts to be looked at at the end of the turn.
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
            queue: VecDeque::new(),
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

    /// Requests a new connection is likely to take, for the number of connections worth opening.
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
