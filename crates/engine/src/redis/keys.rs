//! Names of keys and channels, and their partitions.
//!
//! | key | what it is |
//! |---|---|
//! | `PREFIX:c:CHANNEL` | list of a stream's messages, oldest first; also the channel of publish/subscribe |
//! | `PREFIX:m:CHANNEL` | hash of a stream's state: `:c` its epoch, that epoch its top offset, `:g` the generation in which the epoch began, `:p` equivalent positions of earlier epochs, `:v` and `:w` version and epoch of the last publication with a version |
//! | `PREFIX:i:LENGTH:CHANNEL:KEY` | position of the publication with an idempotency key; the channel's length in bytes |
//! | `PREFIX:g` | generation of the server's data: process and replication history in which it began, and a number |
//! | `PREFIX:probe:ID` | channel of one connection's messages to itself |
//!
//! Messages begin with their version. The other records have version 1 without a mark: a later version gets another name, so
//! that nodes of different versions do not confuse them.
//!
//! `PREFIX` is followed by `@DATABASE` if the database is not 0, and in a cluster by `{TAG}`, which determines the slot.
//!
//! In Centrifugo's layout the names are Centrifugo's, see [`centrifugo`](super::centrifugo).

use super::config::{Layout, RedisConfig, Topology};

/// The number of slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The prefix of all names.
    base: String,
    /// The prefix of each partition's keys, up to the first colon.
    prefixes: Vec<String>,
    /// The slot of each partition in a cluster.
    slots: Vec<u16>,
    sharded: bool,
    layout: Layout,
}

impl Keys {
    pub(crate) fn new(config: &RedisConfig) -> Keys {
        let (servers, cluster) = match &config.topology {
            Topology::Servers(servers) => (servers.len(), None),
            Topology::Sentinel { primaries, .. } => (primaries.len(), None),
            Topology::Cluster { partitions, .. } => (0, Some(*partitions)),
        };
        match (config.layout, cluster) {
            (Layout::Centrifugo, _) => Keys::of_centrifugo(&config.prefix, servers, cluster),
            (Layout::Dunlin, None) => Keys::of_servers(&config.prefix, config.database, servers),
            (Layout::Dunlin, Some(partitions)) => Keys::of_cluster(&config.prefix, partitions),
        }
    }

    /// Creates the names of Centrifugo's layout for partitions that are independent servers or tags of a cluster. The names
    /// omit the database: publish/subscribe is shared by all databases.
    pub(crate) fn of_centrifugo(prefix: &str, servers: usize, cluster: Option<u16>) -> Keys {
        let base = prefix.to_owned();
        let layout = Layout::Centrifugo;
        match cluster {
            None => {
                let prefixes = vec![String::new(); servers.max(1)];
                Keys { base, prefixes, slots: Vec::new(), sharded: false, layout }
            }
            Some(partitions) => {
                let numbers = 0..partitions.clamp(1, SLOTS);
                let slots = numbers.clone().map(|number| slot_of(number.to_string().as_bytes()));
                let slots = slots.collect();
                let prefixes = numbers.map(|number| format!("{{{number}}}.")).collect();
                Keys { base, prefixes, slots, sharded: true, layout }
            }
        }
    }

    /// Creates the names for partitions that are independent servers.
    pub(crate) fn of_servers(prefix: &str, database: u32, servers: usize) -> Keys {
        let prefix = match database {
            0 => prefix.to_owned(),
            database => format!("{prefix}@{database}"),
        };
        Keys {
            prefixes: vec![prefix.clone(); servers.max(1)],
            base: prefix,
            slots: Vec::new(),
            sharded: false,
            layout: Layout::Dunlin,
        }
    }

    /// Creates the names for partitions of a cluster, whose slots are spread as evenly as possible.
    pub(crate) fn of_cluster(prefix: &str, partitions: u16) -> Keys {
        let partitions = partitions.clamp(1, SLOTS);
        let width = SLOTS / partitions;
        let mut slots = vec![SLOTS; usize::from(partitions)];
        let mut prefixes = vec![String::new(); usize::from(partitions)];
        let mut left = usize::from(partitions);
        for number in 0u32.. {
            if left == 0 {
                break;
            }
            let tag = number.to_string();
            let slot = slot_of(tag.as_bytes());
            let partition = usize::from(slot / width);
            // The first tag whose slot is in the partition's range is used.
            if partition < prefixes.len() && prefixes[partition].is_empty() {
                prefixes[partition] = format!("{prefix}{{{tag}}}");
                slots[partition] = slot;
                left -= 1;
            }
        }
        let layout = Layout::Dunlin;
        Keys { base: prefix.to_owned(), prefixes, slots, sharded: true, layout }
    }

    pub(crate) fn partitions(&self) -> usize {
        self.prefixes.len()
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded
    }

    pub(crate) fn slot(&self, partition: usize) -> Option<u16> {
        self.slots.get(partition).copied()
    }

    /// Returns the partition of a channel.
    pub(crate) fn partition(&self, channel: &str) -> usize {
        match self.prefixes.len() {
            1 => 0,
            partitions => jump(fnv(channel.as_bytes()), partitions as u32) as usize,
        }
    }

    /// Returns the name of the publish/subscribe channel; in Dunlin's layout also that of the list.
    pub(crate) fn list(&self, partition: usize, channel: &str) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => self.key(partition, "c", channel),
            Layout::Centrifugo => self.centrifugo(partition, "client", channel),
        }
    }

    /// Returns the key of a stream's entries in Centrifugo's layout.
    pub(crate) fn stream(&self, partition: usize, channel: &str) -> Vec<u8> {
        self.centrifugo(partition, "stream", channel)
    }

    pub(crate) fn state(&self, partition: usize, channel: &str) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => self.key(partition, "m", channel),
            Layout::Centrifugo => self.centrifugo(partition, "stream.meta", channel),
        }
    }

    pub(crate) fn idempotency(&self, partition: usize, channel: &str, key: &str) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => {
                let prefix = &self.prefixes[partition];
                format!("{prefix}:i:{}:{channel}:{key}", channel.len()).into_bytes()
            }
            Layout::Centrifugo => self.centrifugo(partition, "result", &format!("{channel}.{key}")),
        }
    }

    pub(crate) fn generation(&self, partition: usize) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => format!("{}:g", self.prefixes[partition]).into_bytes(),
            Layout::Centrifugo => self.centrifugo(partition, "dunlin", "generation"),
        }
    }

    pub(crate) fn probe(&self, partition: usize, id: u64) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => format!("{}:probe:{id:x}", self.prefixes[partition]).into_bytes(),
            Layout::Centrifugo => self.centrifugo(partition, "dunlin.probe", &format!("{id:x}")),
        }
    }

    /// Returns the publish/subscribe channel that notifies Dunlin's nodes of removed publications, for which Centrifugo's
    /// layout has no message. It is not sharded.
    pub(crate) fn removals(&self) -> Option<Vec<u8>> {
        (self.layout == Layout::Centrifugo)
            .then(|| format!("{}.dunlin.removed", self.base).into_bytes())
    }

    fn centrifugo(&self, partition: usize, kind: &str, name: &str) -> Vec<u8> {
        format!("{}.{kind}.{}{name}", self.base, self.prefixes[partition]).into_bytes()
    }

    fn key(&self, partition: usize, kind: &str, channel: &str) -> Vec<u8> {
        let prefix = &self.prefixes[partition];
        let mut key = Vec::with_capacity(prefix.len() + 3 + channel.len());
        key.extend_from_slice(prefix.as_bytes());
        key.push(b':');
        key.extend_from_slice(kind.as_bytes());
        key.push(b':');
        key.extend_from_slice(channel.as_bytes());
        key
    }

    /// Returns the index of the letter in a partition's key names that gives the kind of key.
    pub(crate) fn kind_at(&self, partition: usize) -> usize {
        self.prefixes[partition].len() + 1
    }

    /// Returns the channel whose list has this name, if it belongs to this engine.
    pub(crate) fn channel<'a>(&self, list: &'a [u8]) -> Option<&'a str> {
        let rest = str::from_utf8(list).ok()?.strip_prefix(self.base.as_str())?;
        if self.layout == Layout::Centrifugo {
            let rest = rest.strip_prefix(".client.")?;
            return match self.sharded {
                false => Some(rest),
                true => Some(rest.strip_prefix('{')?.split_once("}.")?.1),
            };
        }
        let rest = match self.sharded {
            false => rest,
            true => rest.strip_prefix('{')?.split_once('}')?.1,
        };
        rest.strip_prefix(":c:")
    }
}

/// Returns the slot of a hash tag: its CRC16 (XMODEM).
fn slot_of(tag: &[u8]) -> u16 {
    let mut crc = 0u16;
    for &byte in tag {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % SLOTS
}

/// Hashes with FNV-1a, 64 bits: stable across machines and versions.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Jump consistent hashing (Lamping and Veach, 2014): adding a server moves only its share of the channels.
fn jump(mut key: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (0i64, 0i64);
    while next < i64::from(buckets) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    bucket as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_of_a_cluster_are_spread_over_its_slots() {
        for partitions in [1, 3, 128, 1000] {
            let keys = Keys::of_cluster("p", partitions);
            let width = SLOTS / partitions;
            for partition in 0..keys.partitions() {
                let slot = keys.slot(partition).expect("of a cluster");
                assert_eq!(usize::from(slot / width), partition, "{partitions}");
                let list = keys.list(partition, "a:c:b");
                let tag = str::from_utf8(&list).expect("text").split(['{', '}']).nth(1);
                assert_eq!(slot_of(tag.expect("a tag").as_bytes()), slot);
                assert_eq!(keys.channel(&list), Some("a:c:b"));
            }
        }
        // The example of the cluster's specification.
        assert_eq!(slot_of(b"123456789"), 0x31c3);
    }

    /// Names as a server of Centrifugo 6 was seen to write them.
    #[test]
    fn the_names_of_centrifugos_layout_are_those_of_centrifugo() {
        let keys = Keys::of_centrifugo("centrifugo", 1, None);
        assert_eq!(keys.list(0, "chat:a"), b"centrifugo.client.chat:a");
        assert_eq!(keys.stream(0, "chat:a"), b"centrifugo.stream.chat:a");
        assert_eq!(keys.state(0, "chat:a"), b"centrifugo.stream.meta.chat:a");
        assert_eq!(keys.idempotency(0, "chat:a", "k"), b"centrifugo.result.chat:a.k");
        assert_eq!(keys.channel(b"centrifugo.client.chat:a"), Some("chat:a"));
        assert_eq!(keys.channel(b"centrifugo.stream.chat:a"), None);
        let keys = Keys::of_centrifugo("c", 0, Some(128));
        let partition = keys.partition("a.b");
        let tag = format!("{{{partition}}}");
        assert_eq!(keys.list(partition, "a.b"), format!("c.client.{tag}.a.b").into_bytes());
        assert_eq!(keys.channel(&keys.list(partition, "a.b")), Some("a.b"));
        assert_eq!(keys.slot(partition), Some(slot_of(partition.to_string().as_bytes())));
    }

    #[test]
    fn a_channel_moves_only_to_a_server_that_is_new() {
        let (three, four) = (Keys::of_servers("p", 2, 3), Keys::of_servers("p", 2, 4));
        let mut moved = 0;
        for number in 0..1000 {
            let channel = format!("channel{number}");
            let (before, after) = (three.partition(&channel), four.partition(&channel));
            assert!(before == after || after == 3);
            moved += usize::from(before != after);
        }
        assert!((150..350).contains(&moved), "{moved}");
        assert_eq!(three.list(0, "x"), b"p@2:c:x");
        assert_eq!(three.channel(b"p@2:c:x"), Some("x"));
        assert_eq!(three.channel(b"p:c:x"), None, "another database's");
        assert_eq!(jump(fnv(b"a"), 1), 0);
    }
}
