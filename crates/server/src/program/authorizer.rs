//! Authorization by the program: a trait with one method for each request that a proxy makes to a backend.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use dunlin_hub::SessionId;
use dunlin_protocol::Payload;

use super::inbox::{Inbox, InboxMessage};
use crate::proxy::{
    AnyDecision, ConnectResult, DecisionResult, Denial, PublishResult, Question, RefreshResult,
    Requester, RpcResult, SubscribeResult,
};

/// Decides in the program what clients may do. There is one authorizer for each worker, called on its thread.
/// It must not block; use [`later`](Connect::later) for decisions that take time.
///
/// It is called first. If it returns [`rules`](Decision::rules), the default of each method, then tokens, proxies and the
/// `allow_` keys of the settings decide.
pub trait Authorizer: 'static {
    /// The HTTP headers of connections that it needs. Others are not kept.
    fn headers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether a client may connect, and as which user. Called for every connection except long-polls and the
    /// Pusher protocol, with the unverified token. Called a second time if the rules wait for the key of that
    /// token.
    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        let _ = ask;
        Decision::rules()
    }

    /// Whether a client without a subscription token may subscribe, to a channel of an existing namespace.
    /// Unidirectional clients and long-polls need an immediate decision; a later one is refused there.
    fn subscribe(&mut self, ask: &Subscribe<'_>) -> Decision<SubscribeResult> {
        let _ = ask;
        Decision::rules()
    }

    /// Whether a client may publish to a channel of an existing namespace.
    fn publish(&mut self, ask: &Publish<'_>) -> Decision<PublishResult> {
        let _ = ask;
        Decision::rules()
    }

    /// Executes a remote procedure call of a client.
    fn rpc(&mut self, ask: &Rpc<'_>) -> Decision<RpcResult> {
        let _ = ask;
        Decision::rules()
    }

    /// Whether a connection whose grant expires may continue.
    fn refresh(&mut self, ask: &Refresh<'_>) -> Decision<RefreshResult> {
        let _ = ask;
        Decision::rules()
    }

    /// Whether a subscription whose grant expires may continue.
    fn sub_refresh(&mut self, ask: &SubRefresh<'_>) -> Decision<RefreshResult> {
        let _ = ask;
        Decision::rules()
    }
}

/// The result of an authorizer.
pub struct Decision<T>(DecisionKind<T>);

enum DecisionKind<T> {
    Rules,
    Now(Result<T, Denial>),
    Later,
}

impl<T> Decision<T> {
    /// Permits the operation, with this result.
    pub fn grant(result: T) -> Decision<T> {
        Decision(DecisionKind::Now(Ok(result)))
    }

    /// Denies the operation.
    pub fn deny(denial: impl Into<Denial>) -> Decision<T> {
        Decision(DecisionKind::Now(Err(denial.into())))
    }

    /// Leaves the decision to the settings.
    pub fn rules() -> Decision<T> {
        Decision(DecisionKind::Rules)
    }
}

impl<T> From<Result<T, Denial>> for Decision<T> {
    fn from(result: Result<T, Denial>) -> Decision<T> {
        Decision(DecisionKind::Now(result))
    }
}

impl<T> fmt::Debug for Decision<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            DecisionKind::Rules => "Rules",
            DecisionKind::Now(Ok(_)) => "Granted",
            DecisionKind::Now(Err(_)) => "Denied",
            DecisionKind::Later => "Later",
        })
    }
}

/// Sends a decision later. If it is dropped, the operation fails with error 100, and the client tries again.
#[must_use = "the client waits"]
pub struct DecisionSender<T: DecisionResult> {
    letter: Option<(Arc<Inbox>, u64)>,
    of: PhantomData<fn(T)>,
}

impl<T: DecisionResult> DecisionSender<T> {
    /// Sends the decision. It has no effect if the client has disconnected, or after 30 seconds.
    pub fn send(mut self, result: Result<T, Denial>) {
        self.post(Some(T::decided(result)));
    }

    fn post(&mut self, decided: Option<AnyDecision>) {
        if let Some((inbox, number)) = self.letter.take() {
            inbox.send(InboxMessage::Decided { number, decided });
        }
    }
}

impl<T: DecisionResult> Drop for DecisionSender<T> {
    fn drop(&mut self) {
        self.post(None);
    }
}

impl<T: DecisionResult> fmt::Debug for DecisionSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionSender").finish_non_exhaustive()
    }
}

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The session id, as in the server API; 0 for a long-poll, which has none yet.
    pub id: SessionId,
    /// Empty for an anonymous client, and before the connect.
    pub user: &'a str,
    /// `websocket`, `sse`, `http_stream`, `uni_sse` and so on.
    pub transport: &'static str,
    /// The address that limits count: behind a proxy that of the client, and for IPv6 the prefix.
    pub address: Option<IpAddr>,
    /// The `meta` of the connection, as raw JSON.
    pub meta: Option<&'a [u8]>,
    pub(crate) headers: &'a [(String, String)],
    pub(crate) emulated: &'a [(String, String)],
}

impl Client<'_> {
    /// Returns the first line of a header of its HTTP request, if it is in [`Authorizer::headers`].
    pub fn header(&self, name: &str) -> Option<&str> {
        self.header_lines(name).next()
    }

    /// Returns all lines of a header, in their order. A proxy appends its own after those that the client has written, as to
    /// `X-Forwarded-For` (RFC 9110 §5.3).
    pub fn header_lines(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        lines.map(|(_, line)| line.as_str())
    }

    /// Returns a header in its connect command. The client chooses its value.
    pub fn emulated_header(&self, name: &str) -> Option<&str> {
        find(self.emulated, name)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// The address for a later decision.
#[derive(Clone, Copy)]
pub(crate) struct Deferral<'a> {
    pub(crate) inbox: &'a Arc<Inbox>,
    pub(crate) number: u64,
}

impl Deferral<'_> {
    fn later<T: DecisionResult>(self, work: impl FnOnce(DecisionSender<T>)) -> Decision<T> {
        work(DecisionSender {
            letter: Some((Arc::clone(self.inbox), self.number)),
            of: PhantomData,
        });
        Decision(DecisionKind::Later)
    }
}

macro_rules! asks {
    ($($(#[$doc:meta])* $ask:ident($result:ident) { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        pub struct $ask<'a> {
            /// The client.
            pub client: Client<'a>,
            $($(#[$field_doc])* pub $field: $type,)*
            deferral: Deferral<'a>,
        }

        impl $ask<'_> {
            /// Decides later, from any thread: `work` receives the sender of the decision.
            ///
            /// ```
            /// use dunlin_server::{DecisionSender, Decision, DecisionResult};
            ///
            /// fn on_a_thread<T: DecisionResult + Default>(answer: DecisionSender<T>) {
            ///     std::thread::spawn(move || answer.send(Ok(T::default())));
            /// }
            /// ```
            pub fn later(&self, work: impl FnOnce(DecisionSender<$result>)) -> Decision<$result> {
                self.deferral.later(work)
            }
        }

        impl fmt::Debug for $ask<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($ask)).field("client", &self.client).finish_non_exhaustive()
            }
        }
    )*};
}

asks! {
    /// A client connects.
    Connect(ConnectResult) {
        /// The token as received; empty without one.
        token: &'a str,
        /// The name in the connect command.
        name: &'a str,
        /// The version in the connect command.
        version: &'a str,
        /// The client's data: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// A client subscribes.
    Subscribe(SubscribeResult) {
        /// The channel.
        channel: &'a str,
        /// The client's data: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// A client publishes.
    Publish(PublishResult) {
        /// The channel.
        channel: &'a str,
        /// The payload: JSON, or bytes of a Protobuf client.
        data: &'a [u8],
    }
    /// A client calls a remote procedure.
    Rpc(RpcResult) {
        /// The name of the method.
        method: &'a str,
        /// The argument: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// The grant of a connection expires.
    Refresh(RefreshResult) {}
    /// The grant of a subscription expires.
    SubRefresh(RefreshResult) {
        /// The channel.
        channel: &'a str,
    }
}

/// The result of an authorizer.
#[allow(clippy::large_enum_variant, reason = "there is one of a command, for a moment")]
pub(crate) enum AuthorizerReply {
    Rules,
    Now(AnyDecision),
    Later,
}

impl<T: DecisionResult> From<Decision<T>> for AuthorizerReply {
    fn from(decision: Decision<T>) -> AuthorizerReply {
        match decision.0 {
            DecisionKind::Rules => AuthorizerReply::Rules,
            DecisionKind::Now(result) => AuthorizerReply::Now(T::decided(result)),
            DecisionKind::Later => AuthorizerReply::Later,
        }
    }
}

/// Calls an authorizer with the request of a proxy.
pub(crate) fn ask(
    authorizer: &mut dyn Authorizer,
    requester: &Requester<'_>,
    question: &Question<'_>,
    deferral: Deferral<'_>,
) -> AuthorizerReply {
    let client = Client {
        id: requester.client,
        user: requester.user,
        transport: requester.encoding.transport(),
        address: requester.address,
        meta: requester.meta,
        headers: requester.headers,
        emulated: requester.emulated,
    };
    fn bytes<'a>(data: &'a Option<Payload<'_>>) -> Option<&'a [u8]> {
        data.as_ref().map(Payload::as_bytes)
    }
    match *question {
        Question::Connect(connect) => {
            let ask = Connect {
                client,
                token: &connect.token,
                name: &connect.name,
                version: &connect.version,
                data: bytes(&connect.data),
                deferral,
            };
            authorizer.connect(&ask).into()
        }
        Question::Subscribe(subscribe) => {
            let (channel, data) = (&*subscribe.channel, bytes(&subscribe.data));
            authorizer.subscribe(&Subscribe { client, channel, data, deferral }).into()
        }
        Question::Publish(publish) => {
            let (channel, data) = (&*publish.channel, bytes(&publish.data).unwrap_or_default());
            authorizer.publish(&Publish { client, channel, data, deferral }).into()
        }
        Question::Rpc(rpc) => {
            let (method, data) = (&*rpc.method, bytes(&rpc.data));
            authorizer.rpc(&Rpc { client, method, data, deferral }).into()
        }
        Question::Refresh => authorizer.refresh(&Refresh { client, deferral }).into(),
        Question::SubRefresh { channel } => {
            authorizer.sub_refresh(&SubRefresh { client, channel, deferral }).into()
        }
    }
}
