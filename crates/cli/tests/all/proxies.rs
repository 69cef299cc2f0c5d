//! What docs/operating/proxy.md and `packaging/cluster` set for nginx and HAProxy, run as it stands there: every path for clients
//! reaches the server, upgrades do, and nothing is idle for longer than the proxy waits.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{env, fs, thread};

use crate::kit::{Addresses, Served, TIMEOUT};
use dunlin_config::Config;

const APP: [(&str, &str); 4] = [
    ("DUNLIN_CHANNEL_NAMESPACES_SHOP_PRESENCE", "false"),
    ("DUNLIN_PUSHER_APPS_SHOP_ID", "3"),
    ("DUNLIN_PUSHER_APPS_SHOP_KEY", "shop-key"),
    ("DUNLIN_PUSHER_APPS_SHOP_SECRET", "the shop's own secret"),
];

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The block of a language in a page.
fn block(page: &str, language: &str) -> String {
    let text = repository(page);
    let (_, after) = text.split_once(&format!("```{language}\n")).expect("it has the block");
    after.split_once("```").unwrap().0.to_owned()
}

/// Replaces what names the reader's machine. Each must be there, so that the test notices a change of the page.
fn localized(text: &str, replacements: &[(&str, &str)]) -> String {
    replacements.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in it:\n{text}");
        text.replace(from, to)
    })
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

struct Proxy {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    /// Starts a proxy whose settings `settings` writes, given its folder.
    fn start(program: &str, port: u16, settings: impl FnOnce(&Path) -> String) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let file: PathBuf = folder.path().join("settings");
        fs::write(&file, settings(folder.path())).unwrap();
        let arguments: &[&str] = if program == "haproxy" { &["-db", "-f"] } else { &["-c"] };
        let child = Command::new(program)
            .args(arguments)
            .arg(&file)
            .env("PATH", format!("{}:/usr/sbin", env::var("PATH").unwrap_or_default()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}; scripts/packages installs it"));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < TIMEOUT, "{program} does not serve");
            thread::sleep(std::time::Duration::from_millis(10));
        }
        Proxy { child, address, _folder: folder }
    }
}

/// What nginx needs around servers to run in a folder.
fn nginx(folder: &Path, http: &str) -> String {
    let at = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind}; "))
        .concat();
    format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 256; }}
         http {{ {temporary} access_log off; {http} }}"
    )
}

fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // Streams and upgraded connections stay open.
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part).unwrap() {
            0 => break,
            read => answer.extend_from_slice(&part[..read]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The paths of clients and of Pusher's backends that a server names itself.
fn paths(server: &Served) -> Vec<String> {
    let mut stream = TcpStream::connect(server.at.client).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, named) = answer.split_once("the paths are ").expect("it names them");
    let path = |word: &str| {
        let word =
            word.trim_matches(|char: char| !(char.is_alphanumeric() || "/_{}".contains(char)));
        let path =
            word.replace("{key}", "shop-key").replace("{id}", "3").replace("{call}", "channels");
        (path.starts_with('/') && !path.starts_with("/api/")).then_some(path)
    };
    let paths: Vec<_> = named.split(',').filter_map(path).collect();
    assert!(paths.len() >= 10 && paths.contains(&"/apps/3/channels".to_owned()), "{paths:?}");
    paths
}

/// Asks for every path through the proxy, and directly: the answers begin alike.
fn passes_every_path(server: &Served, proxy: &Proxy) {
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for path in paths(server) {
        let (query, headers) = match &*path {
            "/connection/websocket" => ("", upgrade),
            "/connection/uni_websocket" => ("?cf_connect=%7B%7D", upgrade),
            "/app/shop-key" => ("?protocol=7", upgrade),
            "/connection/uni_sse" => ("?cf_connect=%7B%22subs%22%3A%7B%22a%22%3A%7B%7D%7D%7D", ""),
            _ => ("", ""),
        };
        let request = format!("GET {path}{query} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let status = |address| {
            let answer = answer(address, &request);
            answer.split(' ').nth(1).unwrap_or_else(|| panic!("{path}: {answer:?}")).to_owned()
        };
        let direct = status(server.at.client);
        assert_ne!(direct, "404", "{path} is not asked for as it should be");
        assert_eq!(status(proxy.address), direct, "{path}");
        assert_eq!(direct == "101", !headers.is_empty(), "{path}: {direct}");
    }
    let private = answer(proxy.address, "GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!private.contains(" 200 "), "the API is for backends: {private}");
}

fn server(scratch: &Path) -> Served {
    let app = APP.into_iter().chain([("DUNLIN_PUSHER_APPS_SHOP_NAMESPACE", "shop")]);
    let app: Vec<_> = app.collect();
    Served::begin(scratch, Addresses::new(), "", &app).expect("it starts")
}

#[test]
fn the_nginx_of_the_documentation_passes_every_path_of_clients() {
    let scratch = tempfile::tempdir().unwrap();
    let (server, port) = (server(scratch.path()), free_port());
    let (listen, to) = (format!("listen 127.0.0.1:{port};"), server.at.client.to_string());
    let documented = block("docs/operating/proxy.md", "nginx");
    let settings = localized(&documented, &[("listen 443 ssl;", &listen), ("127.0.0.1:8000", &to)]);
    let proxy = Proxy::start("nginx", port, |folder| nginx(folder, &settings));
    passes_every_path(&server, &proxy);
}

#[test]
fn the_haproxy_of_the_documentation_passes_every_path_of_clients() {
    let scratch = tempfile::tempdir().unwrap();
    let (server, port) = (server(scratch.path()), free_port());
    let (bind, to) = (format!("bind 127.0.0.1:{port}"), server.at.client.to_string());
    let documented = block("docs/operating/proxy.md", "haproxy");
    let secure = "bind :443 ssl crt /etc/haproxy/push.example.com.pem";
    let settings = localized(&documented, &[(secure, &bind), ("127.0.0.1:8000", &to)]);
    let proxy = Proxy::start("haproxy", port, |_| settings);
    passes_every_path(&server, &proxy);
}

#[test]
fn the_nginx_of_the_cluster_passes_every_path_of_clients() {
    let scratch = tempfile::tempdir().unwrap();
    let (server, port) = (server(scratch.path()), free_port());
    let (listen, to) = (format!("listen 127.0.0.1:{port};"), server.at.client.to_string());
    let api = format!("listen 127.0.0.1:{};", free_port());
    let written = repository("packaging/cluster/nginx.conf");
    let (_, http) = written.split_once("http {").unwrap();
    let http = http.trim_end().strip_suffix('}').unwrap();
    let nodes = [("node1:8000", &*to), ("node2:8000", &to), ("node3:8000", &to)];
    let ports = [("listen 8000;", &*listen), ("listen 8010;", &api), ("access_log off;", "")];
    let settings = localized(http, &[&nodes[..], &ports].concat());
    let proxy = Proxy::start("nginx", port, |folder| nginx(folder, &settings));
    passes_every_path(&server, &proxy);
}

/// Regression test: the server of the Pusher protocol was silent for 120 s, and proxies cut connections after 60.
#[test]
fn no_client_is_silent_for_as_long_as_a_proxy_waits() {
    /// What nginx, HAProxy's examples and the load balancers of clouds are set to.
    const USUAL_MS: u64 = 60_000;
    let defaults = Config::default();
    let silent_ms = [
        defaults.client.ping_interval_ms,
        defaults.pusher.activity_timeout_ms,
        defaults.client.long_poll.timeout_ms_max,
    ];
    assert!(silent_ms.iter().all(|&ms| ms < USUAL_MS), "{silent_ms:?}");
    let pages = [
        block("docs/operating/proxy.md", "nginx"),
        block("docs/operating/proxy.md", "haproxy"),
        repository("packaging/cluster/nginx.conf"),
    ];
    for page in pages {
        let seconds = page.lines().filter_map(|line| {
            let line = line.trim().trim_end_matches(';');
            let is_read =
                ["proxy_read_timeout", "timeout client", "timeout server", "timeout tunnel"];
            let rest = is_read.iter().find_map(|name| line.strip_prefix(name))?;
            rest.trim().strip_suffix('s')?.parse::<u64>().ok()
        });
        let seconds: Vec<_> = seconds.collect();
        let all = silent_ms.iter().all(|&ms| seconds.iter().all(|&of| of * 1000 > ms));
        assert!(all && !seconds.is_empty(), "{seconds:?}:\n{page}");
    }
}
