//! `dunlin config` and `dunlin cluster` at an admin port that speaks TLS.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

const TOKEN: &str = "e27b9c51d04f4a6fa3c8b6d2f1907e54";

/// A server whose admin port wants a client certificate; it ends with the test.
struct Server {
    child: Child,
    admin: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// An address of this process alone.
fn address(port: u16) -> SocketAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 64 | high & 63, low, 200), port))
}

/// Writes an authority, and what it signed for the server and for an operator.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca.pem"), ca.pem()).unwrap();
    for (file, name) in [("server", address(1).ip().to_string()), ("operator", "operator".into())] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        std::fs::write(dir.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

fn start(dir: &Path) -> Server {
    let (client, admin) = (address(8000), address(8001));
    let ca = std::fs::read_to_string(dir.join("ca.pem")).unwrap();
    let file = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "[server]\nclient_addr = \"{client}\"\nadmin_addr = \"{admin}\"\n\
         admin_ingress = {{ tls = true, client_ca = \"\"\"\n{ca}\"\"\" }}\n\
         [tls.certificates.main]\nchain_file = {:?}\nkey_file = {:?}\n[admin]\ntoken = {TOKEN:?}\n",
        file("server.pem"),
        file("server.key")
    );
    std::fs::write(dir.join("dunlin.toml"), config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["serve", "--workers", "1", "--state"])
        .arg(dir.join("state"))
        .arg("--config")
        .arg(dir.join("dunlin.toml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(read > 0, "it starts");
    Server { child, admin }
}

fn dunlin(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(arguments)
        .env("DUNLIN_ADMIN_TOKEN", TOKEN)
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn an_operator_elsewhere_reads_and_changes_settings_over_mutual_tls() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    certificates(dir);
    let server = start(dir);
    let (plain, admin) = (server.admin.to_string(), format!("https://{}", server.admin));
    let at = ["--admin", &admin, "--ca", "ca.pem"];
    let own = ["--cert", "operator.pem", "--cert-key", "operator.key"];

    let key = "channel.without_namespace.presence";
    let set = dunlin(dir, &[&["config", "set", key, "true"][..], &at, &own].concat());
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let get = dunlin(dir, &[&["config", "get", key][..], &at, &own].concat());
    assert_eq!(String::from_utf8_lossy(&get.stdout).trim(), "true");
    // A document up to the end of the connection.
    let whole = dunlin(dir, &[&["config", "get", "--json"][..], &at, &own].concat());
    let document: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert!(document.to_string().contains("client_ca"), "{document}");
    let status = dunlin(dir, &[&["cluster", "status"][..], &at, &own].concat());
    assert!(String::from_utf8_lossy(&status.stdout).contains("not in a cluster"), "{status:?}");

    // What is missing is named.
    let without = ["config", "get", key];
    for (arguments, fix) in [
        (vec!["--admin", &plain], format!("write --admin {admin}")),
        (vec!["--admin", &admin], "--ca FILE".to_owned()),
        (at.to_vec(), "--cert FILE and --cert-key FILE".to_owned()),
        ([&at[..], &own[..2]].concat(), "give both --cert and --cert-key".to_owned()),
        (vec!["--admin", &admin, "--ca", "nothing.pem"], "cannot read --ca nothing.pem".to_owned()),
    ] {
        let output = dunlin(dir, &[&without[..], &arguments].concat());
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && reported.contains(&fix), "{arguments:?}: {reported}");
    }
    // A port without TLS.
    let clients = address(8000);
    let output = dunlin(
        dir,
        &[&without[..], &["--admin", &format!("https://{clients}"), "--ca", "ca.pem"]].concat(),
    );
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(reported.contains(&format!("write --admin http://{clients}")), "{reported}");
}
