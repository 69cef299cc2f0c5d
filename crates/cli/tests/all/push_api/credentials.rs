//! Credentials of the configuration: judged before they are taken.

use dunlin_simulate::apns::Behaviour;
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};

#[test]
fn a_credential_that_cannot_be_used_is_refused_with_its_pointer_and_the_one_before_stays() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    assert_eq!(served.put("push/apns/shop", &credential(&simulator, KEY)).0, 201);
    let account: Value =
        serde_json::from_str(include_str!("../../../../push/tests/data/service-account.json"))
            .unwrap();
    let rsa = account["private_key"].as_str().unwrap();
    let (status, refused) = served.put("push/apns/shop", &credential(&simulator, rsa));
    assert_eq!((status, &refused["errors"][0]["pointer"]), (422, &"/push/apns/shop/key".into()));
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains("P-256"), "{refused}");

    let (pem, key) = expired_certificate();
    let expired = json!({ "certificate": pem + &key, "topic": "com.example.app" });
    for target in ["push/apns/shop", "push/apns/shop?dry_run=1"] {
        let (status, refused) = served.put(target, &expired);
        let error = &refused["errors"][0];
        assert_eq!((status, &error["pointer"]), (422, &"/push/apns/shop/certificate".into()));
        assert!(error["detail"].as_str().unwrap().contains("expired on 2001-"), "{refused}");
    }
    let (status, refused) = served.put("push/fcm/shop", &json!({ "service_account": "nonsense" }));
    assert_eq!(status, 422);
    assert_eq!(refused["errors"][0]["pointer"], "/push/fcm/shop/service_account");

    let answer = served.api("push", &to(&[token(1)]));
    assert_eq!(answer["result"]["accepted"], 1, "{answer}");
    let (status, _) = Served::call(served.admin, "DELETE", "/config/push/apns/shop", &Value::Null);
    assert_eq!(status, 200);
    let answer = served.api("push", &to(&[token(1)]));
    assert_eq!(answer["result"]["outcomes"][0]["reason"], "credential", "{answer}");
}

/// Certificate and key in PEM; its time was over in 2001.
fn expired_certificate() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["push.test".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}
