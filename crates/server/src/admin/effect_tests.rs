//! Every key of the schema is changed on a live server: what it declares is brought about, and nothing else.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dunlin_config::schema::{self, Kind, SchemaNode};
use dunlin_config::{Config, Effect, Effects};
use serde_json::{Value, json};

use super::testkit::{Subscriber, TIMEOUT, TestResponse, TestServer, development, receive};

/// The name of the one entry of each map.
const ENTRY: &str = "entry";

/// Effects that nobody brings about: the value is read where it is used.
const UNSEEN: Effects = Effects::of(&[Effect::Read, Effect::NewConnections, Effect::NextStart]);
/// Effects that end connections. One that only receives ends when its channel moves to another engine.
const ENDS_CONNECTIONS: Effects = Effects::of(&[
    Effect::ConnectionTokens,
    Effect::Anonymous,
    Effect::EngineOfChannels,
    Effect::PusherApps,
    Effect::Tenants,
]);
/// Effects that follow from others, beside those that keys declare.
const FOLLOW: Effects = Effects::of(&[Effect::Tenants, Effect::SubscriptionTokens]);
/// Effects that only some values of their keys have.
const OF_SOME_VALUES: Effects =
    Effects::of(&[Effect::ExpressionData, Effect::SubscriptionTokens, Effect::Permissions]);

#[test]
fn key_changed_on_live_server_brings_about_what_it_declares() {
    let mut test = Test::start();
    let mut keys = Vec::new();
    each_key(schema::root(), &mut Vec::new(), &mut keys);
    let seen: Effects = keys.iter().fold(Effects::default(), |mut all, key| {
        all.insert(test.change(key));
        all
    });
    assert!(
        test.faults.is_empty(),
        "{} of {} keys:\n{}",
        test.faults.len(),
        keys.len(),
        test.faults.join("\n")
    );
    let missing: Vec<_> = Effect::ALL
        .iter()
        .filter(|effect| !seen.contains(**effect) && !UNSEEN.contains(**effect))
        .collect();
    assert!(missing.is_empty(), "no key has brought about {missing:?}");
}

/// A server with one entry in each map, and a client.
struct Test {
    server: TestServer,
    base: Value,
    data: Value,
    client: Subscriber,
    faults: Vec<String>,
}

impl Test {
    fn start() -> Test {
        let mut base = serde_json::to_value(development()).unwrap();
        let data = data();
        merge(&mut base, &data["entries"]);
        let config = Config::from_json(base).unwrap();
        // With every default, so that any other value is a change.
        let base = serde_json::to_value(&config).unwrap();
        let server = TestServer::begin(2, config, None);
        let client = Subscriber::at(server.clients, "a", "");
        let mut test = Test { server, base, data, client, faults: Vec::new() };
        test.restore();
        test
    }

    /// Changes a key, and takes the change back. Returns what both have brought about.
    fn change(&mut self, key: &[String]) -> Effects {
        let steps = || key.iter().map(String::as_str);
        let pointer = format!("/{}", key.join("/"));
        let (node, declared) = (find(key), schema::root().effects_at(steps()));
        let mut refusal = String::new();
        let contexts = self.data["contexts"].as_array().cloned().unwrap_or_default();
        for context in std::iter::once(json!({})).chain(contexts) {
            let mut settings = self.base.clone();
            merge(&mut settings, &context);
            if !self.set(&settings) {
                continue;
            }
            let present = settings.pointer(&pointer).cloned().unwrap_or_default();
            for value in self.values(&pointer, node, &present) {
                let seen = self.effects();
                let answer = self.call("PUT", key, &value);
                if answer.status != 200 {
                    refusal = answer.body;
                    continue;
                }
                let mut both = self.since(&seen);
                let mut allowed = declared;
                allowed.insert(FOLLOW);
                self.expect(&pointer, "also", &names(both, allowed));
                self.expect_client(&pointer, both);
                let seen = self.effects();
                // Some entries are refused without any key: the whole is restored below.
                let reverted = self.call("PUT", key, &present).status == 200;
                if !reverted {
                    self.restore();
                }
                both.insert(self.since(&seen));
                self.expect_client(&pointer, both);
                both.set(Effect::Read, true);
                let mut found = both;
                found.insert(UNSEEN);
                found.insert(OF_SOME_VALUES);
                self.expect(&pointer, "not", &names(declared, found));
                self.restore();
                return both;
            }
        }
        let unchanged = self.data["unchanged"].as_array().into_iter().flatten();
        let is_exempt = unchanged.filter_map(Value::as_str).any(|end| pointer.ends_with(end))
            || refusal.contains("a namespace of a tenant does not have it");
        if !is_exempt {
            self.faults.push(format!("{pointer}: no value is accepted: {refusal}"));
        }
        self.restore();
        Effects::default()
    }

    fn expect(&mut self, pointer: &str, what: &str, names: &[&str]) {
        if !names.is_empty() {
            self.faults.push(format!("{pointer}: {what} {names:?}"));
        }
    }

    /// The client is still connected, unless an effect may have ended it.
    fn expect_client(&mut self, pointer: &str, effects: Effects) {
        if !self.client.is_open() && !effects.intersects(ENDS_CONNECTIONS) {
            self.faults.push(format!("{pointer}: the connection was closed"));
        }
    }

    /// Returns to the settings of the start, and to a connected client.
    fn restore(&mut self) {
        let base = self.base.clone();
        assert!(self.set(&base), "the settings of the start are accepted");
    }

    /// Sets all settings, and connects the client anew if that has closed it.
    fn set(&mut self, settings: &Value) -> bool {
        if self.call("PUT", &[], settings).status != 200 {
            return false;
        }
        if !self.client.is_open() {
            let address = settings["server"]["client_addr"].as_str().unwrap().parse().unwrap();
            let boot = TcpStream::connect(self.server.clients).map(|_| self.server.clients);
            // In other settings the channel's engine may be out of reach.
            let channels: &[&str] = if *settings == self.base { &["a"] } else { &[] };
            self.client = Subscriber::to(boot.unwrap_or(address), channels, "");
        }
        true
    }

    /// Returns values to change a key to, of which the first that fits is taken.
    fn values(&self, pointer: &str, node: &SchemaNode, present: &Value) -> Vec<Value> {
        let formed = self.data["values"].as_object().into_iter().flatten();
        let mut values: Vec<Value> = formed
            .filter(|(end, _)| pointer.ends_with(&***end))
            .flat_map(|(_, values)| values.as_array().cloned().unwrap_or_default())
            .collect();
        values.extend(match &node.kind {
            Kind::Boolean => vec![json!(true), json!(false)],
            Kind::Integer { min, max } => {
                let at = present.as_i64().unwrap_or(*min);
                [at + 1, at - 1, at * 2, at / 2, *min, *max].into_iter().map(Value::from).collect()
            }
            Kind::Choice(words) => words.iter().map(|(word, _)| json!(word)).collect(),
            Kind::SocketAddress => vec![json!(free_addr().to_string())],
            Kind::Pattern => vec![json!("other-*")],
            Kind::Secret => vec![json!("another secret of enough bytes, 0123456789")],
            Kind::List(element) => match &element.kind {
                Kind::Choice(words) => words.iter().map(|(word, _)| json!([word])).collect(),
                _ => vec![json!(["other"]), json!([])],
            },
            Kind::Text => vec![json!("other"), json!(ENTRY), Value::Null],
            Kind::Table(_) | Kind::Map(_) => Vec::new(),
        });
        values.retain(|value| value != present);
        values
    }

    fn effects(&self) -> Vec<u64> {
        Effect::ALL.iter().map(|effect| self.server.state.effects.get(*effect)).collect()
    }

    fn since(&self, before: &[u64]) -> Effects {
        let mut effects = Effects::default();
        for (effect, (before, now)) in Effect::ALL.iter().zip(before.iter().zip(self.effects())) {
            effects.set(*effect, now > *before);
        }
        effects
    }

    /// Calls the operator's socket, which no change closes, and waits until the workers have adopted the settings.
    fn call(&self, method: &str, key: &[String], body: &Value) -> TestResponse {
        let mut stream = UnixStream::connect(self.server.socket()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (path, body) =
            (key.iter().map(|step| format!("/{step}")).collect::<String>(), body.to_string());
        write!(
            stream,
            "{method} /config{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let answer = receive(&mut stream);
        self.server.wait_until_adopted();
        answer
    }
}

/// Returns the names of the effects that `of` has and `without` has not.
fn names(of: Effects, without: Effects) -> Vec<&'static str> {
    of.iter().filter(|effect| !without.contains(*effect)).map(Effect::name).collect()
}

fn find(key: &[String]) -> &'static SchemaNode {
    key.iter().fold(schema::root(), |node, step| node.below(step).expect("it is in the schema"))
}

fn each_key(node: &SchemaNode, steps: &mut Vec<String>, keys: &mut Vec<Vec<String>>) {
    // No two keys of tokens have one name.
    let is_tenants = steps.last().is_some_and(|step| step == "token_keys");
    let entry = if is_tenants { "own" } else { ENTRY };
    let mut below = |key: &str, node: &SchemaNode| {
        steps.push(key.to_owned());
        each_key(node, steps, keys);
        steps.pop();
    };
    match &node.kind {
        Kind::Table(table) => table.iter().for_each(|(key, node)| below(key, node)),
        Kind::Map(node) => below(entry, node),
        _ => keys.push(steps.clone()),
    }
}

/// Sets what a patch names, in the form of a merge patch.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert_with(|| json!({})), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Settings with an entry in each map, settings in which keys may be changed that otherwise may not, and values of the
/// keys whose texts have a form.
fn data() -> Value {
    let text = std::fs::read_to_string("tests/data/live_keys.json").unwrap();
    let mut data = serde_json::from_str(&text).unwrap();
    let directory = tempfile::tempdir().unwrap().keep();
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().expect("a path of text").to_owned()
    };
    let pair = rcgen::KeyPair::generate().unwrap();
    let certificate = |name: &str| {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.self_signed(&pair).unwrap().pem()
    };
    let (one, other) = (certificate("one.example.com"), certificate("other.example.com"));
    let key = pair.serialize_pem();
    let keys: Value =
        serde_json::from_str(include_str!("../../../access/src/auth/tests/tokens.json")).unwrap();
    let fcm = include_str!("../../../push/tests/data/service-account.json");
    let p12 = include_bytes!("../../../push/tests/certificates/valid.p12");
    let seed = "SUAFOI4M5WPR57IPS36SGGJM3K7WGC2SW5MAIBBJXGQ27W2IPNRHTOUKT4";
    fill_in(&mut data, &|name| match name {
        "address" => free_addr().to_string(),
        "certificate" => one.clone(),
        "certificate_again" => other.clone(),
        "chain_file" => file("one.pem", &one),
        "chain_file_again" => file("other.pem", &other),
        "key" => key.clone(),
        "key_again" => format!("{key}\n"),
        "key_file" => file("key.pem", &key),
        "key_file_again" => file("key-again.pem", &key),
        "directory" | "directory_again" => {
            directory.join(name).to_str().expect("a path of text").to_owned()
        }
        "seed" => seed.to_owned(),
        "seed_file" => file("seed", seed),
        "apns" => include_str!("../../tests/data/apns-key.p8").to_owned(),
        "apns_again" => include_str!("../../tests/data/apns-key-2.p8").to_owned(),
        "p12" => BASE64_STANDARD.encode(p12),
        "pem" => include_str!("../../../push/tests/certificates/valid.pem").to_owned(),
        "fcm" => fcm.to_owned(),
        "fcm_again" => format!("{fcm}\n"),
        name => keys["keys"][name].as_str().expect("a key of the tests").to_owned(),
    });
    data
}

/// Replaces each text that begins with a dollar sign.
fn fill_in(value: &mut Value, text_of: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix('$') {
                *text = text_of(name);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| fill_in(value, text_of)),
        Value::Object(object) => object.values_mut().for_each(|value| fill_in(value, text_of)),
        _ => {}
    }
}
