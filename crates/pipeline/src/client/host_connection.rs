//! An open connection to a host, and its current answer.

use dunlin_net::ConnId;

use super::config::Depth;
use super::host::{Host, HostId};
use crate::client::request::BodyMode;
use crate::{Connection, Window};

#[derive(Debug)]
pub(crate) struct HostConnection {
    pub(crate) id: ConnId,
    pub(crate) host: HostId,
    pub(crate) connection: Connection,
    pub(crate) window: Option<Window>,
    fixed_depth: u32,
    /// The socket is full; `on_writable` follows.
    pub(crate) blocked: bool,
    /// The request in flight shares the connection with no other.
    pub(crate) exclusive: bool,
    /// When the oldest request became the oldest.
    pub(crate) oldest_since_ms: u64,
    /// The server has received as many requests as its limit, and has a moment to close.
    pub(crate) spent: bool,
    pub(crate) gathered: Gathered,
}

/// The current answer.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) head: Vec<u8>,
    pub(crate) status: u16,
    pub(crate) keep_alive: bool,
    pub(crate) length: Option<u64>,
    pub(crate) mode: BodyMode,
    pub(crate) body: Vec<u8>,
    pub(crate) body_bytes: u64,
    pub(crate) too_long: bool,
}

/// A buffer that grew beyond this size is freed.
const KEPT_BYTES_MAX: usize = 64 << 10;

impl Gathered {
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.body.clear();
        if self.body.capacity() > KEPT_BYTES_MAX {
            self.body = Vec::new();
        }
        (self.body_bytes, self.too_long) = (0, false);
    }
}

impl HostConnection {
    pub(crate) fn new(id: ConnId, host_id: HostId, host: &Host) -> HostConnection {
        let mut connection = Connection::new(&host.config.limits);
        connection.set_budget(host.budget.limit());
        let (window, fixed_depth) = match host.config.depth {
            Depth::Auto(_) => (Some(host.window.next()), 0),
            Depth::Fixed(depth) => (None, depth.max(1)),
        };
        HostConnection {
            id,
            host: host_id,
            connection,
            window,
            fixed_depth,
            blocked: false,
            exclusive: false,
            oldest_since_ms: 0,
            spent: false,
            gathered: Gathered::default(),
        }
    }

    /// Returns the number of requests that may be sent.
    pub(crate) fn room(&self) -> u32 {
        if self.blocked || self.exclusive {
            return 0;
        }
        let depth = self.window.as_ref().map_or(self.fixed_depth, Window::depth);
        self.connection.room(depth)
    }
}
