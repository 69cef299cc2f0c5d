//! Extensions by a program that embeds the server: an authorizer, routes, a codec, and calls from its
//! threads. No I/O and no clock: `worker::program` connects them.

mod authorizer;
mod handle;
mod inbox;
mod route;

use std::rc::Rc;
use std::sync::Arc;

use dunlin_protocol::Codec;

pub use self::authorizer::{
    Authorizer, Client, Connect, Decision, DecisionSender, Publish, Refresh, Rpc, SubRefresh,
    Subscribe,
};
pub(crate) use self::authorizer::{AuthorizerReply, Deferral, ask};
pub use self::handle::{CallError, Handle};
pub(crate) use self::inbox::{Inbox, InboxMessage, OnResponse};
pub(crate) use self::route::Routes;
pub use self::route::{HttpRequest, HttpResponse, Reply, Responder};

/// Creates the authorizer of one worker, on its thread.
pub(crate) type AuthorizerFactory = Box<dyn Fn() -> Box<dyn Authorizer> + Send + Sync>;

/// Creates the codec of one worker, on its thread.
pub(crate) type CodecFactory = Box<dyn Fn() -> Rc<dyn Codec> + Send + Sync>;

/// The extensions of a program.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) authorizer: Option<AuthorizerFactory>,
    pub(crate) routes: Routes,
    /// A custom protocol, and the path of its WebSockets.
    pub(crate) protocol: Option<(String, CodecFactory)>,
    pub(crate) handle: Handle,
}

impl Program {
    /// Creates a codec for a worker, on its thread.
    pub(crate) fn codec(&self) -> Option<Rc<dyn Codec>> {
        self.protocol.as_ref().map(|(_, make)| make())
    }

    /// Returns the inbox of a worker; `None` without extensions.
    pub(crate) fn inbox(&self, worker: usize) -> Option<&Arc<Inbox>> {
        self.handle.inboxes()?.get(worker)
    }
}
