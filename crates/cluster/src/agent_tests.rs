//! Three nodes in one process, on a store in its memory: what their agents do when the network between them and the store is cut.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_access::auth::revocation::Revocations;
use dunlin_access::limits::shared_buckets::SharedBuckets;
use dunlin_access::limits::user_connections::UserConnections;
use dunlin_config::{Cluster, Config, Engine, Snapshot};
use dunlin_webhooks::EventFilter;
use tokio::sync::mpsc;

use super::address::StoreAddress;
use super::agent::{Agent, Input};
use super::condition::Condition;
use super::local_node::LocalNode;
use super::memory::{Memory, MemoryAddress};
use super::outbox::{OutboxReader, outbox};
use super::state::{ClusterMetric, ClusterState};

const LEASE_MS: u64 = 600;
/// Longer than what a test waits for on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A node without workers.
struct TestNode {
    uid: &'static str,
    snapshot: Arc<Snapshot>,
    filter: Arc<EventFilter>,
    cluster: ClusterState,
    budgets: SharedBuckets,
    revocations: Revocations,
    started: Instant,
}

impl LocalNode for TestNode {
    fn uid(&self) -> &str {
        self.uid
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot)
    }

    fn name(&self) -> Arc<str> {
        format!("node {}", self.uid).into()
    }

    fn event_filter(&self) -> Arc<EventFilter> {
        Arc::clone(&self.filter)
    }

    fn user_connections(&self) -> Option<Arc<UserConnections>> {
        None
    }

    fn cluster(&self) -> &ClusterState {
        &self.cluster
    }

    fn budgets(&self) -> &SharedBuckets {
        &self.budgets
    }

    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    fn sessions(&self) -> u64 {
        0
    }

    fn uptime_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn workers(&self) -> usize {
        0
    }
}

/// A node with its agent.
struct Joined {
    node: Arc<TestNode>,
    network: MemoryAddress,
    inputs: mpsc::Sender<Input>,
    _sent: OutboxReader,
}

impl Joined {
    fn start(memory: &Arc<Memory>, uid: &'static str) -> Joined {
        let node = Arc::new(TestNode {
            uid,
            snapshot: Arc::new(Snapshot::new(1, Config::default()).unwrap()),
            filter: Arc::default(),
            cluster: ClusterState::default(),
            budgets: SharedBuckets::default(),
            revocations: Revocations::default(),
            started: Instant::now(),
        });
        let (outbox, sent) = outbox();
        let settings = Cluster { lease_ms: LEASE_MS, call_timeout_ms: 500, ..Cluster::default() };
        let local = Arc::clone(&node) as Arc<dyn LocalNode>;
        let engine = Arc::new(Engine::default());
        let mut agent = Agent::new(local, &settings, &engine, (0, None), outbox);
        let network = MemoryAddress::new(memory);
        agent.address = StoreAddress::Memory(network.clone());
        let (inputs, asked) = mpsc::channel(16);
        tokio::spawn(agent.run(asked));
        Joined { node, network, inputs, _sent: sent }
    }

    fn living(&self) -> usize {
        self.node.cluster.living().len()
    }

    fn leases_lost(&self) -> u64 {
        self.node.cluster.counters.get(ClusterMetric::LeasesLost)
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn node_behind_a_cut_network_is_gone_for_the_others_until_the_network_is_back() {
    let memory = Arc::default();
    let nodes = ["a", "b", "c"].map(|uid| Joined::start(&memory, uid));
    until("all have joined", || nodes.iter().all(|of| of.living() == 3)).await;
    let condition = |at: usize| nodes[at].node.cluster.condition();
    assert_eq!([0, 1, 2].map(condition), [Condition::Member; 3]);
    let number = nodes[2].node.cluster.number();

    nodes[2].network.cut();
    until("its lease ends", || nodes[..2].iter().all(|of| of.living() == 2)).await;
    assert_eq!(nodes[0].node.cluster.gone().join(" "), "node c");
    assert_eq!(
        [0, 1, 2].map(condition),
        [Condition::Member, Condition::Member, Condition::Unreachable]
    );

    nodes[2].network.mend();
    until("it is back", || nodes.iter().all(|of| of.living() == 3)).await;
    until("it has joined again", || condition(2) == Condition::Member).await;
    assert_eq!(nodes[2].node.cluster.number(), number, "its session ids are valid");
    assert_eq!((nodes[2].leases_lost(), nodes[0].leases_lost()), (1, 0), "it was taken for dead");
    assert!(nodes[0].node.cluster.gone().is_empty());
}

#[tokio::test]
async fn nodes_join_again_after_the_store_has_lost_its_data_and_one_leaves() {
    let memory = Arc::<Memory>::default();
    let nodes = ["a", "b"].map(|uid| Joined::start(&memory, uid));
    until("both have joined", || nodes.iter().all(|of| of.living() == 2)).await;
    memory.flush();
    until("both have noticed", || nodes.iter().all(|of| of.leases_lost() == 1)).await;
    until("both are back", || nodes.iter().all(|of| of.living() == 2)).await;
    nodes[1].inputs.send(Input::Leave).await.unwrap();
    until("it has left", || nodes[0].living() == 1).await;
    assert_eq!(nodes[1].node.cluster.condition(), Condition::Alone);
}
