//! The servers in which a cluster's nodes meet, by the engine that the settings name.

use std::sync::Arc;

use dunlin_config::{Engine, EngineKind};

use super::inbox::Inbox;
use super::store::{Store, StoreError};
use super::{nats, redis};

/// The servers in which a cluster's nodes meet.
#[derive(Clone)]
pub(super) enum StoreAddress {
    Redis(redis::RedisAddress),
    Nats(nats::NatsAddress),
}

impl StoreAddress {
    pub(super) fn new(engine: &Arc<Engine>) -> StoreAddress {
        match engine.kind {
            EngineKind::Redis => StoreAddress::Redis(redis::RedisAddress::new(engine)),
            EngineKind::Nats => StoreAddress::Nats(nats::NatsAddress::new(engine)),
        }
    }

    /// Opens a connection for the process of this uid. What it is sent goes to `messages`, which closes when the connection does.
    pub(super) async fn open(
        &self,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            StoreAddress::Redis(address) => {
                Ok(Arc::new(redis::RedisStore::open(address, uid, messages).await?))
            }
            StoreAddress::Nats(address) => {
                Ok(Arc::new(nats::NatsStore::open(address, uid, messages).await?))
            }
        }
    }

    /// What all names of the cluster begin with.
    pub(super) fn prefix(&self) -> &Arc<str> {
        match self {
            StoreAddress::Redis(address) => &address.prefix,
            StoreAddress::Nats(address) => &address.prefix,
        }
    }

    pub(super) fn kind(&self) -> EngineKind {
        match self {
            StoreAddress::Redis(_) => EngineKind::Redis,
            StoreAddress::Nats(_) => EngineKind::Nats,
        }
    }

    /// What it is, for people.
    pub(super) fn server(&self) -> &'static str {
        match self {
            StoreAddress::Redis(_) => "Redis",
            StoreAddress::Nats(_) => "NATS",
        }
    }

    /// The servers, for people.
    pub(super) fn place(&self) -> String {
        match self {
            StoreAddress::Redis(address) => address.place(),
            StoreAddress::Nats(address) => address.place(),
        }
    }
}
