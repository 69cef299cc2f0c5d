//! What workers, the webhooks thread and the admin thread share about webhooks.

use std::sync::Arc;

use dunlin_webhooks::DeliveryStats;

use crate::in_transit::InTransit;

/// Delivery statistics, and what is on its way to the webhooks thread.
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
