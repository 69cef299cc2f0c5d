//! What is wrong is reported by field or with its fix, and every push in flight ends.

use dunlin_push::apns::{
    Apns, Certificate, Credential, DeviceToken, ProviderKey, ProviderToken, PushType,
};
use dunlin_push::{Connections, NotSent, Outcome, Rejected, SenderConfig};
use dunlin_simulate::apns::{Behaviour, Config, Simulator};

use super::{origin, push, sender, simulator};

const ONE: Connections = Connections::Fixed(1);

async fn rejected(apns: &Apns) -> Rejected {
    let outcome = apns.send(&push("aaaa", 1)).await;
    let Outcome::Rejected(rejected) = outcome else { panic!("{outcome}") };
    rejected
}

#[test]
fn malformed_push_is_named_before_it_is_sent() {
    for (token, word) in [("ab", "64 to 200"), ("z".repeat(64).as_str(), "'z' at 0")] {
        let error = DeviceToken::new(token).unwrap_err().to_string();
        assert!(error.starts_with("device token: ") && error.contains(word), "{error}");
    }
    let error = "shout".parse::<PushType>().unwrap_err().to_string();
    assert!(error.contains("\"shout\" is not one of alert, background"), "{error}");
    for (payload, word) in [("x".repeat(5_000), "5000 bytes"), ("{".to_owned(), "not a JSON")] {
        let mut push = push("aaaa", 1);
        push.payload = payload.into();
        let error = push.request().unwrap_err().to_string();
        assert!(error.starts_with("payload: ") && error.contains(word), "{error}");
    }
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let error = ProviderKey::new(&p384.serialize_pem(), "ABC123DEFG", "TEAM123456").unwrap_err();
    assert!(error.contains("P-256"), "{error}");
}

#[tokio::test]
async fn a_clock_that_is_off_by_two_hours_is_reported_with_the_hours() {
    for (clock_ahead_s, date, reason, reported) in [
        (7_200, true, "ExpiredProviderToken", "off by 2 h 0 min: it is behind"),
        (7_200, false, "ExpiredProviderToken", "off by 1 h 0 min or more"),
        (-7_200, true, "InvalidProviderToken", "off by 2 h 0 min: it is ahead"),
        // Nothing distinguishes it from a wrong key.
        (-7_200, false, "InvalidProviderToken", "and the clock of this machine"),
    ] {
        let simulator = simulator(Behaviour { clock_ahead_s, date, ..Behaviour::default() });
        let apns = sender(origin(&simulator), ONE);
        for _ in 0..3 {
            let rejected = rejected(&apns).await;
            let advice = rejected.advice.unwrap_or_default();
            assert_eq!(rejected.reason, reason);
            assert!(advice.contains(reported), "{advice}");
        }
        // And nothing more is sent with it.
        let outcome = apns.send(&push("aaaa", 1)).await;
        let Outcome::NotSent(NotSent::Credential(why)) = outcome else { panic!("{outcome}") };
        assert!(why.contains(reported) && why.contains("403"), "{why}");
        assert_eq!(simulator.counts().received, 3);
    }
}

#[tokio::test]
async fn a_topic_that_does_not_match_is_reported_with_the_remedy() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let simulator = Simulator::start(Config {
        keys: vec![dunlin_simulate::apns::ProviderKey {
            key_id: "ABC123DEFG".to_owned(),
            team_id: "TEAM123456".to_owned(),
            pem: key.public_key_pem(),
            environment: None,
            topics: vec!["com.example.other".to_owned()],
        }],
        ..Config::default()
    })
    .unwrap();
    let key = ProviderKey::new(&key.serialize_pem(), "ABC123DEFG", "TEAM123456").unwrap();
    let credential = Credential::Token(ProviderToken::new(key));
    let apns = Apns::start(origin(&simulator), credential, SenderConfig::default()).unwrap();
    for _ in 0..5 {
        // However often: it is the push, not the credential.
        let rejected = rejected(&apns).await;
        assert_eq!((rejected.status, &*rejected.reason), (400, "TopicDisallowed"));
        assert!(rejected.advice.unwrap_or_default().contains("bundle identifier"));
    }
}

#[tokio::test]
async fn a_certificate_that_apple_calls_over_is_reported_with_the_remedy() {
    // By Apple's clock, which is ahead of ours.
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["push.test".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2070, 1, 1);
    let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
    let clock_ahead_s = 60 * 366 * 86_400;
    let simulator = simulator(Behaviour { clock_ahead_s, ..Behaviour::default() });
    let certificate = Certificate::from_pem(pem.as_bytes(), "").unwrap();
    let credential = Credential::Certificate(certificate);
    let apns = Apns::start(origin(&simulator), credential, SenderConfig::default()).unwrap();
    let rejected = rejected(&apns).await;
    assert_eq!((rejected.status, &*rejected.reason), (403, "BadCertificate"));
    assert!(rejected.advice.unwrap_or_default().contains("expired or revoked"));
}
