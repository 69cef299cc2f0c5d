//! The engine on a disk, on one that loses power.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_engine::disk::{DiskEngine, DiskLog, DiskPort};
use dunlin_hub::engine::{EngineEvent, EnginePublish, EngineRequest, Retention};
use dunlin_hub::{Durability, Epoch, HistoryFilter, NewPublication, Published};
use dunlin_log::simulated::{Random, SimulatedDisk};
use dunlin_log::{Limits, Log, LogConfig, Threads};

const NOW: u64 = 1_800_000_000_000;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A worker's engine on a disk.
struct Node {
    engine: DiskEngine,
    threads: Threads,
}

impl Node {
    fn start(disk: &SimulatedDisk, boot: &str) -> Node {
        // What nobody asks to have synced is not synced while a test runs.
        let limits = Limits {
            segment_bytes: 64 << 10,
            bytes_max: 64 << 20,
            sync_interval_ms: 3_600_000,
            ..Limits::default()
        };
        let config = LogConfig { limits, owner: "node-a".to_owned(), boot: boot.to_owned() };
        let (log, _) = Log::open(Arc::new(disk.clone()), &config).expect("a log");
        let log = Arc::new(log);
        let threads = Threads::start(Arc::clone(&log)).expect("threads");
        let reads = threads.reads().expect("a thread that reads");
        let shared = DiskLog { log, reads, durability: Durability::Written };
        let port = Arc::new(DiskPort::new(|| {}));
        Node { engine: DiskEngine::new(Some(shared), port, "a disk".to_owned()), threads }
    }

    fn publish(&mut self, token: u64, channel: &str, of: (Durability, Option<Durability>)) {
        let (delivered, durability) = of;
        let data = format!("{channel}/{token}").into_bytes().into();
        let publish = NewPublication { data, durability, ..NewPublication::default() };
        let (channel, retention) = (Arc::from(channel), kept(delivered));
        let publish = EnginePublish { token, channel, retention, publish, time_ms: NOW };
        self.engine.handle_request(NOW, EngineRequest::Publish(Box::new(publish)));
    }

    /// Waits for an event that `takes`.
    fn wait<T>(&mut self, mut takes: impl FnMut(EngineEvent) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.engine.flush();
            while let Some(event) = self.engine.poll_event() {
                if let Some(taken) = takes(event) {
                    return taken;
                }
            }
            assert!(begun.elapsed() < TIMEOUT, "the log has not answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn answer(&mut self, token: u64) -> Published {
        self.wait(|event| match event {
            EngineEvent::Published { token: of, result } if of == token => Some(result.unwrap()),
            _ => None,
        })
    }

    /// What is there of a channel, by offset, and its epoch.
    fn history(&mut self, channel: &str, delivered: Durability) -> (Vec<(u64, String)>, Epoch) {
        let (channel, filter) = (Arc::from(channel), HistoryFilter::default());
        let (retention, latest) = (kept(delivered), true);
        let read = EngineRequest::History { token: 0, channel, retention, filter, latest };
        self.engine.handle_request(NOW, read);
        let history = self.wait(|event| match event {
            EngineEvent::History { result, .. } => Some(result.unwrap()),
            _ => None,
        });
        let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        let all = history.publications.iter().map(|of| (of.offset(), text(of.data())));
        (all.collect(), history.position.epoch)
    }
}

fn kept(durability: Durability) -> Retention {
    let durability = Some(durability);
    Retention { size: 1_000, ttl_ms: 60_000, meta_ttl_ms: 600_000, durability }
}

#[test]
fn publication_answered_as_synced_survives_a_loss_of_power_whatever_its_namespace_waits_for() {
    use Durability::{Synced, Written};
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::default();
        let mut node = Node::start(&disk, "first");
        let mut answered = Vec::new();
        for token in 1..=20 + random.below(30) as u64 {
            let namespace = [("fast:1", Written), ("safe:1", Synced)][random.below(2)];
            let asked = [None, Some(Written), Some(Synced)][random.below(3)];
            let (channel, delivered) = namespace;
            node.publish(token, channel, (delivered, asked));
            let published = node.answer(token);
            assert!(published.durability >= Some(asked.unwrap_or(delivered)), "{published:?}");
            answered.push((channel, token, published));
        }
        let after = disk.after_power_cut(&mut random);
        node.threads.close().expect("it closes");
        let mut node = Node::start(&after, "second");
        for (channel, delivered) in [("fast:1", Written), ("safe:1", Synced)] {
            let (found, epoch) = node.history(channel, delivered);
            for (of, token, published) in answered.iter().filter(|of| of.0 == channel) {
                let mine = (published.position.offset, format!("{of}/{token}"));
                if published.durability == Some(Synced) {
                    assert!(found.contains(&mine), "seed {seed}: {mine:?} of {found:?}");
                }
                // Subscribers of a channel that waits for less may have seen what is lost, so that offsets may be given again.
                assert_eq!(epoch == published.position.epoch, delivered == Synced, "seed {seed}");
            }
        }
        node.threads.close().expect("it closes");
    }
}

#[test]
fn answer_waits_for_less_or_for_more_than_delivery() {
    use Durability::{Synced, Written};
    let mut node = Node::start(&SimulatedDisk::default(), "first");
    let channel: Arc<str> = "fast:1".into();
    let subscribe = EngineRequest::Subscribe {
        token: 9,
        channel: Arc::clone(&channel),
        retention: kept(Written),
        is_wildcard: false,
    };
    node.engine.handle_request(NOW, subscribe);
    node.publish(1, &channel, (Written, Some(Synced)));
    let mut delivered = false;
    let published = node.wait(|event| match event {
        EngineEvent::Publication { .. } => {
            delivered = true;
            None
        }
        EngineEvent::Published { result, .. } => Some(result.unwrap()),
        _ => None,
    });
    assert!(delivered, "whoever is subscribed does not wait for the disk");
    assert_eq!(published.durability, Some(Synced));
    let keyed = |asked| NewPublication {
        data: b"once".as_slice().into(),
        idempotency_key: Some("k".into()),
        durability: Some(asked),
        ..NewPublication::default()
    };
    for (token, asked, suppressed) in [(2, Written, false), (3, Synced, true), (4, Written, true)] {
        let (channel, retention) = (Arc::clone(&channel), kept(Written));
        let publish =
            EnginePublish { token, channel, retention, publish: keyed(asked), time_ms: NOW };
        node.engine.handle_request(NOW, EngineRequest::Publish(Box::new(publish)));
        let published = node.answer(token);
        assert_eq!((published.position.offset, published.suppressed), (2, suppressed));
        assert!(published.durability >= Some(asked), "{published:?}");
    }
    node.threads.close().expect("it closes");
}
