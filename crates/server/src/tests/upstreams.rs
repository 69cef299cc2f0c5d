//! Proxies with several backends: which requests are retried with another backend, and which are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dunlin_config::{Config, Member, Proxy, Upstream};
use serde_json::json;

use super::Cluster;
use super::proxies::{CLOSE, backend, client, connect, ok, response};

/// Number of `poison` requests that each of the four backends has received.
type Asked = Arc<[AtomicUsize; 4]>;

/// Adds four backends. They close the connection on `poison`; the first one answers everything else with 503.
fn pool(config: &mut Config, asked: &Asked) {
    let members = (0..4).map(|at| {
        let asked = Arc::clone(asked);
        let address = backend(move |of| {
            let is_poison = of.body["name"] == "poison" || of.body["method"] == "poison";
            match &*of.path {
                _ if is_poison => {
                    asked[at].fetch_add(1, Ordering::Relaxed);
                    CLOSE.to_vec()
                }
                _ if at == 0 => response(503, "going down"),
                "/rpc" => ok(&json!({"result": {"data": at}})),
                _ => ok(&json!({"result": {"user": "ada"}})),
            }
        });
        (format!("m{at}"), Member { address: address.to_string().into(), ..Member::default() })
    });
    let upstream = Upstream { members: members.collect(), ..Upstream::default() };
    config.webhooks.upstreams.insert("pool", upstream);
    for event in ["connect", "rpc"] {
        let proxy = Proxy {
            endpoint: format!("/{event}").into(),
            upstream: Some("pool".into()),
            timeout_ms: 20_000,
            ..Proxy::default()
        };
        config.proxies.insert(event, proxy);
    }
    config.client.anonymous = false;
    config.client.proxy.connect = Some("connect".into());
    config.client.proxy.rpc = Some("rpc".into());
}

#[test]
fn a_question_goes_to_another_and_what_fails_backends_does_not_fail_them_all() {
    let asked = Asked::default();
    let cluster = Cluster::start_with(1, |config| pool(config, &asked));
    for _ in 0..16 {
        let (_, connected) = client(&cluster, &[connect()]);
        assert!(connected["connect"].is_object(), "one is going down: {connected}");
    }
    let (_, refused) = client(&cluster, &[json!({"id": 1, "connect": {"name": "poison"}})]);
    assert_eq!(refused["error"]["code"], 100, "{refused}");
    let had_it = asked.iter().filter(|times| times.load(Ordering::Relaxed) > 0).count();
    assert_eq!(had_it, 2, "{asked:?}");
    // The members that failed for this client still serve others.
    let (_, connected) = client(&cluster, &[connect()]);
    assert!(connected["connect"].is_object(), "{connected}");
}

#[test]
fn call_that_may_have_been_executed_is_not_repeated() {
    let asked = Asked::default();
    let cluster = Cluster::start_with(1, |config| pool(config, &asked));
    let poison = json!({"id": 2, "rpc": {"method": "poison", "data": 1}});
    let (mut client, _) = client(&cluster, &[connect(), poison]);
    let reply = client.next().unwrap();
    assert_eq!(reply["error"]["code"], 100, "{reply}");
    let times: usize = asked.iter().map(|times| times.load(Ordering::Relaxed)).sum();
    assert_eq!(times, 1, "{asked:?}");
}
