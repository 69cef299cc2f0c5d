//! Tests of the client against nginx: closes after a hundred requests, TLS, and comparison with the access log.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{End, TIMEOUT, ask};
use dunlin_net::Tls;
use dunlin_pipeline::{Depth, HostConfig, Request};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An nginx of one test. It answers with the requested id and logs it with the number of the connection.
struct Nginx {
    child: Child,
    folder: PathBuf,
    plain: SocketAddr,
    secure: SocketAddr,
    /// The root that signed its certificate, in PEM.
    root: String,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Nginx {
    fn start(test: &str) -> Nginx {
        let folder =
            std::env::temp_dir().join(format!("dunlin-nginx-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["good.example".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        let root = issuer.pem();

        let [plain, secure] = [free_port(), free_port()];
        let at = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {at}/{kind}; "))
            .concat();
        let config = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;
             events {{ worker_connections 512; }}
             http {{
               {temporary}
               log_format ids '$arg_id $connection $connection_requests';
               access_log {at}/access.log ids;
               keepalive_requests 100;
               server {{
                 listen 127.0.0.1:{plain};
                 listen 127.0.0.1:{secure} ssl;
                 ssl_certificate {at}/cert.pem;
                 ssl_certificate_key {at}/key.pem;
                 location / {{ return 200 $arg_id; }}
               }}
             }}"
        );
        fs::write(folder.join("nginx.conf"), config).unwrap();
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let child = Command::new("nginx")
            .args(["-p", &format!("{at}"), "-c", &format!("{at}/nginx.conf")])
            .env("PATH", path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("nginx: {error}; scripts/packages installs it"));
        let [plain, secure] = [plain, secure].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let nginx = Nginx { child, folder, plain, secure, root };
        let began = Instant::now();
        while TcpStream::connect(plain).is_err() {
            assert!(began.elapsed() < TIMEOUT, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        nginx
    }

    /// Stops nginx and returns its log: id and connection of each request. Waits for `lines` lines first: nginx writes
    /// a line when it is done with a request, which may be after the client is.
    fn log(&mut self, lines: u64) -> Vec<(u64, u64)> {
        let began = Instant::now();
        let written =
            || fs::read_to_string(self.folder.join("access.log")).unwrap().lines().count();
        while (written() as u64) < lines && began.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::QUIT).unwrap();
        self.child.wait().unwrap();
        let log = fs::read_to_string(self.folder.join("access.log")).unwrap();
        let lines = log.lines().map(|line| {
            let mut fields = line.split(' ').map(|field| field.parse().unwrap_or(0));
            (fields.next().unwrap(), fields.next().unwrap())
        });
        lines.collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn targets(count: u64) -> Vec<String> {
    (1..=count).map(|id| format!("/?id={id}")).collect()
}

/// Returns the ids from 1 to `count` that are not exactly once in a ledger, with how often they occur.
fn faults(ledger: impl Iterator<Item = u64>, count: u64) -> Vec<(u64, usize)> {
    let mut times = vec![0; count as usize + 1];
    for id in ledger {
        times[id as usize] += 1;
    }
    let faulty = |&(id, times): &(u64, usize)| times != usize::from(id > 0);
    (0..).zip(times).filter(faulty).take(20).collect()
}

fn assert_ledgers(ends: &[(u64, End)], log: &[(u64, u64)], count: u64) {
    for (tag, end) in ends {
        assert_eq!(end.body(), tag.to_string(), "the answer to this request");
    }
    assert_eq!(faults(ends.iter().map(|(tag, _)| *tag), count), [], "answered exactly once");
    assert_eq!(faults(log.iter().map(|&(id, _)| id), count), [], "processed exactly once");
}

#[test]
fn a_hundred_requests_a_connection_and_none_lost_or_repeated() {
    const REQUESTS: u64 = 20_000;
    let mut nginx = Nginx::start("budget");
    let config = HostConfig {
        connections: 4,
        depth: Depth::Fixed(32),
        queue_max: REQUESTS as usize,
        // Nothing is replayed on suspicion: every repeated request was reported as not processed.
        replays_max: 0,
        ..HostConfig::default()
    };
    let targets = targets(REQUESTS);
    // Half of them are POSTs, which may be repeated only if the server reports them as not processed.
    let asked: Vec<Request<'_>> = (0..)
        .zip(&targets)
        .map(|(index, target)| match index % 2 {
            0 => Request::get(target),
            _ => Request { pipelined: true, ..Request::post(target, b"") },
        })
        .collect();
    let notes = ask(&format!("http://{}", nginx.plain), config, &asked);
    let log = nginx.log(REQUESTS);
    assert_ledgers(&notes.ends, &log, REQUESTS);
    let mut connections: Vec<u64> = log.iter().map(|&(_, connection)| connection).collect();
    connections.sort_unstable();
    let most = connections.chunk_by(|a, b| a == b).map(<[u64]>::len).max();
    assert_eq!(most, Some(100), "the budget is used to the last request, and kept");
}

#[test]
fn tls_is_verified_and_carries_the_same() {
    const REQUESTS: u64 = 2000;
    let mut nginx = Nginx::start("tls");
    let tls = Some(Tls::with_roots(nginx.root.as_bytes()).unwrap());
    let config = HostConfig {
        connections: 2,
        depth: Depth::Fixed(32),
        addresses: vec![nginx.secure],
        tls,
        ..HostConfig::default()
    };
    let targets = targets(REQUESTS);
    let asked: Vec<Request<'_>> = targets.iter().map(|target| Request::get(target)).collect();
    let notes = ask("https://good.example", config.clone(), &asked);
    assert!(notes.ends.iter().all(|(tag, end)| end.body() == tag.to_string()));

    // By its address, which the certificate names too.
    let by_address = HostConfig { addresses: Vec::new(), ..config.clone() };
    let notes = ask(&format!("https://{}", nginx.secure), by_address, &asked[..1]);
    assert_eq!(notes.ends[0].1.body(), "1");

    // A name that the certificate lacks; a server without TLS; roots that did not sign the certificate.
    let plain = HostConfig { addresses: vec![nginx.plain], ..config.clone() };
    let strangers = HostConfig { tls: None, ..config.clone() };
    for (name, config) in
        [("bad.example", config), ("good.example", plain), ("good.example", strangers)]
    {
        let notes = ask(&format!("https://{name}"), config, &asked[..2]);
        for (_, end) in &notes.ends {
            let End::NotSent(error) = end else { panic!("{end:?}") };
            assert!(error.contains("TLS failed") && error.contains(name), "{error}");
        }
    }
    assert_eq!(nginx.log(REQUESTS + 1).iter().filter(|&&(id, _)| id == REQUESTS).count(), 1);
}
