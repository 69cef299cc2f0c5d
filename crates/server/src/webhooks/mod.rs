//! The webhooks thread: drives the machine of [`dunlin_webhooks`] over sockets.

mod in_transit;
mod sender;

use std::sync::Arc;

use dunlin_webhooks::DeliveryStats;

use self::in_transit::InTransit;
pub(crate) use self::sender::{FINISH_TIMEOUT, WebhooksThread};

/// What workers, the webhooks thread and the admin thread share.
#[derive(Debug)]
pub(crate) struct WebhooksState {
    pub(crate) stats: Arc<DeliveryStats>,
    in_transit: Vec<InTransit>,
}

impl WebhooksState {
    pub(crate) fn new(workers: usize) -> WebhooksState {
        let in_transit = (0..workers).map(|_| InTransit::default()).collect();
        WebhooksState { stats: Arc::default(), in_transit }
    }

    /// Bytes between a worker and the webhooks thread.
    pub(crate) fn in_transit(&self, worker: usize) -> Option<&InTransit> {
        self.in_transit.get(worker)
    }
}
