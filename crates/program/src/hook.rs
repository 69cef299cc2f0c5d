//! Hooks: the questions that a program answers, and its decisions.

/// A question about an operation of a client. A program has a function of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A client without a token connects.
    Connect,
    /// A client subscribes.
    Subscribe,
    /// A client publishes.
    Publish,
    /// A client calls a procedure.
    Rpc,
    /// A connection expires.
    Refresh,
    /// A subscription expires.
    SubRefresh,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Hook; 6] =
        [Hook::Connect, Hook::Subscribe, Hook::Publish, Hook::Rpc, Hook::Refresh, Hook::SubRefresh];

    /// Returns the name of its function.
    pub const fn name(self) -> &'static str {
        match self {
            Hook::Connect => "connect",
            Hook::Subscribe => "subscribe",
            Hook::Publish => "publish",
            Hook::Rpc => "rpc",
            Hook::Refresh => "refresh",
            Hook::SubRefresh => "sub_refresh",
        }
    }

    /// Returns the hook of this name.
    pub fn of(name: &str) -> Option<Hook> {
        Hook::ALL.into_iter().find(|hook| hook.name() == name)
    }
}

/// A field of an event.
#[derive(Clone, Copy, Debug)]
pub enum Field<'a> {
    /// Text or bytes.
    Bytes(&'a [u8]),
    /// A truth value.
    Bool(bool),
    /// Names and values; a program sees the names in lower case.
    Pairs(&'a [(String, String)]),
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Field<'a> {
        Field::Bytes(text.as_bytes())
    }
}

/// What a program has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It returned nothing: the settings decide, as without the program.
    Rules,
    /// Permitted, with these results as a JSON object; `{}` if it returned `true`.
    Granted(Vec<u8>),
    /// It returned `false`: permission denied.
    Denied,
    /// Refused, with the code (400 to 1999) and the message for the client.
    Refused(u32, String),
    /// The client is disconnected, with code (4000 to 4999) and reason.
    Disconnected(u16, String),
}
