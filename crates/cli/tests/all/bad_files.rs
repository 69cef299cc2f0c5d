//! One validation for all: `dunlin serve`, `dunlin config check`, a program that embeds the server, and the admin API say
//! the same of the same configuration.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::kit::{Served, TIMEOUT};
use dunlin_config::schema::{self, Kind, SchemaNode};
use dunlin_config::{Config, Pointer};
use dunlin_server::ValidConfig;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

/// Every how many files the program itself is started with one.
const STEP: usize = 8;

const REGEX: [&str; 4] = ["^[a-z+$", "(", "a{1000}{1000}", r"(a)\1"];
const CEL: [&str; 4] = ["user ==", "nobody == 1", "[1].map(x, x) == [1]", "channel.matches('a')"];
const PLACEHOLDERS: [&str; 4] = [
    "put openssl rand -hex 32 here",
    "${A_SECRET_OF_THE_APP}",
    "{{ .Values.secret }}",
    "<change-me-to-a-secret>",
];
const ADDRESS: [&str; 4] = ["", "redis.example", "redis.example:0", "no host:6379"];

/// A configuration that sets something of everything, and is valid.
fn valid(chain: &str, key: &str) -> Value {
    let secret = |name: &str| format!("{name}-0123456789abcdef");
    json!({
        "server": {"client_ingress": {"tls": true, "client_ca": chain}},
        "listeners": {"internal": {
            "addr": "127.0.0.1:8443", "ingress": {"tls": true, "client_ca": chain},
        }},
        "tls": {"certificates": {"a": {"chain": chain, "key": key}}},
        "admin": {"token": secret("admin"), "tokens": {"see": {"token": secret("see")}}},
        "api": {"keys": {"backend": secret("backend")}, "scopes": {"backend": {"methods": ["publish"]}}},
        "client": {
            "allowed_origins": ["https://example.com"],
            "token": {
                "hmac_secret": secret("hmac"), "hmac_secret_previous": secret("previous"),
                "keys": {"k1": secret("k1")}, "audience_regex": "^a", "issuer_regex": "^i",
                "jwks_public_endpoint": "https://idp.example/keys", "jwks_ca": chain,
            },
            "subscription_token": {"hmac_secret": secret("sub"), "audience_regex": "^a"},
            "proxy": {"connect": "backend"},
        },
        "channel": {
            "without_namespace": {"channel_regex": "^[a-z]+$", "subscribe_cel": "user != ''"},
            "namespaces": {"chat": {
                "channel_regex": "^[a-z]+$", "subscribe_cel": "user != ''", "publish_cel": "subscribed",
                "history_cel": "subscribed", "presence_cel": "subscribed", "history_size": 10,
                "history_ttl_ms": 1000,
            }},
        },
        "tenants": {"acme": {
            "api_keys": {"backend": secret("acme")}, "token_keys": {"acme-1": secret("acme-1")},
            "namespaces": {"chat": {"channel_regex": "^[a-z]+$", "subscribe_cel": "user != ''"}},
        }},
        "engines": {
            "main": {
                "type": "redis", "addresses": ["redis.example:6379"], "password": secret("redis"),
                "tls": true, "ca": chain,
            },
            "events": {"type": "nats", "addresses": ["nats.example:4222"], "user": "a", "password": secret("nats")},
        },
        "webhooks": {
            "upstreams": {"backend": {
                "tls": true, "ca": chain, "members": {"a": {"address": "backend.example:443"}},
            }},
            "hooks": {"audit": {
                "upstream": "backend", "path": "/events", "events": ["publish"], "secret": secret("hook"),
            }},
        },
        "programs": {"moderate": {
            "source": "return { publish = function() return true end }", "on_error": "deny",
        }},
        "proxies": {"backend": {
            "endpoint": "https://backend.example/connect", "ca": chain, "http_headers": ["Cookie"],
            "static_headers": {"Authorization": secret("Bearer")},
        }},
        "pusher": {"apps": {"shop": {
            "id": "1", "key": "app-key", "secret": secret("pusher"), "namespace": "chat",
        }}},
        "push": {"vapid": {"site": {"private_key": key, "subject": "mailto:ops@example.com"}}},
        "limits": {},
    })
}

/// A file with one thing wrong.
struct BadFile {
    what: String,
    document: Value,
}

fn bad_files(base: &Value, chain: &str) -> Vec<BadFile> {
    let mut files = Vec::new();
    let mut set = |pointer: &str, value: Value| {
        let mut document = base.clone();
        let place = document.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}"));
        *place = value.clone();
        let what =
            format!("{pointer} = {}", value.to_string().chars().take(60).collect::<String>());
        files.push(BadFile { what, document });
    };
    let mut leaves = Vec::new();
    each_leaf(schema::root(), base, "", &mut leaves);
    for (pointer, node) in &leaves {
        match &node.kind {
            Kind::Secret => PLACEHOLDERS.iter().for_each(|text| set(pointer, json!(text))),
            Kind::Choice(_) => set(pointer, json!("no such word")),
            Kind::Boolean | Kind::Integer { .. } => set(pointer, json!("a text")),
            Kind::List(_) => set(pointer, json!([7])),
            Kind::SocketAddress => set(pointer, json!("localhost")),
            _ => set(pointer, json!(true)),
        }
        let key = pointer.rsplit('/').next().unwrap();
        match key {
            "ca" | "client_ca" | "jwks_ca" | "chain" | "private_key" => {
                let cut = &chain[..chain.len() / 2];
                let garbled = chain.replacen("MII", "M*I", 1);
                let pem = ["", "no PEM", cut, &garbled];
                pem.iter().for_each(|text| set(pointer, json!(text)));
            }
            _ if key.ends_with("_regex") => REGEX.iter().for_each(|bad| set(pointer, json!(bad))),
            _ if key.ends_with("_cel") => CEL.iter().for_each(|bad| set(pointer, json!(bad))),
            "addresses" => ADDRESS.iter().for_each(|bad| set(pointer, json!([bad]))),
            "address" => ADDRESS.iter().for_each(|bad| set(pointer, json!(bad))),
            "hmac_secret" | "secret" | "token" => set(pointer, json!("short")),
            "upstream" | "connect" | "namespace" => set(pointer, json!("no-such-one")),
            "endpoint" => {
                for bad in ["", "backend", "ftp://backend.example/", "https://-backend.example/"] {
                    set(pointer, json!(bad));
                }
            }
            _ => {}
        }
    }
    // What is unknown, clashes, or needs something that is not there.
    set("/client/token", json!({"hmac_secrte": "a-key-0123456789abcdef"}));
    set("/client/allowed_origins", json!(["example.com"]));
    set("/listeners/internal/addr", json!("127.0.0.1:8000"));
    set("/listeners/internal/addr", json!("0.0.0.0:8001"));
    set("/listeners/internal/addr", json!("127.0.0.1:0"));
    set("/server", json!({"client_addr": "0.0.0.0:8001"}));
    set("/server", json!({"client_addr": "127.0.0.1:9000", "admin_addr": "127.0.0.1:9000"}));
    set("/tls", json!({}));
    set("/api/scopes/backend/methods", json!(["no_such_method"]));
    set("/pusher/apps/shop", json!({"id": "a b", "key": "k"}));
    set("/pusher/apps/shop/id", json!("a/b"));
    set("/channel/namespaces/chat", json!({"recover": true}));
    set("/limits", json!({"bus_slots": 1000}));
    files
}

/// Lists the keys that a document sets, with their schema.
fn each_leaf<'s>(
    node: &'s SchemaNode,
    value: &Value,
    pointer: &str,
    leaves: &mut Vec<(String, &'s SchemaNode)>,
) {
    match (&node.kind, value) {
        (Kind::Table(_) | Kind::Map(_), Value::Object(object)) => {
            for (key, value) in object {
                let node = node.below(key).unwrap_or_else(|| panic!("no {pointer}/{key}"));
                each_leaf(node, value, &format!("{pointer}/{key}"), leaves);
            }
        }
        _ => leaves.push((pointer.to_owned(), node)),
    }
}

/// The errors of a configuration as a program with the library sees them: pointer and message of each.
fn of_library(document: &Value) -> Vec<(String, String)> {
    let errors = match Config::from_json(document.clone()) {
        Ok(config) => ValidConfig::new(config).map(drop),
        Err(errors) => Err(errors),
    };
    let errors = errors.expect_err("it is bad");
    sorted(errors.iter().map(|error| (error.path.pointer(), error.message.clone())))
}

/// The errors with which the admin API refuses to make it the configuration.
fn of_api(served: &Served, document: &Value) -> Vec<(String, String)> {
    let (status, answer) = served.call("PUT", "/config?dry_run=1", &document.to_string()).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(matches!(status, 400 | 409 | 422), "{status}: {answer}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let errors = answer["errors"].as_array().unwrap().iter();
    sorted(errors.map(|error| (text(&error["pointer"]), text(&error["detail"]))))
}

fn sorted(errors: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut errors: Vec<_> = errors.collect();
    errors.sort();
    errors
}

/// Runs the program until it ends; one that serves does not.
fn run(arguments: &[&str], file: &Path) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(arguments)
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("`dunlin {}` serves this file", arguments.join(" "));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let mut stderr = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    Output { status, stdout: Vec::new(), stderr }
}

#[test]
fn two_hundred_bad_files_are_refused_alike_by_serve_check_api_and_library() {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    let base = valid(&chain, &key.serialize_pem());
    if let Err(errors) = ValidConfig::new(Config::from_json(base.clone()).unwrap()) {
        panic!("{errors}");
    }
    let files = bad_files(&base, &chain);
    assert!(files.len() >= 200, "{}", files.len());

    let state = tempfile::tempdir().unwrap();
    let served = Served::start(state.path(), "");
    let file = state.path().join("bad.toml");
    for (index, BadFile { what, document }) in files.iter().enumerate() {
        let errors = of_library(document);
        assert!(!errors.is_empty(), "{what}");
        assert_eq!(of_api(&served, document), errors, "{what}");
        if index % STEP != 0 {
            continue;
        }
        std::fs::write(&file, toml::to_string(document).unwrap()).unwrap();
        let check = run(&["config", "check"], &file);
        let serve = run(&["serve", "--config"], &file);
        let text = String::from_utf8(check.stderr).unwrap();
        assert!(!check.status.success() && !serve.status.success(), "{what}: {text}");
        assert_eq!(String::from_utf8(serve.stderr).unwrap(), text, "{what}");
        for (pointer, message) in &errors {
            let path = Pointer::parse(pointer).unwrap().steps().join(".");
            assert!(
                text.contains(&format!("{path}: {message}")),
                "{what}: {path}: {message}\n{text}"
            );
        }
    }
}
