//! Delivery tests in virtual time: the test plays every backend, and returns the results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunlin_config as config;
use dunlin_config::HookEventKind;
use dunlin_hub::{Epoch, Now, PublicationParts, SessionId};
use dunlin_metrics::{Registry, text};
use proptest::prelude::*;
use serde_json::Value;

use crate::dispatcher::{Attempt, Dispatcher};
use crate::encoder::EventEncoder;
use crate::event::{HookEvent, HookEventBody};
use crate::result::DeliveryResult;
use crate::stats::DeliveryStats;

struct Harness {
    dispatcher: Dispatcher,
    stats: Arc<DeliveryStats>,
    settings: config::Webhooks,
    apps: config::Map<config::PusherApp>,
    now: Now,
}

impl Harness {
    /// Creates an upstream `pool` with these members, and a hook `audit` that selects all publications.
    fn with_members(members: &[&str]) -> Harness {
        let stats = Arc::new(DeliveryStats::default());
        let dispatcher = Dispatcher::new(Arc::clone(&stats), EventEncoder::new("run", "node"), 7);
        let now = Now { ms: 1_000, unix_ms: 1_800_000_000_000 };
        let (settings, apps) = (config::Webhooks::default(), config::Map::new());
        let mut harness = Harness { dispatcher, stats, settings, apps, now };
        let members = members.iter().map(|&name| {
            let address = format!("{name}.example:80").into();
            (name, config::Member { address, ..config::Member::default() })
        });
        let pool = config::Upstream { members: members.collect(), ..config::Upstream::default() };
        harness.settings.upstreams.insert("pool", pool);
        harness.settings.hooks.insert("audit", hook());
        harness.apply();
        harness
    }

    fn apply(&mut self) {
        self.dispatcher.handle_settings(&self.settings, &self.apps);
    }

    fn hook(&mut self, change: impl FnOnce(&mut config::Hook)) {
        let mut hook = self.settings.hooks["audit"].clone();
        change(&mut hook);
        self.settings.hooks.insert("audit", hook);
        self.apply();
    }

    fn emit(&mut self, body: HookEventBody) {
        let event = HookEvent { unix_ms: self.now.unix_ms, body };
        self.dispatcher.handle_event(self.now, &event);
    }

    fn publish(&mut self, channel: &str, n: u64) {
        let data = n.to_string().into_bytes().into();
        let publication =
            PublicationParts { offset: n, data, ..PublicationParts::default() }.into();
        self.emit(HookEventBody::Publish {
            channel: channel.into(),
            epoch: Epoch::from_u64(1),
            publication,
        });
    }

    /// Returns the requests that are due.
    fn attempts(&mut self) -> Vec<Attempt> {
        self.dispatcher.handle_timeout(self.now);
        std::iter::from_fn(|| self.dispatcher.poll_attempt(self.now)).collect()
    }

    /// Returns the only request that is due.
    fn attempt(&mut self) -> Attempt {
        let mut attempts = self.attempts();
        assert_eq!(attempts.len(), 1);
        attempts.remove(0)
    }

    fn ends(&mut self, attempt: &Attempt, result: &DeliveryResult) {
        self.dispatcher.handle_result(self.now, attempt.tag, result);
    }

    /// Advances the time to the next timeout. Returns the time waited in milliseconds.
    fn wait(&mut self) -> u64 {
        let due_ms = self.dispatcher.poll_timeout().expect("something is due");
        let waited_ms = due_ms.saturating_sub(self.now.ms);
        self.pass(waited_ms);
        waited_ms
    }

    fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.unix_ms += ms;
    }

    fn status(&self, name: &str) -> u64 {
        self.stats.status()["hooks"]["audit"][name].as_u64().expect("a count")
    }
}

fn hook() -> config::Hook {
    config::Hook {
        upstream: "pool".into(),
        events: [HookEventKind::Publish].into(),
        ..config::Hook::default()
    }
}

fn events(attempt: &Attempt) -> Vec<Value> {
    serde_json::from_slice(&attempt.body).expect("a JSON array")
}

fn data(attempt: &Attempt) -> Vec<u64> {
    events(attempt).iter().filter_map(|event| event["data"].as_u64()).collect()
}

fn member(attempt: &Attempt) -> String {
    attempt.member.address.split('.').next().unwrap_or_default().to_owned()
}

fn unreachable() -> DeliveryResult {
    DeliveryResult::Unreachable("connection refused".into())
}

fn busy(status: u16) -> DeliveryResult {
    DeliveryResult::Busy { status, retry_after_ms: None }
}

#[test]
fn events_during_a_request_leave_together_in_the_next() {
    let mut harness = Harness::with_members(&["a"]);
    harness.publish("news", 1);
    let first = harness.attempt();
    assert_eq!(data(&first), [1]);
    (2..=250).for_each(|n| harness.publish("news", n));
    assert!(harness.attempts().is_empty(), "one request of a channel at a time");
    harness.ends(&first, &DeliveryResult::Delivered);
    let second = harness.attempt();
    assert_eq!(data(&second), (2..=101).collect::<Vec<_>>(), "up to batch_events_max");
    assert_ne!(first.key, second.key);
    harness.ends(&second, &DeliveryResult::Delivered);
    let third = harness.attempt();
    assert_eq!(data(&third).len(), 100);
    harness.ends(&third, &DeliveryResult::Delivered);
    let last = harness.attempt();
    harness.ends(&last, &DeliveryResult::Delivered);
    assert!(harness.attempts().is_empty());
    assert_eq!((harness.status("delivered"), harness.status("queue_bytes")), (250, 0));
    let ids: BTreeSet<String> = [&first, &second, &third, &last]
        .into_iter()
        .flat_map(|attempt| events(attempt).into_iter().map(|event| event["id"].to_string()))
        .collect();
    assert_eq!(ids.len(), 250, "no two events have one id");
}

#[test]
fn an_attempt_that_fails_is_retried_with_the_same_key_and_body() {
    let mut harness = Harness::with_members(&["a"]);
    harness.publish("news", 1);
    let first = harness.attempt();
    harness.ends(&first, &busy(500));
    harness.publish("news", 2);
    assert!(harness.attempts().is_empty(), "it backs off");
    assert!((50..=100).contains(&harness.wait()));
    let second = harness.attempt();
    assert_eq!((&second.key, &second.body), (&first.key, &first.body));
    assert_eq!((first.number, second.number), (1, 2));
    harness.ends(&second, &DeliveryResult::Delivered);
    let next = harness.attempt();
    assert_eq!(data(&next), [2], "and the next keeps its index behind it");
}

#[test]
fn a_backend_that_is_down_for_an_hour_gets_everything_when_it_is_back() {
    let mut harness = Harness::with_members(&["a"]);
    (1..=500).for_each(|n| harness.publish("news", n));
    let mut attempts = 0;
    let until_ms = harness.now.ms + 3_600_000;
    while harness.now.ms < until_ms {
        let attempt = harness.attempt();
        harness.ends(&attempt, &unreachable());
        assert_eq!(attempt.number, 1, "an attempt that was never sent is not counted");
        attempts += 1;
        assert!(harness.attempts().is_empty());
        harness.wait();
    }
    assert!((120..150).contains(&attempts), "{attempts} attempts in an hour");
    let mut got = Vec::new();
    while let Some(attempt) = harness.attempts().pop() {
        got.extend(data(&attempt));
        harness.ends(&attempt, &DeliveryResult::Delivered);
    }
    assert_eq!(got, (1..=500).collect::<Vec<_>>());
    let failing = &harness.stats.status()["failing"];
    assert_eq!(failing, &serde_json::json!({}), "it fails no more");
}

#[test]
fn of_two_members_one_dies_and_the_other_gets_what_it_had() {
    let mut harness = Harness::with_members(&["a", "b"]);
    (0..64).for_each(|n| harness.publish(&format!("room{n}"), n));
    let attempts = harness.attempts();
    let of_a: Vec<_> = attempts.iter().filter(|attempt| member(attempt) == "a").collect();
    assert_eq!(
        (attempts.len(), of_a.len()),
        (8, 4),
        "each queue has one request, and the members share them"
    );
    for attempt in &attempts {
        let result = match &*member(attempt) {
            "a" => DeliveryResult::Broken("reset".into()),
            _ => DeliveryResult::Delivered,
        };
        harness.ends(attempt, &result);
    }
    let again = harness.attempts();
    assert_eq!(again.len(), 4);
    assert!(again.iter().all(|attempt| member(attempt) == "b"));
    let keys = |of: &[&Attempt]| of.iter().map(|of| of.key.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&again.iter().collect::<Vec<_>>()), keys(&of_a));
    again.iter().for_each(|attempt| harness.ends(attempt, &DeliveryResult::Delivered));
    assert_eq!(harness.status("delivered"), 64);
    assert_eq!(harness.stats.status()["failing"]["pool"]["a"]["failures"], 1);

    // When its circuit closes, the member gets requests again.
    harness.wait();
    (0..64).for_each(|n| harness.publish(&format!("room{n}"), n));
    let members: BTreeSet<String> = harness.attempts().iter().map(member).collect();
    assert_eq!(members.len(), 2);
}

#[test]
fn a_rejected_request_is_not_retried_and_the_next_begins_with_a_missed_event() {
    let mut harness = Harness::with_members(&["a", "b"]);
    (1..=3).for_each(|n| harness.publish("news", n));
    let attempt = harness.attempt();
    harness.ends(&attempt, &DeliveryResult::Rejected { status: 413 });
    assert!(harness.attempts().is_empty(), "a missed event is not sent alone");
    harness.publish("news", 4);
    let next = harness.attempt();
    let sent = events(&next);
    assert_eq!((&sent[0]["event"], &sent[0]["count"]), (&"missed".into(), &3.into()));
    assert_eq!((&sent[0]["reason"], &sent[1]["data"]), (&"rejected".into(), &4.into()));
    harness.ends(&next, &DeliveryResult::Delivered);
    assert_eq!((harness.status("dropped_rejected"), harness.status("delivered")), (3, 1));
    assert_eq!((harness.status("requests"), harness.status("requests_rejected")), (2, 1));
}

#[test]
fn attempts_are_bounded_and_come_less_and_less_often() {
    let mut harness = Harness::with_members(&["a"]);
    harness.hook(|hook| hook.attempts_max = 12);
    harness.publish("news", 1);
    let mut waited = Vec::new();
    for number in 1..=12 {
        let attempt = harness.attempt();
        assert_eq!(attempt.number, number);
        harness.ends(&attempt, &busy(500));
        if number < 12 {
            waited.push(harness.wait());
        }
    }
    assert!(waited.windows(3).all(|w| w[2] > w[0] || w[2] >= 15_000), "{waited:?}");
    assert!(waited.iter().all(|&ms| ms <= 30_000));
    assert!(harness.attempts().is_empty());
    assert_eq!((harness.status("dropped_given_up"), harness.status("requests_busy")), (1, 12));
}

#[test]
fn retry_after_is_honoured() {
    let mut harness = Harness::with_members(&["a", "b"]);
    harness.publish("news", 1);
    let first = harness.attempt();
    harness.ends(&first, &DeliveryResult::Busy { status: 429, retry_after_ms: Some(7_000) });
    let second = harness.attempt();
    assert_ne!(member(&first), member(&second), "the other is asked at once");
    harness.ends(&second, &DeliveryResult::Busy { status: 503, retry_after_ms: None });
    assert!(harness.attempts().is_empty(), "both circuits are open");
    assert_eq!(harness.wait(), 1_000);
    let third = harness.attempt();
    assert_eq!(member(&third), member(&second));
    harness.ends(&third, &DeliveryResult::Busy { status: 503, retry_after_ms: Some(60_000) });
    assert_eq!(harness.wait(), 6_000);
    assert_eq!(member(&harness.attempt()), member(&first));
}

#[test]
fn a_time_out_and_an_invalid_response_are_counted_apart() {
    let mut harness = Harness::with_members(&["a"]);
    harness.publish("news", 1);
    let attempt = harness.attempt();
    harness.ends(&attempt, &DeliveryResult::TimedOut);
    harness.wait();
    let attempt = harness.attempt();
    harness.ends(&attempt, &DeliveryResult::Broken("the answer is not HTTP".into()));
    assert_eq!(attempt.number, 2);
    let counts = ["requests_timed_out", "requests_broken", "requests_unreachable"];
    assert_eq!(counts.map(|name| harness.status(name)), [1, 1, 0]);
    let status = harness.stats.status();
    assert_eq!(status["hooks"]["audit"]["last_error"]["error"], "the answer is not HTTP");
    assert_eq!(status["failing"]["pool"]["a"]["failures"], 2);
}

#[test]
fn a_full_queue_drops_new_events_counts_them_and_announces_the_gap() {
    let mut harness = Harness::with_members(&["a"]);
    harness.hook(|hook| hook.queue_bytes_max = 65_536);
    (1..=1_000).for_each(|n| harness.publish("news", n));
    let queued = harness.status("events");
    assert!((200..1_000).contains(&queued), "{queued}");
    assert_eq!(harness.status("dropped_queue_full"), 1_000 - queued);
    let mut next = queued + 1;
    let mut missed = 0;
    // When there is room again, the `missed` event precedes the first event after the gap.
    while let Some(attempt) = harness.attempts().pop() {
        for event in events(&attempt) {
            if event["event"] == "missed" {
                assert_eq!(event["reason"], "queue_full");
                missed += event["count"].as_u64().unwrap();
            }
        }
        harness.ends(&attempt, &DeliveryResult::Delivered);
        if next == queued + 1 {
            harness.publish("news", 1_001);
            next += 1;
        }
    }
    assert_eq!(missed, 1_000 - queued);
    assert_eq!(harness.status("queue_events"), 0);
}

/// A user subscribes and unsubscribes in a loop while the backend is slow. It has filled the queue alone before; the connects
/// of others were dropped.
#[test]
fn user_who_fills_the_queue_of_a_slow_backend_loses_events_and_others_none() {
    let mut harness = Harness::with_members(&["a"]);
    harness.hook(|hook| {
        hook.queue_bytes_max = 65_536;
        hook.events = [
            HookEventKind::Connect,
            HookEventKind::Subscribe,
            HookEventKind::Unsubscribe,
            HookEventKind::ChannelOccupied,
        ]
        .into();
    });
    let session = |n: u64| SessionId::from_u64(n << 8).unwrap();
    let mut others = 0;
    let (mut connects, mut order, mut missed_of_loop, mut missed_of_others) = (0, Vec::new(), 0, 0);
    let mut take = |harness: &mut Harness, all: bool| {
        loop {
            let attempts = harness.attempts();
            if attempts.is_empty() {
                return;
            }
            for event in attempts.iter().flat_map(events) {
                match event["event"].as_str().unwrap() {
                    "connect" => connects += 1,
                    "missed" if event["user"] == "loop" => {
                        missed_of_loop += event["count"].as_u64().unwrap();
                    }
                    "missed" if !event["user"].is_null() => missed_of_others += 1,
                    "subscribe" | "unsubscribe" => {
                        order.push(event["channel"].as_str().unwrap().parse::<u64>().unwrap());
                    }
                    _ => {}
                }
            }
            attempts.iter().for_each(|attempt| harness.ends(attempt, &DeliveryResult::Delivered));
            if !all {
                return;
            }
        }
    };
    for n in 0..20_000_u64 {
        let channel: Arc<str> = n.to_string().into();
        let user = Box::from("loop");
        harness.emit(HookEventBody::Occupied { channel: Arc::clone(&channel), occupied: true });
        harness.emit(HookEventBody::Subscribe { session: session(1), user, channel });
        if n % 100 == 0 {
            others += 1;
            let (session, user) = (session(2 + n), format!("user{n}").into());
            harness.emit(HookEventBody::Connect { session, user, transport: "websocket" });
        }
        if n % 500 == 0 {
            take(&mut harness, false);
        }
    }
    harness.emit(HookEventBody::Connect { session: session(1), user: "".into(), transport: "sse" });
    take(&mut harness, true);
    assert_eq!((connects, missed_of_others), (others + 1, 0));
    assert!(order.is_sorted(), "a session's events keep their order");
    assert_eq!(order.len() as u64 + missed_of_loop, 20_000, "and what is lost is named");
}

#[test]
fn events_lost_before_the_dispatcher_are_announced_to_every_hook() {
    let mut harness = Harness::with_members(&["a"]);
    harness.emit(HookEventBody::Missed { count: 17, owner: None });
    assert!(harness.attempts().is_empty());
    for n in 0..64 {
        harness.publish(&format!("room{n}"), n);
    }
    let sent: Vec<Value> = harness.attempts().iter().flat_map(events).collect();
    let missed: Vec<&Value> = sent.iter().filter(|event| event["event"] == "missed").collect();
    assert_eq!(missed.len(), 1);
    assert_eq!((&missed[0]["count"], &missed[0]["reason"]), (&17.into(), &"overflow".into()));
}

#[test]
fn a_removed_hook_drops_its_events_and_no_counter_falls() {
    let mut harness = Harness::with_members(&["a"]);
    (1..=5).for_each(|n| harness.publish("news", n));
    let in_flight = harness.attempt();
    harness.publish("news", 6);
    harness.settings.hooks.remove("audit");
    harness.apply();
    harness.ends(&in_flight, &DeliveryResult::Delivered);
    assert!(harness.attempts().is_empty());
    assert_eq!(harness.dispatcher.pending_events(), 0);
    let mut registry = Registry::with_prefix("dunlin");
    registry.register_collector(Box::new(Arc::clone(&harness.stats)));
    let exposed = text::prometheus(&registry);
    assert!(
        exposed.contains("dunlin_webhook_dropped_hook_removed_total{hook=\"\"} 6"),
        "{exposed}"
    );

    // A new hook with the same name starts empty.
    harness.settings.hooks.insert("audit", hook());
    harness.apply();
    harness.publish("news", 7);
    assert_eq!(data(&harness.attempt()), [7]);
}

#[test]
fn queued_events_leave_under_the_newest_settings() {
    let mut harness = Harness::with_members(&[]);
    harness.publish("news", 1);
    assert!(harness.attempts().is_empty(), "there is no member");
    assert_eq!(harness.dispatcher.poll_timeout(), None, "and nothing to wait for but the settings");

    let mut pool = harness.settings.upstreams["pool"].clone();
    let address = "a.example:80".into();
    pool.members.insert("a", config::Member { address, down: true, ..config::Member::default() });
    harness.settings.upstreams.insert("pool", pool.clone());
    harness.apply();
    assert!(harness.attempts().is_empty(), "it is down");

    let other = config::Upstream {
        members: [(
            "z",
            config::Member { address: "z.example:80".into(), ..config::Member::default() },
        )]
        .into_iter()
        .collect(),
        ..config::Upstream::default()
    };
    harness.settings.upstreams.insert("other", other);
    harness.hook(|hook| {
        hook.upstream = "other".into();
        hook.path = "/v2".into();
    });
    let attempt = harness.attempt();
    assert_eq!((&*attempt.hook.path, member(&attempt).as_str()), ("/v2", "z"));
    harness.ends(&attempt, &unreachable());

    // The upstream is removed. The hook returns to the first one, whose member is available again.
    pool.members.insert(
        "a",
        config::Member { address: "a.example:80".into(), ..config::Member::default() },
    );
    harness.settings.upstreams.insert("pool", pool);
    harness.settings.hooks.insert("audit", hook());
    harness.settings.upstreams.remove("other");
    harness.apply();
    let again = harness.attempt();
    assert_eq!((member(&again).as_str(), &again.key), ("a", &attempt.key));
    let gone: Vec<u64> = std::iter::from_fn(|| harness.dispatcher.poll_unused_pool()).collect();
    assert_eq!(gone, [attempt.pool], "connections to a removed member are closed");
}

#[test]
fn events_of_a_session_keep_their_order_and_a_hook_gets_what_it_wants() {
    let mut harness = Harness::with_members(&["a"]);
    harness.hook(|hook| {
        hook.events =
            [HookEventKind::Connect, HookEventKind::Subscribe, HookEventKind::Disconnect].into();
        hook.channels = Some(config::Pattern::parse("chat:*").unwrap());
    });
    let session = SessionId::from_u64(5).unwrap();
    let user = || Box::from("ada");
    harness.emit(HookEventBody::Connect { session, user: user(), transport: "sse" });
    for channel in ["chat:1", "news", "chat:2"] {
        harness.emit(HookEventBody::Subscribe { session, user: user(), channel: channel.into() });
    }
    harness.publish("chat:1", 1);
    let reason = "connection closed".into();
    harness.emit(HookEventBody::Disconnect { session, user: user(), code: 3000, reason });
    let sent = events(&harness.attempt());
    let sent: Vec<_> = sent
        .iter()
        .map(|event| (event["event"].as_str().unwrap(), event["channel"].as_str().unwrap_or("")))
        .collect();
    let chat = |channel| ("subscribe", channel);
    assert_eq!(sent, [("connect", ""), chat("chat:1"), chat("chat:2"), ("disconnect", "")]);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u8),
    Ends(u8, u8),
    Wait,
    Settings(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Publish),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(which, how)| Step::Ends(which, how)),
        2 => Just(Step::Wait),
        1 => any::<u8>().prop_map(Step::Settings),
    ]
}

proptest! {
    /// Whatever backends respond and settings change, every event is delivered, in order within a channel, and each
    /// batch keeps its key and body.
    #[test]
    fn nothing_is_lost_and_order_is_kept(steps in prop::collection::vec(step(), 1..200)) {
        let mut harness = Harness::with_members(&["a", "b", "c"]);
        harness.hook(|hook| hook.attempts_max = 1_000);
        let mut published: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut taken: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut bodies: BTreeMap<String, Arc<[u8]>> = BTreeMap::new();
        let mut in_flight: Vec<Attempt> = Vec::new();
        let mut n = 0;
        let mut end = |harness: &mut Harness, attempt: &Attempt, result: &DeliveryResult| {
            let body = bodies.entry(attempt.key.to_string()).or_insert_with(|| Arc::clone(&attempt.body));
            assert_eq!(body, &attempt.body);
            if *result == DeliveryResult::Delivered {
                for event in events(attempt) {
                    let channel = event["channel"].as_str().unwrap().to_owned();
                    taken.entry(channel).or_default().push(event["data"].as_u64().unwrap());
                }
            }
            harness.ends(attempt, result);
        };
        for step in steps {
            match step {
                Step::Publish(channel) => {
                    n += 1;
                    let channel = format!("room{}", channel % 12);
                    harness.publish(&channel, n);
                    published.entry(channel).or_default().push(n);
                }
                Step::Ends(which, how) if !in_flight.is_empty() => {
                    let attempt = in_flight.swap_remove(usize::from(which) % in_flight.len());
                    let result = match how % 8 {
                        0 => unreachable(),
                        1 => DeliveryResult::TimedOut,
                        2 => DeliveryResult::Broken("reset".into()),
                        3 => busy(500),
                        4 => DeliveryResult::Busy { status: 429, retry_after_ms: Some(u64::from(how) * 10) },
                        5 => DeliveryResult::Cancelled,
                        _ => DeliveryResult::Delivered,
                    };
                    end(&mut harness, &attempt, &result);
                }
                Step::Ends(..) => {}
                Step::Wait => {
                    if harness.dispatcher.poll_timeout().is_some() {
                        harness.wait();
                    }
                }
                Step::Settings(what) => {
                    let mut pool = harness.settings.upstreams["pool"].clone();
                    let name = ["a", "b", "c"][usize::from(what) % 3];
                    match what % 4 {
                        0 => drop(pool.members.remove(name)),
                        1 => pool.timeout_ms += 1,
                        _ => {
                            let address = format!("{name}.example:80").into();
                            let (down, weight) = (what % 4 == 2, u32::from(what) + 1);
                            pool.members.insert(name, config::Member { address, weight, down });
                        }
                    }
                    harness.settings.upstreams.insert("pool", pool);
                    harness.apply();
                }
            }
            in_flight.append(&mut harness.attempts());
            while harness.dispatcher.poll_unused_pool().is_some() {}
        }
        let mut pool = harness.settings.upstreams["pool"].clone();
        pool.members.insert("d", config::Member { address: "d.example:80".into(), ..config::Member::default() });
        harness.settings.upstreams.insert("pool", pool);
        harness.apply();
        loop {
            in_flight.append(&mut harness.attempts());
            match in_flight.pop() {
                Some(attempt) => end(&mut harness, &attempt, &DeliveryResult::Delivered),
                None if harness.dispatcher.pending_events() > 0 => drop(harness.wait()),
                None => break,
            }
        }
        prop_assert_eq!(taken, published);
        prop_assert_eq!(harness.status("queue_bytes"), 0);
    }
}

/// The request has the format and signature that Pusher's libraries verify.
#[test]
fn a_hook_of_an_app_posts_as_pusher_does() {
    let mut harness = Harness::with_members(&["a"]);
    let app = config::PusherApp {
        key: "shop-key".into(),
        secret: Some(config::Secret::new("0123456789abcdef")),
        namespace: "shop".into(),
        ..config::PusherApp::default()
    };
    harness.apps.insert("shop", app);
    harness.hook(|hook| {
        hook.pusher_app = Some("shop".into());
        let kinds = [HookEventKind::Publish, HookEventKind::Connect];
        let own = [
            HookEventKind::ChannelOccupied,
            HookEventKind::ChannelVacated,
            HookEventKind::MemberAdded,
            HookEventKind::ClientEvent,
        ];
        hook.events = kinds.into_iter().chain(own).collect();
    });
    let session = SessionId::from_u64(42).unwrap();
    harness.emit(HookEventBody::Connect { session, user: "ada".into(), transport: "pusher" });
    harness.publish("shop:presence-a", 1);
    let occupied =
        |channel: &str| HookEventBody::Occupied { channel: channel.into(), occupied: true };
    harness.emit(occupied("other:presence-a"));
    assert!(harness.attempts().is_empty(), "neither what Pusher has not, nor another's channel");
    harness.emit(occupied(&dunlin_hub::tenant::qualify("acme", "shop:presence-a")));
    assert!(harness.attempts().is_empty(), "nor what a tenant calls so");
    harness.emit(occupied("shop:presence-a"));
    let attempt = harness.attempt();
    assert_eq!(
        String::from_utf8_lossy(&attempt.body),
        r#"{"time_ms":1800000000000,"events":[{"name":"channel_occupied","channel":"presence-a"}]}"#
    );
    attempt.with_headers(|headers| {
        let header = |name| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        assert_eq!(header("X-Pusher-Key"), Some("shop-key"));
        assert_eq!(header("X-Pusher-Signature").map(str::len), Some(64));
        assert_eq!(header("Dunlin-Signature"), None);
    });
    let (channel, user): (Arc<str>, Box<str>) = ("shop:presence-a".into(), "7".into());
    harness.emit(HookEventBody::Member { channel: Arc::clone(&channel), user, added: true });
    let info = dunlin_hub::ClientInfo {
        user_is_number: false,
        foreign_client: None,
        user: "7".into(),
        client: session,
        conn_info: None,
        chan_info: None,
    };
    let publication = PublicationParts {
        data: br#"{"x":1}"#.as_slice().into(),
        tags: [("event".into(), "client-moved".into())].into_iter().collect(),
        info: Some(Arc::new(info)),
        ..PublicationParts::default()
    };
    harness.emit(HookEventBody::ClientEvent { channel, publication: publication.into() });
    harness.ends(&attempt, &DeliveryResult::Delivered);
    let second: Value = serde_json::from_slice(&harness.attempt().body).unwrap();
    assert_eq!(
        second["events"],
        serde_json::json!([
            {"name": "member_added", "channel": "presence-a", "user_id": "7"},
            {"name": "client_event", "channel": "presence-a", "event": "client-moved",
             "data": "{\"x\":1}", "user_id": "7"},
        ])
    );
    // A hook of a removed app receives no events.
    harness.apps.remove("shop");
    harness.apply();
    harness.emit(occupied("shop:presence-a"));
    assert!(harness.attempts().is_empty());
}
