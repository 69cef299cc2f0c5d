//! A request in the sender: its content and its scheduling.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use dunlin_wire::http2::hpack::Indexing;
use tokio::time::Instant;

/// Memory of a request in addition to its texts and body.
const OVERHEAD_BYTES: usize = 512;

/// A push, encoded for its service.
#[derive(Clone, Debug)]
pub struct Request {
    /// `:path`.
    pub path: String,
    /// Headers except pseudo headers and the authorization; names in lower case.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
    /// Its priority.
    pub class: Class,
    /// The connections that may send it.
    pub group: ConnectionGroup,
    /// It is not sent after this time. If it was sent shortly before, it has the time of a few responses more.
    pub deadline: Instant,
    /// It is useless after this time and is not sent any more.
    pub expires: Option<SystemTime>,
    /// Sends it again if it was sent and no response came. Harmless if a later push replaces an earlier one (a
    /// collapse id); otherwise the device may show it twice.
    pub resend_uncertain: bool,
    /// A hash of the recipient, the same for all pushes to a device.
    pub subject: u64,
}

/// A header field.
#[derive(Clone, Debug)]
pub struct Header {
    /// In lower case.
    pub name: Cow<'static, str>,
    /// Shared, because most values are the same for many pushes.
    pub value: Arc<str>,
    /// [`Indexing::Table`] for values that are repeated.
    pub indexing: Indexing,
}

/// The priority of a request. VoIP precedes all others. Otherwise a higher class precedes a lower one, but for each
/// sixteen bytes of it one byte of a waiting lower class is sent, so that no class starves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An incoming call.
    Voip,
    /// Deliver at once (`apns-priority` 10).
    #[default]
    High,
    /// Deliver when it suits the device's power (5).
    Normal,
    /// Never wake the device (1).
    Low,
}

/// The connections that may send a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnectionGroup {
    /// The main connections.
    #[default]
    Main,
    /// A separate connection for requests that are likely to be refused: a service slows down a connection with many
    /// refusals.
    Suspect,
}

impl Request {
    /// Returns the bytes that count towards the limit of the queue.
    pub fn bytes(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        self.path.len() + headers + self.body.len() + OVERHEAD_BYTES
    }
}
