use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::channel::Ack;
use crate::effect::settings;
use crate::engine_kind::{
    EngineDurability, EngineKind, EngineLayout, EngineReadFrom, EngineTopology, EngineWhenFull,
};
use crate::error::ConfigErrors;
use crate::path::Path;
use crate::redis_url::RedisUrl;
use crate::{ChannelOptions, Secret};

settings! {
    /// The store of channels that several nodes share: Redis 6.2 or later, Valkey, or NATS 2.9 or later. A
    /// namespace selects it with `engine`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields, remote = "Self")]
    pub struct Engine {
        /// The kind of server. The settings from `token` on apply to NATS only; `topology`, `database`, `layout`,
        /// the Sentinels and `cluster_partitions_max` apply to Redis only.
        #[serde(rename = "type")]
        pub kind: EngineKind => Engines,
        /// The kind of servers at `addresses`. For NATS they are the servers of one cluster, or a single server.
        pub topology: EngineTopology => Engines,
        /// The addresses of the servers: `["10.0.0.7:6379"]`, or for Redis `["unix:/run/redis.sock"]`. The same on all nodes that share
        /// channels. A URL is read too: `redis://user:password@host:port/database`, `rediss://`, `redis+sentinel://`, `redis+cluster://`,
        /// percent-encoded; what it says beside the address is set in the other keys.
        pub addresses: Arc<[String]> => Engines,
        /// With `topology = "sentinel"`: the names of the primaries in the Sentinels. The channels are
        /// distributed over several primaries.
        pub sentinel_primaries: Arc<[String]> => Engines,
        /// The user name for the Sentinels, if they require one.
        pub sentinel_user: Option<Arc<str>> => Engines,
        /// The password for the Sentinels, if they require one.
        pub sentinel_password: Option<Secret> => Engines,
        /// With `topology = "cluster"`: the number of partitions of the channels, each in one slot. The same on
        /// all nodes.
        #[schemars(range(min = 1, max = 16_384))]
        pub cluster_partitions_max: u16 => Engines,
        /// The user name for the servers, if they require one.
        pub user: Option<Arc<str>> => Engines,
        /// The password for the servers, if they require one.
        pub password: Option<Secret> => Engines,
        /// Uses TLS. With NATS the handshake follows the server's INFO; see `tls_handshake_first`. No secret is
        /// sent before the handshake.
        pub tls: bool => Engines,
        /// Certificate authorities in PEM to trust instead of the system's.
        pub ca: Option<Arc<str>> => Engines,
        /// The database number.
        #[schemars(range(max = 65_535))]
        pub database: u32 => Engines,
        /// The prefix of every key and pub/sub channel. The same on all nodes that share channels, and unique on
        /// these servers: databases do not separate pub/sub.
        pub prefix: Arc<str> => Engines,
        /// The layout of keys and messages in Redis. `centrifugo` is for a migration node by node: nodes of
        /// Centrifugo 6 and of Dunlin share publications, histories, idempotency keys, joins and leaves. `prefix`
        /// is then `engine.redis.prefix` of Centrifugo (`centrifugo` if not set), and with `topology = "cluster"`
        /// `cluster_partitions_max` is its `sharded_pub_sub_partitions`.
        pub layout: EngineLayout => Engines,
        /// Time limit for a response of the server. A publication without a response is refused with a message
        /// that it may have been stored; a subscription is answered with error 100 (internal server error), and
        /// the client tries again.
        #[schemars(range(min = 10, max = 60_000))]
        pub timeout_ms: u64 => Engines,
        /// Time limit for opening a connection to a server.
        #[schemars(range(min = 10, max = 60_000))]
        pub connect_timeout_ms: u64 => Engines,
        /// How often the positions of channels without recent messages are compared with the servers, many
        /// channels at a time. The loss of the last message of a channel is detected within this time; of a channel
        /// that has been silent for five times as long, within four times this time.
        #[schemars(range(min = 100, max = 3_600_000))]
        pub position_check_ms: u64 => Engines,
        /// A publication with history is acknowledged once so many replicas of its server have it; 0: once the server has it. For
        /// Redis. See `docs/operating/engines.md`.
        #[schemars(range(max = 16))]
        pub wait_replicas: u8 => Engines,
        /// How long the replicas have for it. Then the publication is refused with the word that it may have been stored. At most half of
        /// `timeout_ms`.
        #[schemars(range(min = 1, max = 2_000))]
        pub wait_timeout_ms: u64 => Engines,
        /// Which servers of Redis histories are read from: recoveries, and `history` of clients and of the server API. `replica_preferred`: a
        /// replica, as far as it has what is known of the channel, and else the primary. Not with `layout = "centrifugo"`. See
        /// `docs/operating/engines.md`.
        pub read_from: EngineReadFrom => Engines,
        /// Most bytes of commands that are queued or not answered, on each worker, for all servers together.
        /// Beyond it publications are refused and have not been stored.
        #[schemars(range(min = 65_536))]
        pub queue_bytes_max: usize => Engines,
        /// Most bytes of messages that wait until a missing one before them has been read, on each worker. Beyond
        /// it the subscribers of the channel subscribe again and recover.
        #[schemars(range(min = 65_536))]
        pub held_bytes_max: usize => Engines,
        /// The token for NATS, instead of user and password.
        pub token: Option<Secret> => Engines,
        /// The seed of a user's nkey (`SU...`), instead of user, password and token. It signs the nonce of the
        /// server.
        pub nkey_seed: Option<Secret> => Engines,
        /// A file with the seed instead, read again before each connection.
        pub nkey_seed_file: Option<Arc<str>> => Engines,
        /// The text of a `.creds` file, instead of user, password and token: a user's JWT, and the seed of its
        /// nkey.
        pub credentials: Option<Secret> => Engines,
        /// The path of a `.creds` file instead, read again before each connection. Replace the file before its
        /// JWT expires.
        pub credentials_file: Option<Arc<str>> => Engines,
        /// With `tls`: starts with the TLS handshake, as required by NATS servers with `handshake_first` and by
        /// proxies that terminate TLS.
        pub tls_handshake_first: bool => Engines,
        /// With `tls`: the client certificate chain in PEM, the node's certificate first, for servers that verify
        /// clients: `verify` of NATS, `tls-auth-clients yes` of Redis. Also sent to Sentinels and to all nodes of
        /// a Redis Cluster.
        pub tls_client_cert: Option<Arc<str>> => Engines,
        /// The private key of `tls_client_cert`, in PEM.
        pub tls_client_key: Option<Secret> => Engines,
        /// Most wildcard subscriptions of a node in NATS, divided evenly between workers, for namespaces with
        /// `wildcards`. A further one is refused (error 106, limit exceeded).
        #[schemars(range(min = 1, max = 1_000_000))]
        pub wildcards_max: u32 => Engines,
        /// Uses channel names as NATS subjects, and payloads without an envelope, so that clients and other
        /// programs receive each other's messages. There is no history, and there are no tags, deltas,
        /// publishers, presence, joins or leaves.
        pub raw: bool => Engines,
        /// With `raw`: the prefix of the subjects, for example `app.` with the trailing dot. Empty: the subjects
        /// begin with the namespace. Clients cannot reach subjects without the prefix, or those that begin with
        /// `$`, `_` or `prefix`.
        pub raw_prefix: Arc<str> => Engines,
        /// With `raw`: replaces the `:` after the namespace in subjects; `:` or `.`. With `.` the channel
        /// `chat:a.b` is the subject `chat.a.b`, and the wildcard `chat:*` is `chat.*`.
        pub raw_separator: Arc<str> => Engines,
        /// Stores histories in JetStream. If off, its namespaces have no history, and publications with an
        /// idempotency key are refused.
        pub jetstream: bool => Engines,
        /// The number of NATS servers that store the histories.
        #[schemars(range(min = 1, max = 5))]
        pub stream_replicas: u8 => Engines,
        /// Stores histories in the memory of the NATS servers; they are lost when the servers stop.
        pub stream_in_memory: bool => Engines,
        /// How long JetStream keeps a message; 0: without limit. After this time without a publication, a channel
        /// begins a new epoch, and earlier positions cannot be recovered.
        #[schemars(range(max = 3_153_600_000_000_u64))]
        pub stream_max_age_ms: u64 => Engines,
        /// Most bytes of all messages in JetStream; beyond it the oldest are removed. 0: the limit of the
        /// servers.
        pub stream_bytes_max: u64 => Engines,
        /// Most messages of one channel in JetStream; at least `history_size` of each of its namespaces.
        #[schemars(range(min = 1))]
        pub stream_channel_messages_max: u32 => Engines,
        /// How long JetStream remembers idempotency keys, independent of their publications.
        #[schemars(range(min = 100, max = 86_400_000))]
        pub stream_idempotency_ms: u64 => Engines,
        /// With `type = "disk"`: the directory, for this engine alone. Not set: `history/NAME` in the directory of `--state`. It is
        /// opened when the server starts: after adding an engine on a disk, or changing one, restart. See
        /// `docs/operating/durability.md`.
        pub directory: Option<Arc<str>> => NextStart,
        /// With `type = "disk"`: what a publication survives before it is acknowledged and delivered.
        pub durability: EngineDurability => NextStart,
        /// With `type = "disk"`: bytes of a file, which is removed as a whole when all messages in it have expired.
        #[schemars(range(min = 1_048_576, max = 1_073_741_824))]
        pub segment_bytes_max: u32 => NextStart,
        /// With `type = "disk"`: most bytes of all files.
        #[schemars(range(min = 4_194_304))]
        pub bytes_max: u64 => NextStart,
        /// With `type = "disk"`: what happens at `bytes_max`.
        pub when_full: EngineWhenFull => NextStart,
        /// With `type = "disk"` and `durability = "written"`: how often publications are synced that nobody waits for.
        #[schemars(range(min = 1, max = 60_000))]
        pub sync_interval_ms: u64 => NextStart,
    }
}

/// Messages of an engine in which the cursors of a user in a channel are kept.
const ACK_RECORDS: u32 = 8;

impl Default for Engine {
    fn default() -> Engine {
        Engine {
            kind: EngineKind::Redis,
            topology: EngineTopology::Servers,
            addresses: ["127.0.0.1:6379".to_owned()].into(),
            sentinel_primaries: Arc::default(),
            sentinel_user: None,
            sentinel_password: None,
            cluster_partitions_max: 128,
            user: None,
            password: None,
            tls: false,
            ca: None,
            database: 0,
            prefix: "dunlin".into(),
            layout: EngineLayout::Dunlin,
            timeout_ms: 2_000,
            connect_timeout_ms: 1_000,
            position_check_ms: 5_000,
            wait_replicas: 0,
            wait_timeout_ms: 500,
            read_from: EngineReadFrom::Primary,
            queue_bytes_max: 64 << 20,
            held_bytes_max: 16 << 20,
            token: None,
            nkey_seed: None,
            nkey_seed_file: None,
            credentials: None,
            credentials_file: None,
            tls_handshake_first: false,
            tls_client_cert: None,
            tls_client_key: None,
            wildcards_max: 10_000,
            raw: false,
            raw_prefix: Arc::default(),
            raw_separator: ":".into(),
            jetstream: true,
            stream_replicas: 1,
            stream_in_memory: false,
            stream_max_age_ms: 7 * 24 * 60 * 60 * 1000,
            stream_bytes_max: 0,
            stream_channel_messages_max: 1_000,
            stream_idempotency_ms: 5 * 60 * 1000,
            directory: None,
            durability: EngineDurability::Synced,
            segment_bytes_max: 64 << 20,
            bytes_max: 10 << 30,
            when_full: EngineWhenFull::Refuse,
            sync_interval_ms: 100,
        }
    }
}

/// The longest prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// Each worker has a connection to each address.
const ADDRESSES_MAX: usize = 1_024;

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Engine, D::Error> {
        let mut engine = Engine::deserialize(deserializer)?;
        engine.read_urls();
        Ok(engine)
    }
}

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Engine::serialize(self, serializer)
    }
}

impl Engine {
    /// Replaces URLs among the addresses by host and port, and sets what else they say. If that contradicts other keys they stay
    /// as they are, and [`Engine::validate`] refuses them.
    fn read_urls(&mut self) {
        if self.kind != EngineKind::Redis || !self.addresses.iter().any(|of| RedisUrl::is_url(of)) {
            return;
        }
        let Ok(url) = RedisUrl::of_all(&self.addresses) else { return };
        let default = Engine::default();
        let secret = |text: &Option<String>| text.as_deref().map(Secret::new);
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        let primaries: Arc<[String]> = url.sentinel_primary.iter().cloned().collect();
        let fits = (self.topology == default.topology || self.topology == url.topology)
            && (self.user.is_none() || url.user.is_none())
            && (self.password.is_none() || url.password.is_none())
            && (self.sentinel_user.is_none() || url.sentinel_user.is_none())
            && (self.sentinel_password.is_none() || url.sentinel_password.is_none())
            && (self.sentinel_primaries.is_empty() || primaries.is_empty())
            && (self.database == default.database || url.database.is_none());
        if !fits {
            return;
        }
        self.topology = url.topology;
        self.addresses = url.addresses.into();
        self.tls |= url.tls;
        self.user = self.user.take().or_else(|| text(&url.user));
        self.password = self.password.take().or_else(|| secret(&url.password));
        self.sentinel_user = self.sentinel_user.take().or_else(|| text(&url.sentinel_user));
        self.sentinel_password =
            self.sentinel_password.take().or_else(|| secret(&url.sentinel_password));
        self.database = url.database.unwrap_or(self.database);
        if !primaries.is_empty() {
            self.sentinel_primaries = primaries;
        }
        self.connect_timeout_ms = url.connect_timeout_ms.unwrap_or(self.connect_timeout_ms);
        self.timeout_ms = url.timeout_ms.unwrap_or(self.timeout_ms);
    }

    /// Returns why an address is none.
    fn wrong_address(
        &self,
        address: &str,
        is_address: impl Fn(&str) -> Option<&'static str>,
    ) -> Option<(&'static str, &'static str)> {
        if let Some(path) = address.strip_prefix("unix:").filter(|path| !path.starts_with("//")) {
            let is_single =
                self.kind == EngineKind::Redis && self.topology == EngineTopology::Servers;
            return match () {
                () if !is_single => Some(("it is a socket on this machine", "write host and port")),
                () if self.tls => Some(("a socket has no TLS", "set `tls = false`")),
                () if !path.starts_with('/') => {
                    Some(("its path is not absolute", "write \"unix:/run/redis.sock\""))
                }
                () => None,
            };
        }
        if self.kind == EngineKind::Redis && RedisUrl::is_url(address) {
            let fix = "write host and port here, as in \"10.0.0.7:6379\", and the rest in `user`, `password`, `database`, `tls` and `topology`";
            return Some((
                "it is a URL that cannot be read, or that contradicts other keys of the engine",
                fix,
            ));
        }
        Some((is_address(address)?, "write host and port, as in \"10.0.0.7:6379\""))
    }

    /// Returns whether both settings address the same store, so that channels and connections can be kept.
    pub fn is_same_place(&self, other: &Engine) -> bool {
        let bounds = |of: &Engine| Engine {
            timeout_ms: 0,
            position_check_ms: 0,
            held_bytes_max: 0,
            wait_replicas: 0,
            wait_timeout_ms: 0,
            read_from: EngineReadFrom::Primary,
            wildcards_max: 0,
            ..of.clone()
        };
        bounds(self) == bounds(other)
    }

    pub(crate) fn validate(
        &self,
        path: &Path,
        is_address: impl Fn(&str) -> Option<&'static str>,
        errors: &mut ConfigErrors,
    ) {
        let mut add = |path: Path, message: &str, fix: &str| errors.add(path, message, fix);
        self.validate_disk(path, &mut add);
        if self.kind == EngineKind::Disk {
            return;
        }
        let addresses = path.join("addresses");
        if self.addresses.is_empty() || self.addresses.len() > ADDRESSES_MAX {
            add(addresses.clone(), "there is no server", "name 1 to 1,024 of them");
        }
        for (index, address) in self.addresses.iter().enumerate() {
            if let Some((wrong, fix)) = self.wrong_address(address, &is_address) {
                add(addresses.join(index), wrong, fix);
            }
            if self.addresses[..index].contains(address) {
                add(addresses.join(index), "it is there twice", "remove one");
            }
        }
        for (user, key, secret, password) in [
            (&self.user, "user", &self.password, "password"),
            (&self.sentinel_user, "sentinel_user", &self.sentinel_password, "sentinel_password"),
        ] {
            if user.is_some() && secret.is_none() {
                let fix = format!("set `{password}`, or remove it");
                add(path.join(key), "it has no password", &fix);
            }
        }
        if self.wait_replicas > 0 && self.wait_timeout_ms > self.timeout_ms / 2 {
            let message = "the replicas have more than half of the time that the server has";
            let fix = "lower it, or raise `timeout_ms`";
            add(path.join("wait_timeout_ms"), message, fix);
        }
        self.validate_kind(path, &mut add);
        self.validate_client_certificate(path, &mut add);
        let is_sentinel = self.topology == EngineTopology::Sentinel;
        if is_sentinel == self.sentinel_primaries.is_empty() {
            let (message, fix) = match is_sentinel {
                true => ("no primary is named", "name what the Sentinels watch: [\"mymaster\"]"),
                false => {
                    ("nobody is asked for them", "set `topology = \"sentinel\"`, or remove it")
                }
            };
            add(path.join("sentinel_primaries"), message, fix);
        }
        if !is_sentinel && self.sentinel_password.is_some() {
            let fix = "set `topology = \"sentinel\"`, or remove it";
            add(path.join("sentinel_password"), "there is no Sentinel", fix);
        }
        if self.topology == EngineTopology::Cluster && self.database != 0 {
            add(path.join("database"), "a cluster has no databases", "remove it");
        }
        if !self.prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "it has blanks or characters beyond ASCII";
            add(path.join("prefix"), message, "leave them out");
        }
        // A brace would determine the slot of a key in a Redis Cluster.
        if self.prefix.is_empty()
            || self.prefix.len() > PREFIX_BYTES_MAX
            || self.prefix.contains(['{', '}'])
        {
            let fix = "write 1 to 64 characters without braces";
            add(path.join("prefix"), "it is no prefix", fix);
        }
        if let Some(ca) = &self.ca {
            if !self.tls {
                let fix = "set `tls = true`, or remove it";
                add(path.join("ca"), "the servers are not spoken to by TLS", fix);
            } else if !ca.contains("-----BEGIN CERTIFICATE-----") {
                let fix = "set it to the text of the .pem file";
                add(path.join("ca"), "there is no certificate in PEM in it", fix);
            }
        }
    }

    /// Checks what belongs to an engine on a disk, or to none.
    fn validate_disk(&self, path: &Path, add: &mut impl FnMut(Path, &str, &str)) {
        let default = Engine::default();
        let disk = Engine {
            kind: self.kind,
            directory: self.directory.clone(),
            durability: self.durability,
            segment_bytes_max: self.segment_bytes_max,
            bytes_max: self.bytes_max,
            when_full: self.when_full,
            sync_interval_ms: self.sync_interval_ms,
            timeout_ms: self.timeout_ms,
            ..default.clone()
        };
        if self.kind != EngineKind::Disk {
            for (key, is_set) in [
                ("directory", self.directory.is_some()),
                ("durability", self.durability != default.durability),
                ("segment_bytes_max", self.segment_bytes_max != default.segment_bytes_max),
                ("bytes_max", self.bytes_max != default.bytes_max),
                ("when_full", self.when_full != default.when_full),
                ("sync_interval_ms", self.sync_interval_ms != default.sync_interval_ms),
            ] {
                if is_set {
                    let fix = "remove it, or set `type = \"disk\"`";
                    add(path.join(key), "it is for an engine on a disk alone", fix);
                }
            }
            return;
        }
        if *self != disk {
            let message = "an engine on a disk has neither servers nor a login";
            let fix = "leave `type`, `directory`, `durability`, `segment_bytes_max`, `bytes_max`, `when_full`, `sync_interval_ms` and `timeout_ms`, and remove the rest";
            add(path.join("type"), message, fix);
        }
        if self.bytes_max < 4 * u64::from(self.segment_bytes_max) {
            let fix = "raise it, or lower `segment_bytes_max`";
            add(path.join("bytes_max"), "it has no room for four segments", fix);
        }
        if self.directory.as_ref().is_some_and(|path| !path.starts_with('/')) {
            let fix = "write it with all directories above it, as in \"/var/lib/dunlin/history\"";
            add(path.join("directory"), "it is not absolute", fix);
        }
    }

    /// Checks that the settings match the kind of the engine.
    fn validate_kind(&self, path: &Path, add: &mut impl FnMut(Path, &str, &str)) {
        let default = Engine::default();
        if self.kind == EngineKind::Redis {
            let logins = self.nats_logins();
            for (key, _) in logins.into_iter().filter(|(_, is_set)| *is_set) {
                add(path.join(key), "Redis has none", "set `password`, or `type = \"nats\"`");
            }
            for (key, is_set) in [
                ("tls_handshake_first", self.tls_handshake_first),
                ("raw", self.raw),
                ("raw_prefix", self.raw_prefix != default.raw_prefix),
                ("raw_separator", self.raw_separator != default.raw_separator),
            ] {
                if is_set {
                    add(
                        path.join(key),
                        "it is for NATS alone",
                        "remove it, or set `type = \"nats\"`",
                    );
                }
            }
            if self.layout == EngineLayout::Centrifugo && self.prefix == default.prefix {
                let fix = "write what `engine.redis.prefix` of Centrifugo says: \"centrifugo\" if it is not set";
                add(path.join("prefix"), "nodes of Centrifugo have another", fix);
            }
            if self.layout == EngineLayout::Centrifugo && self.read_from != default.read_from {
                let message = "a replica in Centrifugo's layout does not say which data it has";
                add(path.join("read_from"), message, "remove it until the fleet has moved");
            }
            return;
        }
        if self.topology != default.topology {
            let fix = "name servers of one cluster in `addresses`, and remove it";
            add(path.join("topology"), "NATS has none", fix);
        }
        if self.layout != default.layout {
            let fix = "remove it: nodes of Centrifugo and of Dunlin share channels in Redis alone";
            add(path.join("layout"), "NATS has none", fix);
        }
        if self.wait_replicas > 0 {
            let fix = "set `stream_replicas`, and remove it";
            add(path.join("wait_replicas"), "NATS answers once its servers have it", fix);
        }
        if self.read_from != default.read_from {
            let fix = "remove it: each server of NATS answers reads of what it has";
            add(path.join("read_from"), "it is for Redis alone", fix);
        }
        if self.database != default.database {
            add(path.join("database"), "NATS has none", "remove it, or set another `prefix`");
        }
        if self.addresses == default.addresses {
            let fix = "name servers of NATS: [\"10.0.0.7:4222\"]";
            add(path.join("addresses"), "it is where Redis listens", fix);
        }
        let logins = [("user", self.user.is_some())].into_iter().chain(self.nats_logins());
        let logins: Vec<&str> = logins.filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect();
        if let [first, other, ..] = logins[..] {
            let message = format!("there is `{first}`, too");
            add(path.join(other), &message, "set one of them");
        }
        if self.tls_handshake_first && !self.tls {
            let message = "the servers are not spoken to by TLS";
            add(path.join("tls_handshake_first"), message, "set `tls = true`, or remove it");
        }
        self.validate_raw(path, add);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !self.prefix.bytes().all(is_plain) {
            let fix = "write letters, digits, `_` and `-`";
            add(path.join("prefix"), "a stream of NATS cannot be called so", fix);
        }
    }

    fn validate_raw(&self, path: &Path, add: &mut impl FnMut(Path, &str, &str)) {
        let is_token = |token: &str| {
            let mut bytes = token.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
                && !token.is_empty()
        };
        let is_prefix = self.raw_prefix.is_empty()
            || self.raw_prefix.len() <= PREFIX_BYTES_MAX
                && !self.raw_prefix.starts_with('_')
                && self.raw_prefix.strip_suffix('.').is_some_and(|of| of.split('.').all(is_token));
        if !is_prefix {
            let fix =
                "write letters, digits, `_` and `-` between dots, and a dot at the end: \"app.\"";
            add(path.join("raw_prefix"), "subjects of channels cannot begin so", fix);
        }
        if !matches!(&*self.raw_separator, ":" | ".") {
            add(path.join("raw_separator"), "it is neither `:` nor `.`", "write one of them");
        }
        for (key, is_set) in [
            ("raw_prefix", !self.raw_prefix.is_empty()),
            ("raw_separator", &*self.raw_separator != ":"),
        ] {
            if is_set && !self.raw {
                add(path.join(key), "the engine is not raw", "set `raw = true`, or remove it");
            }
        }
    }

    /// Returns the login settings that only NATS has, and whether each is set.
    fn nats_logins(&self) -> [(&'static str, bool); 5] {
        [
            ("token", self.token.is_some()),
            ("nkey_seed", self.nkey_seed.is_some()),
            ("nkey_seed_file", self.nkey_seed_file.is_some()),
            ("credentials", self.credentials.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
        ]
    }

    fn validate_client_certificate(&self, path: &Path, add: &mut impl FnMut(Path, &str, &str)) {
        let (certificate, key) = (&self.tls_client_cert, &self.tls_client_key);
        for (name, is_set) in
            [("tls_client_cert", certificate.is_some()), ("tls_client_key", key.is_some())]
        {
            if is_set && !self.tls {
                let message = "the servers are not spoken to by TLS";
                add(path.join(name), message, "set `tls = true`, or remove it");
            }
        }
        for (name, missing, is_there) in [
            ("tls_client_cert", "tls_client_key", certificate.is_some() && key.is_none()),
            ("tls_client_key", "tls_client_cert", key.is_some() && certificate.is_none()),
        ] {
            if is_there {
                let (message, fix) =
                    (format!("there is no `{missing}`"), format!("set `{missing}`, or remove it"));
                add(path.join(name), &message, &fix);
            }
        }
    }

    /// Checks a namespace that uses this engine: the engine can store what the namespace keeps.
    pub(crate) fn validate_namespace(
        &self,
        path: &Path,
        options: &ChannelOptions,
        errors: &mut ConfigErrors,
    ) {
        if self.kind == EngineKind::Nats && self.raw {
            for (key, is_set) in [
                ("history_size", options.history_size > 0),
                ("recover", options.recover),
                ("positioned", options.positioned),
                ("presence", options.presence),
                ("join_leave", options.join_leave),
                ("allowed_delta_types", !options.allowed_delta_types.is_empty()),
                ("delta_publish", options.delta_publish),
                ("allow_tags_filter", options.allow_tags_filter),
            ] {
                if is_set {
                    let fix = "remove it, or name an engine that is not raw";
                    errors.add(path.join(key), "its engine is raw and carries payloads alone", fix);
                }
            }
            return;
        }
        let acks = options.ack != Ack::Off;
        if acks && self.layout == EngineLayout::Centrifugo {
            let fix = "leave it out, or name an engine of Dunlin's layout";
            errors.add(path.join("ack"), "Centrifugo has no cursors beside its channels", fix);
        }
        if self.kind != EngineKind::Nats || !options.has_history() {
            return;
        }
        if acks && self.stream_channel_messages_max < ACK_RECORDS {
            let message = format!("a cursor is {ACK_RECORDS} messages in its engine");
            let fix = "raise `stream_channel_messages_max` of the engine";
            errors.add(path.join("ack"), message, fix);
        }
        if !self.jetstream {
            let fix = "set `jetstream = true` of the engine, or keep nothing";
            errors.add(path.join("history_size"), "its engine keeps no histories", fix);
        }
        let messages_max = self.stream_channel_messages_max;
        if options.history_size > messages_max {
            let message = format!("its engine keeps {messages_max} messages of a channel");
            let fix = "raise `stream_channel_messages_max` of the engine, or keep less";
            errors.add(path.join("history_size"), message, fix);
        }
        let max_age_ms = self.stream_max_age_ms;
        if max_age_ms > 0 && options.history_ttl_ms > max_age_ms {
            let message = format!("its engine keeps messages for {max_age_ms} ms");
            let fix = "raise `stream_max_age_ms` of the engine, or keep them for less";
            errors.add(path.join("history_ttl_ms"), message, fix);
        }
    }
}
