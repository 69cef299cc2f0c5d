//! What travels on the bus: between workers, and from the control thread to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use dunlin_hub::SessionId;

use crate::push::{Ask, Said};

/// One message on the bus.
pub(crate) enum Parcel {
    /// Between the hubs of two workers.
    Hub(dunlin_hub::Message),
    /// What a client posted to `/emulation` at a worker that does not own its session.
    Emulation {
        /// Whose commands these are; the token was verified by the sender.
        session: SessionId,
        /// The commands, newline-delimited.
        frame: Box<[u8]>,
    },
    /// Wake up: there is a snapshot that wants something done now. The switch itself comes with every wake.
    Adopt,
    /// To the admin thread: the generation it waits for has been taken up, or refused.
    Adopted,
    /// To the webhooks thread: an event that some hook wants.
    Happened(Box<crate::webhooks::Happening>),
    /// From the admin thread: what is being broadcast, or what to do about it.
    Broadcasts {
        /// Comes back with the answer.
        ask: u64,
        /// What is asked.
        action: BroadcastAction,
    },
    /// To the admin thread.
    BroadcastsAre {
        /// What was asked.
        ask: u64,
        /// Who answers.
        worker: usize,
        /// The broadcasts, if they were to be listed.
        found: Vec<dunlin_hub::BroadcastStatus>,
        /// `None`: no such broadcast here. Otherwise how many messages were taken back.
        acted: Option<u64>,
    },
    /// It is the receiver's turn to broadcast.
    Turn,
    /// From the admin thread: whom would a change concern?
    Affected {
        /// Comes back with the answer.
        ask: u64,
        /// What would change.
        touched: Arc<Touched>,
    },
    /// To the admin thread.
    AffectedAre {
        /// What was asked.
        ask: u64,
        /// Who answers.
        worker: usize,
        /// Whom it has.
        found: Box<Affected>,
    },
    /// To the push thread: a request below `/api/push`.
    Push(Box<Ask>),
    /// From the push thread: a piece of the answer.
    Pushed(Box<Said>),
    /// To the push thread: the client's socket has taken so many bytes of its answer.
    PushRead {
        /// Whose answer.
        call: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// To the push thread: the client of this call has gone.
    PushGone {
        /// Which call.
        call: u64,
    },
    /// From the push thread: which of these users have a session?
    WhoIsOnline {
        /// Comes back with the answer.
        ask: u64,
        /// Whom it is about.
        users: Arc<[String]>,
    },
    /// To the push thread.
    TheseAreOnline {
        /// What was asked.
        ask: u64,
        /// Their places in the question.
        online: Vec<u32>,
    },
    /// To the next worker, once a second: how far off is it?
    Probe(std::time::Instant),
    /// Stop accepting, ask clients to reconnect, spread over the configured time.
    Drain,
    /// Leave the event loop; the webhooks thread sends what it has first.
    Stop,
    /// Stay in this turn for so long, to see who waits.
    #[cfg(test)]
    Stall(std::time::Duration),
    /// Panic, to see what is left standing.
    #[cfg(test)]
    Panic,
}

/// What the admin thread wants of broadcasts under way; the name is the channel's.
#[derive(Clone, Debug)]
pub(crate) enum BroadcastAction {
    /// Say what there is.
    List,
    /// Hold it.
    Pause(Arc<str>),
    /// Let it go on.
    Resume(Arc<str>),
    /// End it, and take back what has not been sent.
    Cancel(Arc<str>),
}

/// What a change would touch of that of which workers know whom it concerns.
#[derive(Debug)]
pub(crate) struct Touched {
    /// Namespaces; the empty one stands for channels without.
    pub(crate) namespaces: BTreeSet<Arc<str>>,
    /// Listeners that close, each with its address.
    pub(crate) listeners: Vec<(Arc<str>, SocketAddr)>,
}

/// Whom a change would concern.
#[derive(Debug, Default)]
pub(crate) struct Affected {
    /// Sessions subscribed in a namespace that is touched, each once.
    pub(crate) sessions: u64,
    /// Subscriptions, by namespace.
    pub(crate) subscriptions: BTreeMap<Arc<str>, u64>,
    /// Connections, by the listener they came through.
    pub(crate) connections: BTreeMap<Arc<str>, u64>,
}

impl Affected {
    /// Adds those of another worker.
    pub(crate) fn add(&mut self, other: Affected) {
        self.sessions += other.sessions;
        for (own, other) in [
            (&mut self.subscriptions, other.subscriptions),
            (&mut self.connections, other.connections),
        ] {
            for (name, count) in other {
                *own.entry(name).or_default() += count;
            }
        }
    }
}
