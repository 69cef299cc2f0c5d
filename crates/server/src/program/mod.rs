//! What a program that serves by this crate brings along: who decides, further routes, and calls from its own threads.
//!
//! No I/O and no clock: [`worker::program`](crate::worker) asks and answers.

mod authorizer;
mod handle;
mod inbox;
mod route;

use std::sync::Arc;

pub(crate) use self::authorizer::{Asked, Deferral, ask};
pub use self::authorizer::{
    Authorizer, Client, Connect, Decision, DecisionSender, Publish, Refresh, Rpc, SubRefresh,
    Subscribe,
};
pub use self::handle::{CallError, Handle};
pub(crate) use self::inbox::{Inbox, Letter, Then};
pub(crate) use self::route::Routes;
pub use self::route::{HttpRequest, HttpResponse, Reply, Responder};

/// Makes the authorizer of one worker, on its thread.
pub(crate) type AuthorizerFactory = Box<dyn Fn() -> Box<dyn Authorizer> + Send + Sync>;

/// What a program brings along.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) authorizer: Option<AuthorizerFactory>,
    pub(crate) routes: Routes,
    pub(crate) handle: Handle,
}

impl Program {
    /// The inbox of a worker; `None` where the program brings nothing along.
    pub(crate) fn inbox(&self, worker: usize) -> Option<&Arc<Inbox>> {
        self.handle.inboxes()?.get(worker)
    }
}
