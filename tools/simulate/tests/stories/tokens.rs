//! Tests of authentication: provider tokens and client certificates.

use dunlin_simulate::apns::{Behaviour, Config, Environment, ProviderKey, Reason, Simulator};
use p256::pkcs8::{EncodePrivateKey, EncodePublicKey};

use crate::sender::{Sender, TOKEN, key, now_s, provider_token, scenario};

fn provider_key(seed: u8, key_id: &str, environment: Option<Environment>) -> ProviderKey {
    let secret = p256::SecretKey::from(key(seed));
    // Apple issues the private key as `.p8`; a public key is accepted too.
    let pem = if seed == 1 {
        secret.to_pkcs8_pem(p256::pkcs8::LineEnding::LF).unwrap().to_string()
    } else {
        secret.public_key().to_public_key_pem(p256::pkcs8::LineEnding::LF).unwrap()
    };
    ProviderKey {
        key_id: key_id.into(),
        team_id: "DEF123GHIJ".into(),
        pem,
        environment,
        topics: vec!["com.example.app".into()],
    }
}

#[test]
fn with_keys_only_their_tokens_are_taken() {
    let keys = vec![
        provider_key(1, "ABC123DEFG", None),
        provider_key(2, "PRODUCTION", Some(Environment::Production)),
    ];
    let simulator = Simulator::start(Config { tls: false, keys, ..Config::default() }).unwrap();
    let now = now_s();
    let sign = |seed: u8, key_id: &str, team: &str, issued_s: u64| {
        format!("bearer {}", provider_token(&key(seed), key_id, team, issued_s))
    };
    let cases = [
        (sign(1, "ABC123DEFG", "DEF123GHIJ", now), 200, ""),
        (sign(3, "ABC123DEFG", "DEF123GHIJ", now), 403, "InvalidProviderToken"),
        (sign(1, "ABC123DEFX", "DEF123GHIJ", now), 403, "InvalidProviderToken"),
        (sign(1, "ABC123DEFG", "DEF123GHIX", now), 403, "InvalidProviderToken"),
        (sign(1, "ABC123DEFG", "DEF123GHIJ", now - 3_700), 403, "ExpiredProviderToken"),
        (sign(1, "ABC123DEFG", "DEF123GHIJ", now + 7_200), 403, "InvalidProviderToken"),
        (sign(2, "PRODUCTION", "DEF123GHIJ", now), 403, "BadEnvironmentKeyIdInToken"),
    ];
    scenario(async {
        for (authorization, status, reason) in &cases {
            let mut sender = Sender::connect(&simulator).await;
            let answer = sender.push(TOKEN, &[("authorization", authorization)]).await;
            assert_eq!(answer.status, *status, "{}", answer.body);
            if *status != 200 {
                assert_eq!(answer.reason(), *reason);
            }
        }
        let mut sender = Sender::connect(&simulator).await;
        let other = sender.push(TOKEN, &[("apns-topic", "com.example.other")]).await;
        assert_eq!(other.reason(), "TopicDisallowed");
        let extension = sender.push(TOKEN, &[("apns-topic", "com.example.app.voip")]).await;
        assert_eq!(extension.status, 200, "{}", extension.body);

        let spelling = Reason::BadEnvironmentKeyInToken;
        let behaviour = Behaviour { environment_reason: spelling, ..simulator.behaviour() };
        simulator.set_behaviour(behaviour).unwrap();
        let mut sender = Sender::connect(&simulator).await;
        let answer = sender.push(TOKEN, &[("authorization", &cases[6].0)]).await;
        assert_eq!(answer.reason(), "BadEnvironmentKeyInToken");
    });
}

#[test]
fn a_connection_belongs_to_one_team_and_its_token_changes_every_twenty_minutes_at_most() {
    let simulator = crate::sender::plain(Behaviour::default());
    let now = now_s();
    let sign = |team: &str, issued_s: u64| {
        format!("bearer {}", provider_token(&key(1), "ABC123DEFG", team, issued_s))
    };
    scenario(async {
        let mut sender = Sender::connect(&simulator).await;
        let mut push = async |authorization: String| {
            let answer = sender.push(TOKEN, &[("authorization", &authorization)]).await;
            if answer.status == 200 { String::new() } else { answer.reason() }
        };
        assert_eq!(push(sign("DEF123GHIJ", now - 1_300)).await, "");
        assert_eq!(push(sign("OTHERTEAM1", now)).await, "UnrelatedKeyIdInToken");
        assert_eq!(push(sign("DEF123GHIJ", now - 1_200)).await, "TooManyProviderTokenUpdates");
        assert_eq!(push(sign("DEF123GHIJ", now)).await, "");
    });
}

#[test]
fn over_tls_a_client_certificate_says_who_pushes_and_on_which_topic() {
    let simulator = Simulator::start(Config::default()).unwrap();
    let certificate =
        |expired| simulator.authority().client_certificate("com.example.app", expired).unwrap();
    scenario(async {
        let none: &[(&str, &str)] = &[("authorization", ""), ("apns-topic", "")];
        let mut sender = Sender::connect_tls(&simulator, Some(certificate(false))).await;
        assert_eq!(sender.push(TOKEN, none).await.status, 200);
        assert_eq!(simulator.ledger()[0].topic, "com.example.app");
        let other = [("authorization", ""), ("apns-topic", "com.example.other")];
        assert_eq!(sender.push(TOKEN, &other).await.reason(), "TopicDisallowed");

        let mut sender = Sender::connect_tls(&simulator, Some(certificate(true))).await;
        assert_eq!(sender.push(TOKEN, none).await.reason(), "BadCertificate");

        let mut sender = Sender::connect_tls(&simulator, None).await;
        assert_eq!(sender.push(TOKEN, none).await.reason(), "MissingProviderToken");
        assert_eq!(sender.push(TOKEN, &[]).await.status, 200);
    });
}

#[test]
fn a_key_that_is_none_is_reported_before_the_start() {
    let mut key = provider_key(1, "ABC123DEFG", None);
    key.pem = "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n".into();
    let config = Config { keys: vec![key], ..Config::default() };
    let reported = Simulator::start(config).unwrap_err().to_string();
    assert!(reported.contains("ABC123DEFG") && reported.contains(".p8"), "{reported}");
}
