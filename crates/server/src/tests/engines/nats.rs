//! Nodes that share a real NATS server.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use dunlin_config::{Engine, EngineKind, Secret};
use dunlin_testkit::Nats;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::super::{Cluster, Listener};
use super::{crosses, is_lost_once, node_on, publish, recovering, survives, until};
use crate::tests::TIMEOUT;

/// A NATS server with JetStream.
pub(super) fn start() -> Nats {
    start_with("")
}

/// One with this configuration.
fn start_with(config: &str) -> Nats {
    Nats::start(&["-js"], config)
}

pub(super) fn engine_at(nats: &Nats) -> Engine {
    let addresses = [nats.addr.to_string()].into();
    Engine { kind: EngineKind::Nats, addresses, ..Engine::default() }
}

#[test]
fn publications_of_one_node_reach_and_recover_clients_of_the_other() {
    let nats = start();
    crosses(&node_on(1, engine_at(&nats)), &node_on(2, engine_at(&nats)));
}

#[test]
fn a_nats_that_was_killed_and_kept_its_data_loses_nothing() {
    let mut nats = start();
    let (a, b) = (node_on(1, engine_at(&nats)), node_on(2, engine_at(&nats)));
    survives(&a, &b, |is_killed| match is_killed {
        true => nats.kill(),
        false => nats.restart(),
    });
}

#[test]
fn a_nats_that_lost_its_data_is_noticed() {
    let mut nats = start();
    let engine = || Engine { stream_in_memory: true, ..engine_at(&nats) };
    let (a, b) = (node_on(1, engine()), node_on(2, engine()));
    let mut listener = Listener::connect(b.address, "news");
    let epoch = publish(&a, "news", 1)["epoch"].clone();
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    nats.kill();
    nats.restart();
    // The same offset as before, in another generation of the data.
    publish(&a, "news", 2);
    let push = listener.next().expect("it is still connected");
    assert_eq!(push["unsubscribe"]["code"], 2500, "{push}");
    let (_, connect) = Listener::connect_to(b.address, &recovering("news", 1, &epoch));
    let subscribed = &connect["connect"]["subs"]["news"];
    assert_ne!(subscribed["recovered"], true, "{connect}");
    assert_ne!(subscribed["epoch"], epoch);
}

#[test]
fn clients_of_a_nats_whose_stream_was_purged_are_unsubscribed_once() {
    let nats = start();
    let engine = || Engine { position_check_ms: 500, ..engine_at(&nats) };
    let (a, b) = (node_on(1, engine()), node_on(2, engine()));
    let prefix = engine().prefix;
    is_lost_once(&a, &b, || {
        let mut stream = TcpStream::connect(nats.addr).unwrap();
        let purge = format!("PUB $JS.API.STREAM.PURGE.{prefix} 0\r\n\r\nPING\r\n");
        write!(stream, "CONNECT {{\"verbose\":false}}\r\n{purge}").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "PONG"), "the server takes it");
    });
}

/// The number of requests to JetStream's API that the server counts.
fn requests(nats: &Nats) -> u64 {
    let mut stream = TcpStream::connect(nats.addr).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let ask = "SUB answers 1\r\nPUB $JS.API.INFO answers 0\r\n\r\n";
    write!(stream, "CONNECT {{\"verbose\":false}}\r\n{ask}").unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let info = lines.find(|line| line.contains("account_info_response")).unwrap();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    info["api"]["total"].as_u64().unwrap()
}

/// Each worker asks once for hundreds of channels, while nothing is stored.
#[test]
fn position_check_of_channels_at_rest_costs_nats_a_request_for_hundreds_of_them() {
    const CHANNELS: u64 = 200;
    const INTERVAL_MS: u64 = 1_000;
    let nats = start();
    let engine = Engine { position_check_ms: INTERVAL_MS, ..engine_at(&nats) };
    let node = node_on(1, engine);
    let subs: serde_json::Map<_, _> =
        (0..CHANNELS).map(|at| (format!("room{at}"), serde_json::json!({}))).collect();
    let subs = serde_json::json!({ "subs": subs }).to_string();
    let mut listener = Listener::connect_to(node.address, &subs).0;
    let pass =
        |intervals| std::thread::sleep(std::time::Duration::from_millis(intervals * INTERVAL_MS));
    pass(7);
    let (before, since) = (requests(&nats), Instant::now());
    pass(8);
    let rounds = since.elapsed().as_millis() as u64 / INTERVAL_MS + 1;
    let per_round = (requests(&nats) - before) as f64 / rounds as f64;
    // Of two workers; probes are few.
    assert!((0.1..=6.0).contains(&per_round), "{per_round} requests for {CHANNELS} channels");
    publish(&node, "room7", 1);
    let push = std::iter::from_fn(|| listener.next()).find(|push| push["pub"].is_object()).unwrap();
    assert_eq!(push["pub"]["data"], 1, "{push}");
}

#[test]
fn a_nats_without_jetstream_is_named_and_the_rest_goes_on() {
    let plain = Nats::start(&[], "");
    let cluster = Cluster::start_with(1, |config| {
        super::on_engine(config, engine_at(&plain));
    });
    until("the state of the engine is never known", || {
        cluster.state.engines.health().into_values().eq(["no_jetstream"])
    });
    let refused = cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
    assert!(refused.contains("nothing was stored"), "{refused}");
    let mut local = Listener::connect(cluster.address, "local:1");
    publish(&cluster, "local:1", 1);
    assert_eq!(local.next().unwrap()["pub"]["data"], 1);
}

/// Seed and public key of a user that exists only in these tests, made by `nk -gen user -pubout`.
const SEED: &str = "SUAFOI4M5WPR57IPS36SGGJM3K7WGC2SW5MAIBBJXGQ27W2IPNRHTOUKT4";
const PUBLIC: &str = "UBJHEHGFI4EEBOKRZ6KWHDCPGNBN4VKANEP2LDKZL33LL4CL37S2CLOH";

/// A production setup: TLS on the same port after the greeting, client certificates, a user with an nkey in a file.
#[test]
fn nodes_log_in_by_tls_a_certificate_and_an_nkey_and_a_key_that_is_replaced_is_used() {
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let (chain, key) = issue("127.0.0.1");
    let nats = start_with(&format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}\n\
         authorization {{ users = [{{ nkey: {PUBLIC} }}] }}",
        file("cert", &chain),
        file("key", &key),
        file("ca", &authority.pem()),
    ));
    let (chain, key) = issue("node");
    // The file has no valid seed yet: the error is reported, and the node runs.
    let seed = file("seed", "SU...\n");
    let engine = || Engine {
        tls: true,
        ca: Some(authority.pem().into()),
        tls_client_cert: Some(chain.as_str().into()),
        tls_client_key: Some(Secret::new(key.as_str())),
        nkey_seed_file: Some(seed.as_str().into()),
        ..engine_at(&nats)
    };
    let health = |node: &Cluster| node.state.engines.health().into_values().next();
    let early = Cluster::start_with(1, |config| super::on_engine(config, engine()));
    until("a broken file has a name", || health(&early) == Some("bad_credentials"));
    file("seed", SEED);
    until("the file is read again", || health(&early) == Some("ready"));
    crosses(&node_on(1, engine()), &node_on(2, engine()));

    let stranger = Cluster::start_with(1, |config| {
        let ca = KeyPair::generate().unwrap();
        let other = CertificateParams::new(vec!["other".to_owned()]).unwrap();
        let other = other.self_signed(&ca).unwrap().pem();
        super::on_engine(config, Engine { ca: Some(other.into()), ..engine() });
    });
    until("a server that is not trusted has a name", || health(&stranger) == Some("tls_failed"));
}
