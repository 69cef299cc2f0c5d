//! Decisions in the program itself: the questions that proxies ask backends, as calls of a trait.

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

/// Who may do what, decided by the program: one of each worker, called on its thread. It must not block; what takes
/// longer is [answered later](Connect::later).
///
/// It is asked first. What it leaves to the [rules](Decision::rules), which each method does unless it is written,
/// is decided as it is without it: by tokens, proxies and the `allow_` keys of the settings.
pub trait Authorizer: 'static {
    /// The HTTP headers that it wants to see of connections. Others are not kept.
    fn headers(&self) -> Vec<String> {
        Vec::new()
    }

    /// A client connects: may it, and as whom? Asked of every connection but those of long-polls and of the Pusher protocol,
    /// with its token as it is; a second time where the rules wait for the key of that token.
    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        let _ = ask;
        Decision::rules()
    }

    /// A client subscribes without a subscription token, to a channel of a namespace that there is. Unidirectional clients and
    /// long-polls are answered at once or not at all: what is to be decided later is refused there.
    fn subscribe(&mut self, ask: &Subscribe<'_>) -> Decision<SubscribeResult> {
        let _ = ask;
        Decision::rules()
    }

    /// A client publishes to a channel of a namespace that there is.
    fn publish(&mut self, ask: &Publish<'_>) -> Decision<PublishResult> {
        let _ = ask;
        Decision::rules()
    }

    /// A client calls a remote procedure.
    fn rpc(&mut self, ask: &Rpc<'_>) -> Decision<RpcResult> {
        let _ = ask;
        Decision::rules()
    }

    /// A connection that was granted until now: may it stay?
    fn refresh(&mut self, ask: &Refresh<'_>) -> Decision<RefreshResult> {
        let _ = ask;
        Decision::rules()
    }

    /// A subscription that was granted until now: may it go on?
    fn sub_refresh(&mut self, ask: &SubRefresh<'_>) -> Decision<RefreshResult> {
        let _ = ask;
        Decision::rules()
    }
}

/// What becomes of a question.
pub struct Decision<T>(DecisionKind<T>);

enum DecisionKind<T> {
    Rules,
    Now(Result<T, Denial>),
    Later,
}

impl<T> Decision<T> {
    /// It may be done, like this.
    pub fn grant(result: T) -> Decision<T> {
        Decision(DecisionKind::Now(Ok(result)))
    }

    /// It may not.
    pub fn deny(denial: impl Into<Denial>) -> Decision<T> {
        Decision(DecisionKind::Now(Err(denial.into())))
    }

    /// The settings decide.
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

/// Sends a decision that was to come later. One that is dropped refuses with error 100, which clients try again after.
#[must_use = "the client waits"]
pub struct DecisionSender<T: DecisionResult> {
    letter: Option<(Arc<Inbox>, u64)>,
    of: PhantomData<fn(T)>,
}

impl<T: DecisionResult> DecisionSender<T> {
    /// Sends it. It has no effect if the client is gone, or after half a minute.
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

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The session, as the server API names it; 0 of a long-poll, which has none yet.
    pub id: SessionId,
    /// Empty for an anonymous one, and before the connect.
    pub user: &'a str,
    /// `websocket`, `sse`, `http_stream`, `uni_sse` and the like.
    pub transport: &'static str,
    /// As it counts against limits: of IPv6 the prefix, behind a proxy the client's.
    pub address: Option<IpAddr>,
    /// The `meta` of its connect, raw JSON.
    pub meta: Option<&'a [u8]>,
    pub(crate) headers: &'a [(String, String)],
    pub(crate) emulated: &'a [(String, String)],
}

impl Client<'_> {
    /// A header of its HTTP request, if [`Authorizer::headers`] names it.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(self.headers, name)
    }

    /// The same of the headers in its connect command: it writes what it likes there.
    pub fn emulated_header(&self, name: &str) -> Option<&str> {
        find(self.emulated, name)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// Where a decision goes that comes later.
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
            /// Who asks.
            pub client: Client<'a>,
            $($(#[$field_doc])* pub $field: $type,)*
            deferral: Deferral<'a>,
        }

        impl $ask<'_> {
            /// It is decided later, from any thread: `work` takes the answer there.
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
        /// As it came; empty without one.
        token: &'a str,
        /// What it calls itself, its version, and what it has sent along.
        name: &'a str,
        /// Of its SDK.
        version: &'a str,
        /// Its own data: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// A client subscribes.
    Subscribe(SubscribeResult) {
        /// The channel.
        channel: &'a str,
        /// The client's own data: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// A client publishes.
    Publish(PublishResult) {
        /// The channel.
        channel: &'a str,
        /// What: JSON, or bytes of a Protobuf client.
        data: &'a [u8],
    }
    /// A client calls a remote procedure.
    Rpc(RpcResult) {
        /// Its name.
        method: &'a str,
        /// Its argument: JSON, or bytes of a Protobuf client.
        data: Option<&'a [u8]>,
    }
    /// A connection is at its end.
    Refresh(RefreshResult) {}
    /// A subscription is at its end.
    SubRefresh(RefreshResult) {
        /// The channel.
        channel: &'a str,
    }
}

/// What an authorizer has said.
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

/// Asks an authorizer what a proxy would ask a backend.
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
