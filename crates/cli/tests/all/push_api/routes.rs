//! How connections are made: whom to trust, and what stands between. (Proxies of others: `tests/interop/py/push.py`.)

use dunlin_simulate::apns::Behaviour;
use serde_json::{Value, json};

use super::kit::{KEY, Served, credential, simulator, to, token};
use crate::kit::Addresses;

/// Has a push wait in vain, and finds the reason that it reports; with more time, where the machine needs more to find it out.
fn not_sent(served: &Served, sentence: &str) -> String {
    let mut push = to(&[token(1)]);
    for timeout_ms in [1_000, 4_000, 16_000, 64_000] {
        push["timeout_ms"] = timeout_ms.into();
        let answer = served.api("push", &push);
        let line = &answer["result"]["outcomes"][0];
        assert_eq!(line["outcome"], "not_sent", "{answer}");
        let why = line["detail"].as_str().unwrap_or_default();
        if why.contains(sentence) {
            assert_eq!(line["reason"], "connect", "{answer}");
            return why.to_owned();
        }
    }
    panic!("it never says {sentence:?}")
}

#[test]
fn a_root_of_ones_own_is_trusted_once_it_is_set_and_as_long() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    let mut untrusted = credential(&simulator, KEY);
    untrusted["route"]["ca"] = Value::Null;
    assert_eq!(served.put("push/apns/shop", &untrusted).0, 201);
    not_sent(&served, "not signed by anybody we trust");

    let (status, set) = served.put("push/apns/shop/route/ca", &json!(simulator.ca_pem()));
    assert_eq!(status, 200, "{set}");
    let answer = served.api("push", &to(&[token(1)]));
    assert_eq!(answer["result"]["accepted"], 1, "{answer}");

    let (status, refused) = served.put("push/apns/shop/route/ca", &json!("no certificate"));
    assert_eq!(
        (status, &refused["errors"][0]["pointer"]),
        (422, &"/push/apns/shop/route/ca".into())
    );
    let (status, _) =
        Served::call(served.admin, "DELETE", "/config/push/apns/shop/route/ca", &Value::Null);
    assert_eq!(status, 200);
    not_sent(&served, "not signed by anybody we trust");
}

#[test]
fn a_proxy_that_is_not_there_is_named_and_its_password_is_reported_to_nobody() {
    let simulator = simulator(Behaviour::default());
    let served = Served::start(None);
    let nobody = Addresses::new().extra;
    let mut proxied = credential(&simulator, KEY);
    proxied["route"]["proxy"] = json!(format!("http://ada:sesame@{nobody}"));
    assert_eq!(served.put("push/apns/shop", &proxied).0, 201);
    let why = not_sent(&served, &nobody.to_string());
    assert!(!why.contains("sesame"), "{why}");
    let (_, shown) = Served::call(served.admin, "GET", "/config/push/apns/shop", &Value::Null);
    assert!(!shown.contains("sesame"), "{shown}");

    for wrong in ["ftp://127.0.0.1:1", "127.0.0.1:3128", "http://127.0.0.1"] {
        let (status, refused) = served.put("push/apns/shop/route/proxy", &json!(wrong));
        let error = &refused["errors"][0];
        assert_eq!((status, &error["pointer"]), (422, &"/push/apns/shop/route/proxy".into()));
        assert!(error["fix"].as_str().unwrap().contains("socks5://"), "{refused}");
    }
}
