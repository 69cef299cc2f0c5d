//! Nodes that share a real NATS server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use dunlin_config::{Engine, EngineKind, Secret};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::super::{Cluster, Listener, TIMEOUT};
use super::{crosses, is_lost_once, node_on, publish, recovering, survives, until};

/// A NATS server that is killed at the end of the test, or earlier.
pub(super) struct Nats {
    pub(super) addr: SocketAddr,
    child: Child,
    directory: TempDir,
}

impl Nats {
    pub(super) fn start() -> Nats {
        Nats::start_with("")
    }

    /// Starts a server with this configuration.
    fn start_with(config: &str) -> Nats {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("nats.conf"), config).unwrap();
        let (child, addr) = spawn(&directory, -1).expect("nats-server starts");
        Nats { addr, child, directory }
    }

    pub(super) fn engine(&self) -> Engine {
        let addresses = [self.addr.to_string()].into();
        Engine { kind: EngineKind::Nats, addresses, ..Engine::default() }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts another process at the same address.
    fn again(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if let Some((child, _)) = spawn(&self.directory, i32::from(self.addr.port())) {
                self.child = child;
                return;
            }
        }
        panic!("its port is somebody else's");
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server; returns it with its address once it listens. With port -1 the kernel chooses the port.
fn spawn(directory: &TempDir, port: i32) -> Option<(Child, SocketAddr)> {
    let mut child = Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(directory.path().join("store"))
        .arg("-c")
        .arg(directory.path().join("nats.conf"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("nats-server: {error}; scripts/packages installs it"));
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let listening = "Listening for client connections on ";
    let addr = said.by_ref().find_map(|line| line.split_once(listening)?.1.parse().ok());
    let is_ready = said.by_ref().any(|line| line.contains("Server is ready"));
    // Drain its further output, so that it never blocks.
    std::thread::spawn(move || said.for_each(drop));
    match addr {
        Some(addr) if is_ready => Some((child, addr)),
        _ => {
            let _ = child.wait();
            None
        }
    }
}

#[test]
fn what_one_node_publishes_clients_of_the_other_hear_and_recover() {
    let nats = Nats::start();
    crosses(&node_on(1, nats.engine()), &node_on(2, nats.engine()));
}

#[test]
fn a_nats_that_was_killed_and_kept_its_data_loses_nothing() {
    let mut nats = Nats::start();
    let (a, b) = (node_on(1, nats.engine()), node_on(2, nats.engine()));
    survives(&a, &b, |is_killed| match is_killed {
        true => nats.kill(),
        false => nats.again(),
    });
}

#[test]
fn a_nats_that_lost_its_data_is_noticed() {
    let mut nats = Nats::start();
    let engine = || Engine { stream_in_memory: true, ..nats.engine() };
    let (a, b) = (node_on(1, engine()), node_on(2, engine()));
    let mut listener = Listener::connect(b.address, "news");
    let epoch = publish(&a, "news", 1)["epoch"].clone();
    assert_eq!(listener.next().unwrap()["pub"]["data"], 1);
    nats.kill();
    nats.again();
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
    let nats = Nats::start();
    let engine = || Engine { position_check_ms: 500, ..nats.engine() };
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
    let nats = Nats::start();
    let engine = Engine { position_check_ms: INTERVAL_MS, ..nats.engine() };
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
    let nats = Nats::start();
    let (mut plain, addr) = {
        let mut child = Command::new("nats-server")
            .args(["-a", "127.0.0.1", "-p", "-1"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = said.skip_while(|line| !line.contains("Listening for client"));
        let line = said.next().expect("it listens");
        std::thread::spawn(move || said.for_each(drop));
        (child, line.rsplit(' ').next().unwrap().to_owned())
    };
    let cluster = Cluster::start_with(1, |config| {
        let engine = Engine { addresses: [addr].into(), ..nats.engine() };
        super::on_engine(config, engine);
    });
    until("the state of the engine is never known", || {
        cluster.state.engines.health().into_values().eq(["no_jetstream"])
    });
    let refused = cluster.post("/api/publish", "{\"channel\":\"news\",\"data\":1}");
    assert!(refused.contains("nothing was stored"), "{refused}");
    let mut local = Listener::connect(cluster.address, "local:1");
    publish(&cluster, "local:1", 1);
    assert_eq!(local.next().unwrap()["pub"]["data"], 1);
    let _ = plain.kill();
    let _ = plain.wait();
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
    let nats = Nats::start_with(&format!(
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
        ..nats.engine()
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
