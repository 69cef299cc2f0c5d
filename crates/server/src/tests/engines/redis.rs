//! Features of Redis: TLS, logins, databases, Sentinels, slow servers, eviction, replicas.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use dunlin_config::{Engine, EngineReadFrom, EngineTopology, Secret};
use dunlin_testkit::free_port;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    Cluster, Listener, Redis, crosses, is_lost_once, node_on, on_engine, publish, ready,
    recovering, until,
};
use crate::tests::TIMEOUT;

/// Starts a Redis that only accepts TLS; returns it with the certificate to trust.
fn with_tls(directory: &TempDir) -> (Redis, Arc<str>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let [certificate_path, key_path] =
        [("cert.pem", certificate.clone()), ("key.pem", key.serialize_pem())].map(
            |(name, text)| {
                let path = directory.path().join(name);
                std::fs::write(&path, text).unwrap();
                path.display().to_string()
            },
        );
    let redis = Redis::start_with(|port| {
        let arguments = [
            ["--port", "0"],
            ["--tls-port", port],
            ["--tls-cert-file", &certificate_path],
            ["--tls-key-file", &key_path],
            ["--tls-auth-clients", "no"],
            ["--requirepass", "secret"],
        ];
        arguments.as_flattened().iter().map(|&argument| argument.to_owned()).collect()
    });
    (redis, certificate.into())
}

#[test]
fn nodes_share_a_database_of_a_redis_that_speaks_tls_and_wants_a_password() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, certificate) = with_tls(&directory);
    let engine = || Engine {
        addresses: [redis.addr.to_string()].into(),
        tls: true,
        ca: Some(Arc::clone(&certificate)),
        password: Some(Secret::new("secret")),
        database: 3,
        ..Engine::default()
    };
    crosses(&node_on(1, engine()), &node_on(2, engine()));
}

/// As many have it in their environment: a URL, and a socket where server and node are on one machine.
#[test]
fn nodes_share_a_redis_by_its_url_and_by_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock").display().to_string();
    let redis = Redis::start(&["--requirepass", "p@ss", "--unixsocket", &socket]);
    let engine = |address: String| -> Engine {
        serde_json::from_value(json!({"addresses": [address], "password": "p@ss"})).unwrap()
    };
    let by_socket = || engine(format!("unix:{socket}"));
    let by_url: Engine =
        serde_json::from_value(json!({"addresses": [format!("redis://:p%40ss@{}/0", redis.addr)]}))
            .unwrap();
    crosses(&node_on(1, by_socket()), &node_on(2, by_url));
}

#[test]
fn sentinels_have_a_login_of_their_own() {
    let primary = Redis::start(&["--requirepass", "secret"]);
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1", primary.addr.port());
    let sentinel = Redis::start(&[
        "--sentinel",
        &monitor,
        "sentinel auth-pass main secret",
        "user default off",
        "user dunlin on >apart ~* &* +@all",
    ]);
    let engine = || Engine {
        topology: EngineTopology::Sentinel,
        addresses: [sentinel.addr.to_string()].into(),
        sentinel_primaries: ["main".to_owned()].into(),
        sentinel_user: Some("dunlin".into()),
        sentinel_password: Some(Secret::new("apart")),
        password: Some(Secret::new("secret")),
        ..Engine::default()
    };
    crosses(&node_on(1, engine()), &node_on(2, engine()));
}

/// Unanswered publications to a stopped server count against the limit. Further ones are rejected at once, and the
/// channels of another engine continue.
#[test]
fn publications_beyond_what_may_wait_are_refused_and_another_engine_goes_on() {
    let (slow, other) = (Redis::start(&[]), Redis::start(&[]));
    let cluster = Cluster::start_with(1, |config| {
        let addresses = [slow.addr.to_string()].into();
        on_engine(config, Engine { addresses, queue_bytes_max: 65_536, ..Engine::default() });
        let addresses = [other.addr.to_string()].into();
        config.engines.insert("other", Engine { addresses, ..Engine::default() });
        let mut options = config.channel.without_namespace.clone();
        options.engine = Some("other".into());
        config.channel.namespaces.insert("other", options);
    });
    until("the engines are never ready", || {
        cluster.state.engines.health().into_values().eq(["ready", "ready"])
    });
    slow.signal("-STOP");
    let body = json!({"channel": "news", "data": "x".repeat(20_000)}).to_string();
    let post = || {
        let mut stream = TcpStream::connect(cluster.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = "POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    };
    let streams: Vec<TcpStream> = (0..8).map(|_| post()).collect();
    let answer = |stream: TcpStream| std::io::read_to_string(stream).unwrap();
    let answers: Vec<String> = streams.into_iter().map(answer).collect();
    let count = |part: &str| answers.iter().filter(|answer| answer.contains(part)).count();
    assert!(count("nothing was stored") >= 5, "{answers:?}");
    assert_eq!(count("nothing was stored") + count("may have been stored"), 8, "{answers:?}");
    let mut listener = Listener::connect(cluster.address, "other:1");
    publish(&cluster, "other:1", 1);
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    slow.signal("-CONT");
    publish(&cluster, "news", 2);
}

/// Regression: a second signal cut the connection of a call that waited.
#[test]
fn call_without_an_answer_is_answered_when_the_server_stops() {
    let redis = Redis::start(&[]);
    let mut cluster = Cluster::start_with(1, |config| super::on_redis(config, redis.addr));
    ready(&cluster);
    redis.signal("-STOP");
    let body = json!({"channel": "news", "data": 1}).to_string();
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let head = "POST /api/publish HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let waits = || cluster.state.counters[0].get(crate::metrics::Metric::ApiCommands) > 0;
    until("it is never begun", waits);
    cluster.send(0, crate::message::worker::WorkerMessage::Stop);
    let answer = std::io::read_to_string(stream).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("the server stops before there is an answer"), "{answer}");
    redis.signal("-CONT");
}

#[test]
fn a_redis_that_may_evict_is_named_and_serves() {
    let redis = Redis::start(&["--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"]);
    let cluster = Cluster::start_with(1, |config| super::on_redis(config, redis.addr));
    until("it is never named", || cluster.state.engines.health().into_values().eq(["may_evict"]));
    let states = json!({"main": {"may_evict": 1}});
    assert_eq!(json!(cluster.state.engines.shard_states()), states);
    publish(&cluster, "news", 1);
    let mut registry = dunlin_metrics::Registry::with_prefix("dunlin");
    registry.register_collector(Box::new(Arc::clone(&cluster.state.engines)));
    let (_, text) = dunlin_metrics::text::negotiate(&registry, None);
    let metric = format!(
        "dunlin_engine_shard_state{{engine=\"main\",shard=\"{}\",state=\"may_evict\"}} 1",
        redis.addr
    );
    assert!(text.contains(&metric), "{text}");
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    ready(&cluster);
    assert!(cluster.state.engines.shard_states().is_empty());
}

/// Returns the sum of an engine metric, as of the last second.
fn metric(cluster: &Cluster, name: &str) -> u64 {
    let mut registry = dunlin_metrics::Registry::with_prefix("dunlin");
    registry.register_collector(Box::new(Arc::clone(&cluster.state.engines)));
    let (_, text) = dunlin_metrics::text::negotiate(&registry, None);
    let samples = text.lines().filter(|line| line.starts_with(name));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Clients recover through a replica, and recover everything whatever happens to the replica.
#[test]
fn clients_recover_by_a_replica_and_never_less_than_by_its_primary() {
    let primary = Redis::start(&[]);
    let port = primary.addr.port().to_string();
    let mut replica = Redis::start(&["--replicaof", "127.0.0.1", &port]);
    let engine = || Engine {
        addresses: [primary.addr.to_string()].into(),
        read_from: EngineReadFrom::ReplicaPreferred,
        ..Engine::default()
    };
    let (a, b) = (node_on(1, engine()), node_on(2, engine()));
    let mut channels = 0;
    // Publishes to a channel that the other node does not know, and recovers there the publications that a client has
    // missed.
    let mut recover = || {
        channels += 1;
        let channel = format!("room{channels}");
        let mut epoch = Value::Null;
        for number in 1..=6 {
            epoch = publish(&a, &channel, number)["epoch"].clone();
        }
        let (_, connect) = Listener::connect_to(b.address, &recovering(&channel, 2, &epoch));
        let subscribed = &connect["connect"]["subs"][channel.as_str()];
        assert_eq!(subscribed["recovered"], true, "{connect}");
        let recovered = subscribed["publications"].as_array().unwrap().iter();
        let offsets: Vec<u64> = recovered.map(|of| of["offset"].as_u64().unwrap()).collect();
        assert_eq!(offsets, [3, 4, 5, 6], "{connect}");
    };
    until("no replica answers", || {
        recover();
        metric(&b, "dunlin_engine_replica_reads_total") > 0
    });
    replica.signal("-STOP");
    until("the silence is not named", || {
        recover();
        b.state.engines.health().into_values().eq(["replica_silent"])
    });
    replica.kill();
    until("the loss is not named", || {
        recover();
        b.state.engines.health().into_values().eq(["no_replica"])
    });
    let states = json!({"main": {"no_replica": 1}});
    until("a state stays behind", || json!(b.state.engines.shard_states()) == states);
    replica.restart();
    let before = metric(&b, "dunlin_engine_replica_reads_total");
    until("it is not read from again", || {
        recover();
        metric(&b, "dunlin_engine_replica_reads_total") > before
    });
}

/// A Redis Cluster of one primary with all slots.
fn cluster_of_one() -> Redis {
    let port = free_port().to_string();
    let redis = Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &port]);
    until("the cluster takes no slots", || {
        redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]) == "OK"
    });
    until("the cluster is never whole", || {
        redis.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    redis
}

/// Two nodes on such an engine, whose data are then flushed.
fn flushed(engine: impl Fn() -> Engine, redis: &Redis) {
    let engine = || Engine { position_check_ms: 500, ..engine() };
    let (a, b) = (node_on(1, engine()), node_on(2, engine()));
    is_lost_once(&a, &b, || _ = redis.cli(&["FLUSHALL"]));
}

/// Regression: each of the partitions of a cluster noticed for itself, at its own time, and more than once.
#[test]
fn clients_of_a_cluster_that_was_flushed_are_unsubscribed_once() {
    let redis = cluster_of_one();
    let engine = || Engine {
        topology: EngineTopology::Cluster,
        addresses: [redis.addr.to_string()].into(),
        ..Engine::default()
    };
    flushed(engine, &redis);
}

#[test]
fn clients_of_a_redis_that_was_flushed_are_unsubscribed_once() {
    let redis = Redis::start(&[]);
    let engine = || Engine { addresses: [redis.addr.to_string()].into(), ..Engine::default() };
    flushed(engine, &redis);
}

#[test]
fn clients_of_a_primary_of_sentinels_that_was_flushed_are_unsubscribed_once() {
    let primary = Redis::start(&[]);
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1", primary.addr.port());
    let sentinel = Redis::start(&["--sentinel", &monitor]);
    let engine = || Engine {
        topology: EngineTopology::Sentinel,
        addresses: [sentinel.addr.to_string()].into(),
        sentinel_primaries: ["main".to_owned()].into(),
        ..Engine::default()
    };
    flushed(engine, &primary);
}

/// The number of calls of a command that Redis counts, scripts included.
fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    line.and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Regression: each check of a channel was two commands, at each interval.
#[test]
fn position_check_of_channels_at_rest_costs_half_a_command_per_channel_and_interval() {
    const CHANNELS: u64 = 200;
    const INTERVAL_MS: u64 = 1_000;
    let redis = Redis::start(&[]);
    let cluster = node_on(
        1,
        Engine {
            addresses: [redis.addr.to_string()].into(),
            position_check_ms: INTERVAL_MS,
            ..Engine::default()
        },
    );
    let subs: serde_json::Map<_, _> =
        (0..CHANNELS).map(|at| (format!("room{at}"), json!({}))).collect();
    let mut listener =
        Listener::connect_to(cluster.address, &json!({ "subs": subs }).to_string()).0;
    let reads = || calls(&redis, "hget") + calls(&redis, "hmget");
    // After a publication each of them is checked at each of some intervals.
    std::thread::sleep(std::time::Duration::from_millis(7 * INTERVAL_MS));
    let (before, since) = (reads(), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_millis(8 * INTERVAL_MS));
    let (after, rounds) = (reads(), since.elapsed().as_millis() as u64 / INTERVAL_MS + 1);
    let per_round = (after - before) as f64 / rounds as f64;
    assert!(after > before, "they are checked");
    assert!(per_round <= 0.5 * CHANNELS as f64, "{per_round} commands for {CHANNELS} channels");
    publish(&cluster, "room7", 1);
    // Pings, which are empty, may be in between.
    let push = std::iter::from_fn(|| listener.next()).find(|push| *push != json!({})).unwrap();
    assert_eq!(push["pub"]["data"], 1, "{push}");
}
