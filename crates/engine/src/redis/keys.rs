//! Names of keys and channels, and where they live.
//!
//! | key | what it is |
//! |---|---|
//! | `PREFIX:c:CHANNEL` | list of a stream's messages, oldest first; also the channel of publish/subscribe |
//! | `PREFIX:m:CHANNEL` | hash of a stream's state: `:c` its epoch, that epoch its top offset, `:g` the generation in which the epoch began, `:p` positions of the epochs before that mean the same, `:v` and `:w` version and epoch of the version published last |
//! | `PREFIX:i:LENGTH:CHANNEL:KEY` | position of the publication with an idempotency key; the channel's length in bytes |
//! | `PREFIX:g` | generation of the server's data: process and replication history in which it began, and a number |
//! | `PREFIX:probe:ID` | channel of one connection's messages to itself |
//!
//! Messages begin with their version. The other records are of version 1 and do not say so: a record of a later version gets another
//! name, so that nodes of both versions do not take each other's for their own.
//!
//! `PREFIX` has `@DATABASE` behind it if the database is not 0, and in a cluster `{TAG}`, which says the slot.
//!
//! In Centrifugo's layout the names are Centrifugo's, see [`centrifugo`](super::centrifugo).

use super::config::{Layout, RedisConfig, Topology};

/// Slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// What all of them begin with.
    base: String,
    /// Of each partition, what its keys begin with, up to the first colon.
    prefixes: Vec<String>,
    /// Of each partition in a cluster.
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

    /// Names of Centrifugo's layout, of partitions that are servers of their own or tags of a cluster. It has no place for
    /// the database: publish/subscribe of all databases is one.
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

    /// Of partitions that are servers of their own.
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

    /// Of partitions of a cluster, whose slots are as far from each other as they can be.
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
            // The first that falls into the partition's part of the slots is its tag.
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

    /// Where a channel lives.
    pub(crate) fn partition(&self, channel: &str) -> usize {
        match self.prefixes.len() {
            1 => 0,
            partitions => jump(fnv(channel.as_bytes()), partitions as u32) as usize,
        }
    }

    /// The name of the channel of publish/subscribe; in Dunlin's layout that of the list, too.
    pub(crate) fn list(&self, partition: usize, channel: &str) -> Vec<u8> {
        match self.layout {
            Layout::Dunlin => self.key(partition, "c", channel),
            Layout::Centrifugo => self.centrifugo(partition, "client", channel),
        }
    }

    /// Where a stream's entries are in Centrifugo's layout.
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

    /// The channel of publish/subscribe in which nodes of Dunlin are notified whose publications were removed, where Centrifugo's
    /// layout has no message for that. It is not sharded.
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

    /// Where in the names of a partition's keys the letter is that says what they are.
    pub(crate) fn kind_at(&self, partition: usize) -> usize {
        self.prefixes[partition].len() + 1
    }

    /// The channel whose list has this name, if it is one of ours.
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

/// The slot of a hash tag: CRC16 (XMODEM) of it.
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

/// FNV-1a, 64 bits: the same on every machine and in every version.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Jump consistent hashing (Lamping and Veach, 2014): of one server more, only its share of the channels moves.
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
