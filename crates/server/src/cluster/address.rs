//! The servers in which a cluster's nodes meet, by the engine that the settings name.

use std::sync::Arc;

use dunlin_config::{Engine, EngineKind};

use super::inbox::Inbox;
use super::store::{Store, StoreError};
use super::{nats, redis};

/// The servers in which a cluster's nodes meet.
#[derive(Clone)]
pub(super) enum Address {
    Redis(redis::Address),
    Nats(nats::Address),
}

impl Address {
    pub(super) fn new(engine: &Arc<Engine>) -> Address {
        match engine.kind {
            EngineKind::Redis => Address::Redis(redis::Address::new(engine)),
            EngineKind::Nats => Address::Nats(nats::Address::new(engine)),
        }
    }

    /// Opens a connection for the process of this uid. What it is sent goes to `messages`, which closes when the connection does.
    pub(super) async fn open(
        &self,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Address::Redis(address) => {
                Ok(Arc::new(redis::RedisStore::open(address, uid, messages).await?))
            }
            Address::Nats(address) => {
                Ok(Arc::new(nats::NatsStore::open(address, uid, messages).await?))
            }
        }
    }

    /// What all names of the cluster begin with.
    pub(super) fn prefix(&self) -> &Arc<str> {
        match self {
            Address::Redis(address) => &address.prefix,
            Address::Nats(address) => &address.prefix,
        }
    }

    pub(super) fn kind(&self) -> EngineKind {
        match self {
            Address::Redis(_) => EngineKind::Redis,
            Address::Nats(_) => EngineKind::Nats,
        }
    }

    /// What it is, for people.
    pub(super) fn server(&self) -> &'static str {
        match self {
            Address::Redis(_) => "Redis",
            Address::Nats(_) => "NATS",
        }
    }

    /// The servers, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Address::Redis(address) => address.place(),
            Address::Nats(address) => address.place(),
        }
    }
}
