//! Slot migrations of a cluster, held open half-way: only channels whose keys have moved wait, and nothing is lost or stored
//! twice.

use std::collections::BTreeMap;

use dunlin_engine::redis::RedisConfig;
use dunlin_engine::{EngineEvent, EngineRequest};
use dunlin_hub::{Error, HistoryFilter, NewPublication, Published};

use crate::nodes::{Fleet, KEPT, data_of, heard};
use crate::servers::{Deployment, RedisServer};

/// One slot of a two-node cluster that is migrated between them.
struct Move<'a> {
    from: &'a RedisServer,
    to: &'a RedisServer,
    slot: String,
    /// The prefix of the slot's keys.
    prefix: String,
    /// Channels of the slot with one publication each.
    channels: Vec<String>,
}

impl<'a> Move<'a> {
    /// Finds a slot with several channels.
    fn new(deployment: &'a Deployment, fleet: &mut Fleet) -> Move<'a> {
        let [one, two] = &deployment.servers[..] else { panic!("two servers") };
        let mut slots: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for number in 0..100 {
            fleet.publish(1, &format!("channel{number}"), "1");
        }
        for key in one.cli(&["KEYS", "*:c:*"]).lines() {
            let (prefix, channel) = key.split_once(":c:").unwrap();
            slots.entry(prefix.to_owned()).or_default().push(channel.to_owned());
        }
        let (prefix, channels) =
            slots.into_iter().max_by_key(|(_, channels)| channels.len()).unwrap();
        let slot = one.cli(&["CLUSTER", "KEYSLOT", &prefix]);
        Move { from: one, to: two, slot, prefix, channels }
    }

    fn begin(&self) {
        let (from_id, to_id) =
            (self.from.cli(&["CLUSTER", "MYID"]), self.to.cli(&["CLUSTER", "MYID"]));
        let slot = &self.slot;
        assert_eq!(self.to.cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]), "OK");
        assert_eq!(self.from.cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]), "OK");
    }

    fn key(&self, kind: &str, channel: &str) -> String {
        format!("{}:{kind}:{channel}", self.prefix)
    }

    fn migrate(&self, keys: &[&str]) {
        let port = self.to.port.to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys);
        assert_eq!(self.from.cli(&migrate), "OK");
    }

    fn migrate_channel(&self, channel: &str) {
        self.migrate(&[&self.key("c", channel), &self.key("m", channel)]);
    }

    /// Migrates the remaining keys of the slot.
    fn migrate_rest(&self) {
        let keys = self.from.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        self.migrate(&keys.lines().collect::<Vec<_>>());
    }

    fn finish(&self) {
        let to_id = self.to.cli(&["CLUSTER", "MYID"]);
        for server in [self.to, self.from] {
            let said = server.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &to_id]);
            assert_eq!(said, "OK");
        }
    }
}

fn keyed(data: &str, key: &str) -> NewPublication {
    NewPublication { idempotency_key: Some(key.into()), ..data_of(data) }
}

fn stored(fleet: &mut Fleet, channel: &str) -> Vec<(u64, String)> {
    let history = fleet.history(1, channel, HistoryFilter::default()).unwrap();
    let publications = history.publications.iter();
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    publications.map(|of| (of.offset(), text(of.data()))).collect()
}

fn numbered(data: &[&str]) -> Vec<(u64, String)> {
    data.iter().zip(1..).map(|(data, offset)| (offset, (*data).to_owned())).collect()
}

/// Returns the conditions of a node's connections whose slots are migrated.
fn conditions(fleet: &Fleet, node: usize) -> Vec<&'static str> {
    fleet.nodes.0[node].engine.shards().map(|shard| shard.condition().name).collect()
}

/// Regression: one moved key deferred the whole partition for as long as the slot moved.
#[test]
fn a_slot_that_moves_puts_off_those_channels_alone_whose_keys_have_moved() {
    let deployment = Deployment::cluster(2);
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let slot = Move::new(&deployment, &mut fleet);
    let [moved, half, stays, ..] = &slot.channels[..] else { panic!("{:?}", slot.channels) };
    for channel in [moved, half, stays] {
        fleet.subscribe(0, channel, KEPT);
    }
    slot.begin();
    slot.migrate_channel(moved);
    slot.migrate(&[&slot.key("m", half)]);

    // A channel waits for its second key; other channels of the slot do not.
    let waits = fleet.send(1, half, KEPT, data_of("too late"));
    let first = fleet.send(1, moved, KEPT, data_of("2"));
    let second = fleet.send(1, stays, KEPT, data_of("2"));
    assert_eq!(fleet.published(1, second).map(offset), Ok(2));
    assert_eq!(fleet.published(1, first).map(offset), Ok(2));
    assert_eq!(fleet.published(1, waits), Err(Error::EngineUnavailable), "it was not stored");
    assert!(conditions(&fleet, 1).contains(&"slot_moving"), "{:?}", conditions(&fleet, 1));
    assert!(fleet.nodes.0.iter().all(|node| node.engine.is_ready()));

    // A burst stays in order, even after an operation with an idempotency key, which may be at either node.
    let mut burst: Vec<u64> = Vec::new();
    for number in 3..=40 {
        let publish = match number % 10 {
            0 => keyed(&number.to_string(), &format!("key{number}")),
            _ => data_of(&number.to_string()),
        };
        burst.push(fleet.send(1, moved, KEPT, publish));
        if number % 7 == 0 {
            fleet.turn_now();
        }
    }
    for (token, number) in burst.into_iter().zip(3..) {
        assert_eq!(fleet.published(1, token).map(offset), Ok(number));
    }
    let again = fleet.send(1, moved, KEPT, keyed("30", "key30"));
    assert!(fleet.published(1, again).unwrap().suppressed, "it was published before");
    let numbers: Vec<String> = (1..=40).map(|number: u64| number.to_string()).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    assert_eq!(stored(&mut fleet, moved), numbered(&numbers));
    assert_eq!(stored(&mut fleet, stays), numbered(&["1", "2"]));
    // A new channel begins at the importing node.
    let new = new_channel(&mut fleet, &slot);
    assert_eq!(fleet.publish(1, &new, "1").offset, 1);
    let channels = vec![moved.as_str().into(), stays.as_str().into(), new.as_str().into()];
    let token = fleet.ask(1, |token| EngineRequest::Positions { token, channels });
    let positions = fleet.answer(1, "positions", |event| match event {
        EngineEvent::Positions { token: of, result } if *of == token => Some(result.clone()),
        _ => None,
    });
    let offsets: Vec<u64> = positions.unwrap().iter().map(|at| at.offset).collect();
    assert_eq!(offsets, [40, 2, 1]);
    // Subscribers at the source receive what is published at the importing node.
    fleet.until("heard", |nodes| heard(&nodes[0], moved).iter().any(|(of, _)| *of == 40));
    let expected: Vec<_> = numbered(&numbers).split_off(1);
    assert_eq!(heard(&fleet.nodes.0[0], moved), expected);

    // Deferred operations continue once their other key has moved, before the slot has.
    let waits = fleet.send(1, half, KEPT, data_of("2"));
    fleet.turn();
    slot.migrate(&[&slot.key("c", half)]);
    assert_eq!(fleet.published(1, waits).map(offset), Ok(2));

    slot.migrate_rest();
    slot.finish();
    for channel in [half, stays] {
        assert_eq!(fleet.publish(1, channel, "3").offset, 3);
        assert_eq!(stored(&mut fleet, channel), numbered(&["1", "2", "3"]));
    }
    assert_eq!(fleet.publish(1, moved, "41").offset, 41);
    fleet.until("over", |nodes| {
        let shards = nodes.iter().flat_map(|node| node.engine.shards());
        shards.into_iter().all(|shard| shard.slots_moving == 0)
    });
    assert!(slot.from.cli(&["KEYS", &format!("{}*", slot.prefix)]).is_empty());
    let stats = fleet.nodes.0[1].engine.stats();
    assert!(stats.asked > 0 && stats.put_off > 0 && stats.uncertain == 0, "{stats:?}");
    assert_eq!(stats.refused, 1, "the one that waited too long");
}

fn offset(published: Published) -> u64 {
    published.position.offset
}

/// Returns a channel of the slot without publications.
fn new_channel(fleet: &mut Fleet, slot: &Move<'_>) -> String {
    // The slot of a channel is known once one of its keys exists.
    let number = (1000..).find(|number| {
        let token = fleet.begin_subscribe(1, &format!("channel{number}"), KEPT);
        fleet
            .answer(1, "subscribed", |event| match event {
                EngineEvent::Subscribed { token: of, result } if *of == token => {
                    Some(result.clone())
                }
                _ => None,
            })
            .unwrap();
        let key = slot.key("m", &format!("channel{number}"));
        slot.to.cli(&["CLUSTER", "GETKEYSINSLOT", &slot.slot, "1000"]).contains(&key)
    });
    format!("channel{}", number.unwrap())
}

/// Regression: the generation key moves like any other, and a node that connected meanwhile was not ready until the slot had
/// moved.
#[test]
fn a_node_that_connects_while_the_slot_moves_publishes_and_hears() {
    let deployment = Deployment::cluster(2);
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let slot = Move::new(&deployment, &mut fleet);
    let [moved, stays, ..] = &slot.channels[..] else { panic!("{:?}", slot.channels) };
    slot.begin();
    slot.migrate(&[&format!("{}:g", slot.prefix)]);
    slot.migrate_channel(moved);
    let mut others = Fleet::new(&deployment.topology, 1);
    for channel in [moved, stays] {
        assert_eq!(others.subscribe(0, channel, KEPT).position.offset, 1);
        let token = others.send(0, channel, KEPT, data_of("2"));
        assert_eq!(others.published(0, token).map(offset), Ok(2));
        others.until("heard", |nodes| heard(&nodes[0], channel).len() == 1);
    }
    // Connected nodes reconnect and have all publications.
    slot.from.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    slot.from.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    fleet.until_ready();
    for channel in [moved, stays] {
        assert_eq!(fleet.publish(1, channel, "3").offset, 3);
        assert_eq!(stored(&mut fleet, channel), numbered(&["1", "2", "3"]));
    }
    slot.migrate_rest();
    slot.finish();
    for channel in [moved, stays] {
        assert_eq!(fleet.publish(1, channel, "4").offset, 4);
    }
}

/// The migration is abandoned and the keys move back.
#[test]
fn a_move_that_is_given_up_loses_nothing() {
    let deployment = Deployment::cluster(2);
    let mut fleet = Fleet::new(&deployment.topology, 2);
    let slot = Move::new(&deployment, &mut fleet);
    let moved = &slot.channels[0];
    slot.begin();
    slot.migrate_channel(moved);
    assert_eq!(fleet.publish(1, moved, "2").offset, 2);
    // The opposite direction.
    let back = Move {
        from: slot.to,
        to: slot.from,
        slot: slot.slot.clone(),
        prefix: slot.prefix.clone(),
        channels: Vec::new(),
    };
    let there = fleet.publish(1, moved, "3");
    assert_eq!(slot.from.cli(&["CLUSTER", "SETSLOT", &slot.slot, "STABLE"]), "OK");
    back.migrate_channel(moved);
    assert_eq!(slot.to.cli(&["CLUSTER", "SETSLOT", &slot.slot, "STABLE"]), "OK");
    let here = fleet.publish(1, moved, "4");
    assert_eq!((there.offset, here.offset), (3, 4));
    assert_ne!(there.epoch, here.epoch, "equal numbers of two nodes do not pass for the same");
    assert_eq!(stored(&mut fleet, moved), numbered(&["1", "2", "3", "4"]));
    let filter = HistoryFilter { since: Some(there), ..HistoryFilter::default() };
    let history = fleet.history(1, moved, filter).expect("it inherits what there was");
    assert_eq!(history.publications.len(), 1);
}

/// Operations that wait for missing keys are bounded, and fail as not stored.
#[test]
fn deferred_operations_are_bounded() {
    let deployment = Deployment::cluster(2);
    let config = RedisConfig {
        queue_bytes_max: 40_000,
        hold_ms: 60_000,
        ..RedisConfig::new(deployment.topology.clone())
    };
    let mut fleet = Fleet::new(&config, 2);
    let slot = Move::new(&deployment, &mut fleet);
    let [half, stays, ..] = &slot.channels[..] else { panic!("{:?}", slot.channels) };
    slot.begin();
    slot.migrate(&[&slot.key("m", half)]);
    let mut tokens = Vec::new();
    for number in 0..200 {
        tokens.push(fleet.send(1, half, KEPT, data_of(&number.to_string())));
        fleet.turn_now();
        if number == 20 {
            // The queue still has space: the bound is shared.
            assert_eq!(fleet.publish(1, stays, "2").offset, 2, "others go on");
        }
    }
    fleet.until("refused", |nodes| nodes[1].engine.stats().refused > 0);
    slot.migrate(&[&slot.key("c", half)]);
    let mut stored_count = 0;
    for token in tokens {
        match fleet.published(1, token) {
            Ok(_) => stored_count += 1,
            Err(error) => assert_eq!(error, Error::EngineUnavailable),
        }
    }
    assert!((1..200).contains(&stored_count), "{stored_count}");
    let at = fleet.publish(1, half, "last");
    assert_eq!(at.offset, stored_count + 2, "what was refused was not stored");
}
