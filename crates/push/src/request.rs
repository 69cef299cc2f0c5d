//! A request as the sender carries it: what goes on the wire, and what decides when.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use dunlin_wire::http2::hpack::Indexing;
use tokio::time::Instant;

/// What a request costs in memory beside its texts and body.
const OVERHEAD_BYTES: usize = 512;

/// A push, spelled for its service.
#[derive(Clone, Debug)]
pub struct Request {
    /// `:path`.
    pub path: String,
    /// Headers but for the pseudo ones and the authorization, names in lower case.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
    /// Who goes first.
    pub class: Class,
    /// Which connections may carry it.
    pub lane: Lane,
    /// It does not leave after this. What left shortly before has a few answer times more to be answered.
    pub deadline: Instant,
    /// After this it is not worth sending any more.
    pub expires: Option<SystemTime>,
    /// Send it again if it was sent and no answer came. Harmless where a later push replaces an earlier
    /// one (a collapse id); otherwise the device may see it twice.
    pub resend_uncertain: bool,
    /// A hash of whom it is for, the same for all pushes to one device.
    pub subject: u64,
}

/// A header field.
#[derive(Clone, Debug)]
pub struct Header {
    /// In lower case.
    pub name: Cow<'static, str>,
    /// Shared, as most values are the same for many pushes.
    pub value: Arc<str>,
    /// [`Indexing::Table`] for what comes again.
    pub indexing: Indexing,
}

/// Who goes first. VoIP goes before all; of the others a higher class goes first, but each sixteen bytes
/// of it let one byte of a waiting lower class pass, so that none waits for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A call is ringing.
    Voip,
    /// Now (`apns-priority` 10).
    #[default]
    High,
    /// When it suits the device (5).
    Normal,
    /// Not at the cost of the device's power (1).
    Low,
}

/// Which connections may carry a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The main ones.
    #[default]
    Main,
    /// One apart, for those likely to be refused: a service slows down a connection with many refusals.
    Suspect,
}

impl Request {
    /// Bytes of memory that the request counts for in the queue.
    pub fn bytes(&self) -> usize {
        let headers: usize =
            self.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        self.path.len() + headers + self.body.len() + OVERHEAD_BYTES
    }
}
