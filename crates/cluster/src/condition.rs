//! The condition of this node in its cluster: named states, each with its fix.

use dunlin_config::EngineKind;

use crate::message::OutOfSync;

/// The condition of a node in its cluster. Of several the worst is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Condition {
    /// No cluster is configured.
    #[default]
    Alone,
    /// A member, with a lease on its number.
    Member,
    /// Joining: there is no lease yet, and nothing has failed.
    Joining,
    /// Another node holds the number that `server.node` wants.
    NumberTaken,
    /// Another living node has the same name.
    NameTaken,
    /// A node with the same prefix has other token keys.
    OtherCluster,
    /// Redis or NATS does not respond.
    Unreachable,
    /// The credentials are refused.
    WrongPassword,
    /// The user lacks a permission.
    NotPermitted,
    /// The server is a replica and refuses writes.
    ReadOnly,
    /// The server is loading its data from the disk.
    Loading,
    /// The server has reached `maxmemory`.
    OutOfMemory,
    /// The server refuses writes because it cannot save.
    CannotSave,
    /// The server refuses writes because it has too few replicas.
    TooFewReplicas,
    /// A script blocks the server.
    Busy,
    /// A key with the prefix has another type: it belongs to another program.
    ForeignKey,
    /// Redis Cluster: the slot of the cluster's keys is between two nodes.
    SlotMoving,
    /// Redis Cluster: slots have no node, so the cluster is down.
    ClusterDown,
    /// NATS: the credentials cannot be used, or have expired.
    BadCredentials,
    /// NATS: the TLS handshake fails.
    TlsFailed,
    /// NATS: there is no JetStream.
    NoJetstream,
    /// NATS: JetStream has no leader.
    JetstreamUnavailable,
    /// NATS: the storage of JetStream is full.
    StorageFull,
    /// NATS: the stream cannot be changed to the settings.
    StreamConfig,
    /// NATS: a message exceeds `max_payload`.
    MaxPayload,
    /// The record of this node was missing: evicted, flushed, deleted, or lost in a restart.
    RecordLost,
    /// This node has refused a shared change of settings.
    SettingsRefused,
    /// This node has missed shared changes of settings.
    SettingsMissed,
    /// Any other error.
    Failed,
}

impl Condition {
    pub(crate) const ALL: [Condition; 29] = [
        Condition::Alone,
        Condition::Member,
        Condition::Joining,
        Condition::NumberTaken,
        Condition::NameTaken,
        Condition::OtherCluster,
        Condition::Unreachable,
        Condition::WrongPassword,
        Condition::NotPermitted,
        Condition::ReadOnly,
        Condition::Loading,
        Condition::OutOfMemory,
        Condition::CannotSave,
        Condition::TooFewReplicas,
        Condition::Busy,
        Condition::ForeignKey,
        Condition::SlotMoving,
        Condition::ClusterDown,
        Condition::BadCredentials,
        Condition::TlsFailed,
        Condition::NoJetstream,
        Condition::JetstreamUnavailable,
        Condition::StorageFull,
        Condition::StreamConfig,
        Condition::MaxPayload,
        Condition::RecordLost,
        Condition::SettingsRefused,
        Condition::SettingsMissed,
        Condition::Failed,
    ];

    /// The name in health, metrics and `dunlin cluster status`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Condition::Alone => "alone",
            Condition::Member => "member",
            Condition::Joining => "joining",
            Condition::NumberTaken => "number_taken",
            Condition::NameTaken => "name_taken",
            Condition::OtherCluster => "other_cluster",
            Condition::Unreachable => "unreachable",
            Condition::WrongPassword => "wrong_password",
            Condition::NotPermitted => "not_permitted",
            Condition::ReadOnly => "read_only",
            Condition::Loading => "loading",
            Condition::OutOfMemory => "out_of_memory",
            Condition::CannotSave => "cannot_save",
            Condition::TooFewReplicas => "too_few_replicas",
            Condition::Busy => "busy",
            Condition::ForeignKey => "foreign_key",
            Condition::SlotMoving => "slot_moving",
            Condition::ClusterDown => "cluster_down",
            Condition::BadCredentials => "bad_credentials",
            Condition::TlsFailed => "tls_failed",
            Condition::NoJetstream => "no_jetstream",
            Condition::JetstreamUnavailable => "jetstream_unavailable",
            Condition::StorageFull => "storage_full",
            Condition::StreamConfig => "stream_config",
            Condition::MaxPayload => "max_payload",
            Condition::RecordLost => "record_lost",
            Condition::SettingsRefused => "settings_refused",
            Condition::SettingsMissed => "settings_missed",
            Condition::Failed => "failed",
        }
    }

    /// The fix, for a store of this kind. Empty if nothing is wrong.
    pub(crate) fn fix(self, kind: EngineKind) -> &'static str {
        match self {
            Condition::Unreachable if kind == EngineKind::Nats => {
                "start nats-server, or correct the addresses of the cluster's engine"
            }
            Condition::WrongPassword if kind == EngineKind::Nats => {
                "correct user and password of the cluster's engine, its token, nkey or credentials"
            }
            Condition::NotPermitted if kind == EngineKind::Nats => {
                "permit the user to publish and subscribe to PREFIX.>, and to publish to $JS.API.>"
            }
            Condition::RecordLost if kind == EngineKind::Nats => {
                "leave the stream PREFIX-cluster alone, and keep it: stream_in_memory = false, stream_replicas = 3 of several servers; it was written again"
            }
            Condition::Failed if kind == EngineKind::Nats => "see the log of nats-server",
            Condition::BadCredentials => {
                "see the detail; issue new credentials, as `nsc generate creds` does, or correct the file"
            }
            Condition::TlsFailed => {
                "see the detail; compare `tls`, `ca`, `tls_handshake_first` and `tls_client_cert` of the engine with the `tls` block of nats-server"
            }
            Condition::NoJetstream => {
                "start nats-server with JetStream (`-js`), and allow it to the account"
            }
            Condition::JetstreamUnavailable => {
                "see the logs of nats-server: a majority of the servers has to be there"
            }
            Condition::StorageFull => {
                "give JetStream more storage, or keep less there: `stream_bytes_max` of engines"
            }
            Condition::StreamConfig => {
                "compare `stream_replicas` and `stream_in_memory` of the engine with `nats stream info PREFIX-cluster`; delete that stream to have it made anew"
            }
            Condition::MaxPayload => "raise max_payload of nats-server",
            Condition::Alone | Condition::Member | Condition::Joining => "",
            Condition::NumberTaken => {
                "set server.node to 0, so that a free number is leased, or to a number that no other node has"
            }
            Condition::NameTaken => {
                "give each node a server.name of its own; a node without one is called after its host and the port of its clients"
            }
            Condition::OtherCluster => {
                "give the engine of one of the two clusters another prefix; if they are one, give all nodes the same client.token"
            }
            Condition::Unreachable => {
                "start Redis, or correct the addresses of the cluster's engine"
            }
            Condition::WrongPassword => "correct user and password of the cluster's engine",
            Condition::NotPermitted => {
                "permit the user ~PREFIX* ~{PREFIX* &PREFIX* &{PREFIX* +@all -@dangerous +info in Redis (ACL SETUSER)"
            }
            Condition::ReadOnly => {
                "name the primary in the addresses of the cluster's engine, or its Sentinels"
            }
            Condition::Loading => "wait until Redis has read its data",
            Condition::OutOfMemory => {
                "raise maxmemory in Redis, and set maxmemory-policy to noeviction"
            }
            Condition::CannotSave => "fix the disk of Redis; see its log",
            Condition::TooFewReplicas => {
                "start the replicas of Redis, or lower its min-replicas-to-write"
            }
            Condition::Busy => "end the script that blocks Redis: SCRIPT KILL; its log names it",
            Condition::SlotMoving => {
                "wait until the slot has moved; if nobody moves it, end it: redis-cli --cluster fix, or CLUSTER SETSLOT"
            }
            Condition::ClusterDown => {
                "bring back the nodes of Redis that are down: redis-cli --cluster check"
            }
            Condition::ForeignKey => "give the cluster's engine another prefix, or remove the key",
            Condition::RecordLost => {
                "set maxmemory-policy to noeviction and appendonly to yes in Redis; it was written again"
            }
            Condition::SettingsRefused => {
                "fix the cause on this node, and make the change again with ?scope=cluster, or undo it in the same way"
            }
            Condition::SettingsMissed => {
                "compare GET /config of this node and of another, make again with ?scope=cluster what differs, and restart it; give the node a state directory, and the same cluster.secret as the others"
            }
            Condition::Failed => "see Redis's log",
        }
    }

    /// The condition of a node that has not applied all changes of the cluster's log.
    pub(super) fn of_settings(fault: &OutOfSync) -> (Condition, &str) {
        match fault {
            OutOfSync::Refused(why) => (Condition::SettingsRefused, why),
            OutOfSync::Missed(why) => (Condition::SettingsMissed, why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        for kind in [EngineKind::Redis, EngineKind::Nats] {
            let fixes = Condition::ALL.iter().filter(|of| !of.fix(kind).is_empty());
            assert_eq!(fixes.count(), Condition::ALL.len() - 3, "{kind:?}");
        }
        let names: std::collections::HashSet<_> = Condition::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), Condition::ALL.len());
    }
}
