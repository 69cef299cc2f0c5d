//! Protocols: what happens to a connection whose protocol a program speaks, and what the program wants of the server.

use crate::hook::Field;

/// The number of a connection within its machine.
pub type ConnKey = u32;

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
pub enum ConnEvent<'a> {
    /// It is open; with what is known about it.
    Open(&'a [(&'static str, Field<'a>)]),
    /// The client has sent a frame.
    Frame(&'a [u8]),
    /// The server has something for the client: a push of the Centrifugal protocol in JSON, without the enclosing reply.
    Push(&'a [u8]),
    /// The time of `conn:after` has come.
    Timer(&'a str),
    /// It has ended, with code and reason.
    Close(u32, &'a str),
}

impl ConnEvent<'_> {
    /// The names of the functions for them.
    pub const NAMES: [&'static str; 5] = ["open", "frame", "push", "timer", "close"];

    #[cfg(feature = "luau")]
    pub(crate) const fn index(&self) -> usize {
        match self {
            ConnEvent::Open(_) => 0,
            ConnEvent::Frame(_) => 1,
            ConnEvent::Push(_) => 2,
            ConnEvent::Timer(_) => 3,
            ConnEvent::Close(..) => 4,
        }
    }
}

/// How far the program has come with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has handled it. The number of bytes that it has taken of a frame, if it has returned one.
    Done(Option<usize>),
    /// It waits for the answer to this call.
    Waits(Call),
}

/// A call that a program waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who is called.
    pub target: Target,
    /// The parameters as a JSON object.
    pub params: Vec<u8>,
}

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A command of the connection's client, by the name of its member in the Centrifugal protocol.
    Client(&'static str),
    /// A method of the server API.
    Server(&'static str),
    /// The store that all workers share.
    Shared,
}

impl Target {
    const ALL: [(&'static str, Target); 11] = [
        ("connect", Target::Client("connect")),
        ("subscribe", Target::Client("subscribe")),
        ("unsubscribe", Target::Client("unsubscribe")),
        ("publish", Target::Client("publish")),
        ("rpc", Target::Client("rpc")),
        ("presence", Target::Client("presence")),
        ("presence_stats", Target::Client("presence_stats")),
        ("history", Target::Client("history")),
        ("dunlin.publish", Target::Server("publish")),
        ("dunlin.send_to", Target::Server("send")),
        ("dunlin.shared", Target::Shared),
    ];

    #[cfg(feature = "luau")]
    pub(crate) fn of(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|(of, _)| *of == name).map(|(_, target)| target)
    }

    /// Returns the name that a program calls it by.
    pub fn name(self) -> &'static str {
        Target::ALL.into_iter().find(|(_, of)| *of == self).map_or("", |(name, _)| name)
    }
}

/// The answer to a call: its result as JSON, or the code and the message of its error.
pub type Answer<'a> = Result<&'a [u8], (u32, &'a str)>;

/// What an event has brought about, beside its calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// What the client is sent.
    pub output: Vec<u8>,
    /// Where each part of it ends: on a WebSocket each is a message.
    pub ends: Vec<usize>,
    /// Timers that are set, by name, with their delay in milliseconds; `None`: the timer is removed.
    pub timers: Vec<(Box<str>, Option<u64>)>,
    /// The connection is to end, for this reason.
    pub close: Option<String>,
}

impl Effects {
    /// Iterates over the messages to the client.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(self.ends.iter().copied()).map(|(begin, end)| &self.output[begin..end])
    }
}
