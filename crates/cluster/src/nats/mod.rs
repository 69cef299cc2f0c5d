//! The stream of a cluster's records in NATS: the JetStream stream `PREFIX-cluster` ([`stream`]). Its subjects are those of
//! [`super::ordered`]. Nodes exchange messages over subjects that no stream keeps.

mod address;
mod link;
mod listing;
mod stream;

use std::sync::Arc;

pub(super) use address::NatsAddress;
use serde_json::json;
pub(super) use stream::NatsStream;

use super::condition::Condition;
use super::inbox::Inbox;
use super::ordered::{KINDS, OrderedStore, RecordStream as _};
use super::store::StoreError;

/// Opens a connection of the process `uid`.
pub(super) async fn open(
    address: &NatsAddress,
    uid: Arc<str>,
    messages: Inbox,
) -> Result<OrderedStore<NatsStream>, StoreError> {
    let prefix = &address.prefix;
    let heard = [format!("{prefix}.calls"), format!("{prefix}.calls.{uid}")];
    let link = address.open(heard, &messages).await?;
    let name = address.stream();
    let config = json!({
        "name": name,
        "subjects": KINDS.map(|kind| format!("{prefix}.{kind}.>")),
        "retention": "limits",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "num_replicas": address.engine.stream_replicas,
        "storage": if address.engine.stream_in_memory { "memory" } else { "file" },
    });
    let is_replicated = address.engine.stream_replicas > 1;
    let stream = NatsStream::new(link, name, config, is_replicated);
    stream.create().await?;
    Ok(OrderedStore::new(stream, prefix, uid))
}

/// Maps the name of a refusal by a NATS engine to a condition.
fn condition_of(refusal: &str) -> Condition {
    match refusal {
        "wrong_password" => Condition::WrongPassword,
        "credentials_expired" | "credentials_revoked" => Condition::BadCredentials,
        "no_permission" => Condition::NotPermitted,
        "no_jetstream" => Condition::NoJetstream,
        "jetstream_unavailable" => Condition::JetstreamUnavailable,
        "storage_full" => Condition::StorageFull,
        "stream_config" => Condition::StreamConfig,
        "max_payload" => Condition::MaxPayload,
        "tls_required" => Condition::TlsFailed,
        _ => Condition::Failed,
    }
}
