//! What a program that serves by this crate brings along: who decides, further routes, and calls from its own threads.
//!
//! No I/O and no clock: [`worker::program`](crate::worker) asks and answers.

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

/// Makes the authorizer of one worker, on its thread.
pub(crate) type AuthorizerFactory = Box<dyn Fn() -> Box<dyn Authorizer> + Send + Sync>;

/// Makes the codec of one worker, on its thread.
pub(crate) type CodecFactory = Box<dyn Fn() -> Rc<dyn Codec> + Send + Sync>;

/// What a program brings along.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) authorizer: Option<AuthorizerFactory>,
    pub(crate) routes: Routes,
    /// A protocol of its own, and the path of its WebSockets.
    pub(crate) protocol: Option<(String, CodecFactory)>,
    pub(crate) handle: Handle,
}

impl Program {
    /// A codec for a worker, on its thread.
    pub(crate) fn codec(&self) -> Option<Rc<dyn Codec>> {
        self.protocol.as_ref().map(|(_, make)| make())
    }

    /// The inbox of a worker; `None` where the program brings nothing along.
    pub(crate) fn inbox(&self, worker: usize) -> Option<&Arc<Inbox>> {
        self.handle.inboxes()?.get(worker)
    }
}
