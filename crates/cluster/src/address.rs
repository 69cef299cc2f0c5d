//! The servers of the store that a cluster's nodes share, as configured by `cluster.engine`.

use std::sync::Arc;

use dunlin_config::{Engine, EngineKind};

use super::inbox::Inbox;
#[cfg(test)]
use super::memory::MemoryAddress;
use super::store::{Store, StoreError};
use super::{nats, redis};

/// The servers of the store that a cluster's nodes share.
#[derive(Clone)]
pub(super) enum StoreAddress {
    Redis(redis::RedisAddress),
    Nats(nats::NatsAddress),
    #[cfg(test)]
    Memory(MemoryAddress),
}

impl StoreAddress {
    pub(super) fn new(engine: &Arc<Engine>) -> StoreAddress {
        match engine.kind {
            // Nodes do not meet on a disk: validation refuses it.
            EngineKind::Redis | EngineKind::Disk => {
                StoreAddress::Redis(redis::RedisAddress::new(engine))
            }
            EngineKind::Nats => StoreAddress::Nats(nats::NatsAddress::new(engine)),
        }
    }

    /// Opens a connection for the process `uid`. Received messages go to `messages`, which closes together with the connection.
    pub(super) async fn open(
        &self,
        uid: Arc<str>,
        messages: Inbox,
    ) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            StoreAddress::Redis(address) => {
                Ok(Arc::new(redis::RedisStore::open(address, uid, messages).await?))
            }
            StoreAddress::Nats(address) => Ok(Arc::new(nats::open(address, uid, messages).await?)),
            #[cfg(test)]
            StoreAddress::Memory(address) => Ok(Arc::new(address.open(uid, messages)?)),
        }
    }

    /// The prefix of all names of the cluster.
    pub(super) fn prefix(&self) -> &Arc<str> {
        match self {
            StoreAddress::Redis(address) => &address.prefix,
            StoreAddress::Nats(address) => &address.prefix,
            #[cfg(test)]
            StoreAddress::Memory(address) => address.prefix(),
        }
    }

    pub(super) fn kind(&self) -> EngineKind {
        match self {
            StoreAddress::Redis(_) => EngineKind::Redis,
            StoreAddress::Nats(_) => EngineKind::Nats,
            #[cfg(test)]
            StoreAddress::Memory(_) => EngineKind::Nats,
        }
    }

    /// The name of the product, for messages.
    pub(super) fn server(&self) -> &'static str {
        match self {
            StoreAddress::Redis(_) => "Redis",
            StoreAddress::Nats(_) => "NATS",
            #[cfg(test)]
            StoreAddress::Memory(_) => "the memory",
        }
    }

    /// The servers, for messages.
    pub(super) fn place(&self) -> String {
        match self {
            StoreAddress::Redis(address) => address.place(),
            StoreAddress::Nats(address) => address.place(),
            #[cfg(test)]
            StoreAddress::Memory(_) => "memory".to_owned(),
        }
    }
}
