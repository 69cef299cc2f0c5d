//! Logins by nkeys, and by JWTs that an operator and an account vouch for, at real servers of NATS.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_engine::nats::{Credentials, CredentialsError, Login, NatsConfig};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::nats_server::NatsServer;
use crate::nodes::{Fleet, Node};

const OPERATOR: u8 = 14 << 3;
const ACCOUNT: u8 = 0;
const USER: u8 = 20 << 3;

/// An nkey of any kind.
struct Key {
    kind: u8,
    seed: [u8; 32],
    pair: Ed25519KeyPair,
}

impl Key {
    fn new(kind: u8, number: u8) -> Key {
        let seed = [number; 32];
        Key { kind, seed, pair: Ed25519KeyPair::from_seed_unchecked(&seed).unwrap() }
    }

    fn public(&self) -> String {
        encoded(&[self.kind], self.pair.public_key().as_ref())
    }

    fn seed(&self) -> String {
        encoded(&[18 << 3 | self.kind >> 5, self.kind << 3], &self.seed)
    }

    /// A JWT about somebody, that this key vouches for.
    fn issue(&self, subject: &str, expires_s: u64, nats: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
        let mut claims = json!({
            "jti": "1", "iat": 1_600_000_000, "iss": self.public(), "sub": subject, "name": "test",
            "nats": nats,
        });
        if expires_s > 0 {
            claims["exp"] = expires_s.into();
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// Base32 of a key with its checksum, bit by bit.
fn encoded(kind: &[u8], key: &[u8]) -> String {
    let mut bytes = [kind, key].concat();
    let mut crc = 0_u16;
    for byte in &bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    bytes.extend_from_slice(&crc.to_le_bytes());
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let letter = |five: &[u8]| {
        let value = five.iter().fold(0, |value, bit| value << 1 | bit) << (5 - five.len());
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from(value)])
    };
    bits.chunks(5).map(letter).collect()
}

fn state(node: &Node) -> &'static str {
    node.engine.shards().next().unwrap().state.name()
}

fn by(config: NatsConfig, credentials: Credentials) -> NatsConfig {
    let login = Login { credentials: Some(credentials), ..Login::default() };
    NatsConfig { login, ..config }
}

#[track_caller]
fn until_state(config: &NatsConfig, name: &str) {
    let mut fleet = Fleet::starting(config, 1, None);
    fleet.until(name, |nodes| state(&nodes[0]) == name);
    let shard = fleet.nodes.0[0].engine.shards().next().unwrap();
    assert!(!shard.state.fix().is_empty() && !shard.detail.is_empty(), "{shard:?}");
}

#[test]
fn an_nkey_signs_what_the_server_asks_for() {
    let user = Key::new(USER, 1);
    let users = format!("authorization {{ users = [{{ nkey: {} }}] }}", user.public());
    let server = NatsServer::start_with(&["-js"], &users);
    let key = Credentials::from_seed(&user.seed()).unwrap();
    assert_eq!(key.public_key(), user.public());
    let mut fleet = Fleet::new(&by(server.config(), key.clone()), 2);
    fleet.publish(1, "a", "x");
    assert_eq!(fleet.publish(0, "a", "y").offset, 2);
    // Each connection has a nonce of its own.
    fleet.cut(0);
    fleet.publish(0, "a", "y");

    let other = Credentials::from_seed(&Key::new(USER, 2).seed()).unwrap();
    until_state(&by(server.config(), other), "wrong_password");
    until_state(&server.config(), "wrong_password");
    let plain = NatsServer::start(&["-js"]);
    until_state(&by(plain.config(), key), "no_nonce");
}

/// A server that trusts an operator, and the key of an account there.
fn trusting() -> (NatsServer, Key) {
    let (operator, account, system) =
        (Key::new(OPERATOR, 1), Key::new(ACCOUNT, 2), Key::new(ACCOUNT, 3));
    let of_operator = json!({ "type": "operator", "version": 2 });
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let mut of_account = json!({
        "type": "account", "version": 2, "limits": limits,
        "revocations": { Key::new(USER, 9).public(): 1_900_000_000 },
    });
    let of_dunlin = operator.issue(&account.public(), 0, &of_account);
    of_account["limits"]["mem_storage"] = 0.into();
    of_account["limits"]["disk_storage"] = 0.into();
    let of_system = operator.issue(&system.public(), 0, &of_account);
    let config = format!(
        "operator: {}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {}: {of_dunlin}, {system}: {of_system} }}",
        operator.issue(&operator.public(), 0, &of_operator),
        account.public(),
        system = system.public(),
    );
    (NatsServer::start_with(&["-js"], &config), account)
}

/// The text of a `.creds` file.
fn creds(account: &Key, user: &Key, expires_s: u64) -> String {
    let of_user = json!({
        "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {},
    });
    let jwt = account.issue(&user.public(), expires_s, &of_user);
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         ************************* IMPORTANT *************************\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed(),
    )
}

#[test]
fn credentials_are_those_that_an_account_vouches_for() {
    let (server, account) = trusting();
    let user = Key::new(USER, 1);
    let text = creds(&account, &user, 4_000_000_000);
    let credentials = Credentials::from_creds(&text).unwrap();
    let config = by(server.config(), credentials);
    assert!(!format!("{config:?}").contains(&user.seed()));
    // One behind the other: nats-server 2.9.10 makes of an account that two connections ask for first at once two.
    Fleet::new(&config, 1).publish(0, "a", "x");
    assert_eq!(Fleet::new(&config, 1).publish(0, "a", "y").offset, 2);

    // Of an account that nobody vouches for; over; revoked; the key alone.
    let refused = |text: &str| by(server.config(), Credentials::from_creds(text).unwrap());
    until_state(&refused(&creds(&Key::new(ACCOUNT, 7), &user, 0)), "wrong_password");
    until_state(&refused(&creds(&account, &user, 1_650_000_000)), "credentials_expired");
    until_state(&refused(&creds(&account, &Key::new(USER, 9), 0)), "wrong_password");
    let alone = Credentials::from_seed(&user.seed()).unwrap();
    until_state(&by(server.config(), alone), "wrong_password");
}

/// The file was replaced: what is read of it is the login of the next connection. One that is broken is a refusal until then.
#[test]
fn credentials_that_are_read_anew_are_used() {
    let (server, account) = trusting();
    let over = creds(&account, &Key::new(USER, 1), 1_650_000_000);
    let config = by(server.config(), Credentials::from_creds(&over).unwrap());
    let mut fleet = Fleet::starting(&config, 1, None);
    fleet.until("refused", |nodes| state(&nodes[0]) == "credentials_expired");
    fleet.read_credentials(0, Err(CredentialsError::Unreadable("no such file".to_owned())));
    assert_eq!(state(&fleet.nodes.0[0]), "bad_credentials");
    let renewed = creds(&account, &Key::new(USER, 1), 4_000_000_000);
    fleet.read_credentials(0, Credentials::from_creds(&renewed));
    fleet.until_ready();
    fleet.publish(0, "a", "x");
}

/// A server ends the connection when the JWT is over; the next is made by the one that has taken its place.
#[test]
fn a_connection_outlives_its_jwt_by_the_next_one() {
    let (server, account) = trusting();
    let user = Key::new(USER, 1);
    let now_s =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let brief = Credentials::from_creds(&creds(&account, &user, now_s + 3)).unwrap();
    let mut fleet = Fleet::new(&by(server.config(), brief), 1);
    fleet.publish(0, "a", "x");
    fleet.until("over", |nodes| state(&nodes[0]) == "credentials_expired");
    let next = creds(&account, &user, 4_000_000_000);
    fleet.read_credentials(0, Credentials::from_creds(&next));
    fleet.until_ready();
    assert_eq!(fleet.publish(0, "a", "y").offset, 2);
}
