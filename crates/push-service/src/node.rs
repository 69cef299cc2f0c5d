//! What a node of a cluster has for itself: devices, idempotency keys, scheduled batches and feeds. Requests may name the node
//! that they are for, and answers do.

use std::borrow::Cow;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use serde_json::Value;

use super::submission::SubmissionBatch;
use super::thread::Shared;

impl Shared {
    pub(super) fn node_name(&self) -> String {
        self.node.name().to_string()
    }

    pub(super) fn is_in_cluster(&self) -> bool {
        self.node.snapshot().config.cluster.engine.is_some()
    }

    /// Refuses a request that names another node.
    pub(super) fn check_node(&self, named: Option<&str>) -> Result<(), ApiError> {
        let own = self.node_name();
        match named {
            Some(named) if named != own => {
                let why = format!(
                    "node: this is {own}, and {named} was named: each node has its own devices, keys and feeds; ask that one"
                );
                Err(ApiErrorCode::BadRequest.with_reason(why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an idempotency key that does not say whose it is: at another node of the cluster it would be new.
    pub(super) fn check_key(&self, batch: &SubmissionBatch) -> Result<(), ApiError> {
        self.check_node(batch.node.as_deref())?;
        if batch.idempotency_key.is_some() && batch.node.is_none() && self.is_in_cluster() {
            let own = self.node_name();
            let why = format!(
                "idempotency_key: each node of a cluster knows its own keys, and a repetition at another one would be sent \
                 again; add `node` with the name of the node you send to, here {own:?}"
            );
            return Err(ApiErrorCode::BadRequest.with_reason(why));
        }
        Ok(())
    }

    /// Adds the name of the node to an answer of a cluster.
    pub(super) fn named(&self, mut answer: Value) -> Value {
        if self.is_in_cluster() {
            answer["node"] = self.node_name().into();
        }
        answer
    }

    /// Returns why a user without a device gets no push.
    pub(super) fn no_device(&self) -> Cow<'static, str> {
        match self.is_in_cluster() {
            true => format!(
                "the user has registered no device at this node ({}); each node has its own registry",
                self.node_name()
            )
            .into(),
            false => "the user has registered no device".into(),
        }
    }
}
