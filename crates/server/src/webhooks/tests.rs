//! Events on their way to backends, in virtual time: a backend is whoever gives a verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dunlin_config as config;
use dunlin_config::HookEventKind;
use dunlin_hub::{Epoch, Now, Publication, SessionId};
use proptest::prelude::*;
use serde_json::Value;

use super::board::Board;
use super::dispatcher::{Attempt, Dispatcher};
use super::happening::{Happening, What};
use super::spelling::Speller;
use super::verdict::Verdict;

struct Town {
    dispatcher: Dispatcher,
    board: Arc<Board>,
    settings: config::Webhooks,
    now: Now,
}

impl Town {
    /// One upstream `pool` with these members, one hook `audit` that is told of all publications.
    fn with_members(members: &[&str]) -> Town {
        let board = Arc::new(Board::new(1));
        let dispatcher = Dispatcher::new(Arc::clone(&board), Speller::new("run", "node"), 7);
        let now = Now { ms: 1_000, unix_ms: 1_800_000_000_000 };
        let mut town = Town { dispatcher, board, settings: config::Webhooks::default(), now };
        let members = members.iter().map(|&name| {
            let address = format!("{name}.example:80").into();
            (name, config::Member { address, ..config::Member::default() })
        });
        let pool = config::Upstream { members: members.collect(), ..config::Upstream::default() };
        town.settings.upstreams.insert("pool", pool);
        town.settings.hooks.insert("audit", hook());
        town.apply();
        town
    }

    fn apply(&mut self) {
        self.dispatcher.handle_settings(&self.settings);
    }

    fn hook(&mut self, change: impl FnOnce(&mut config::Hook)) {
        let mut hook = self.settings.hooks["audit"].clone();
        change(&mut hook);
        self.settings.hooks.insert("audit", hook);
        self.apply();
    }

    fn happens(&mut self, what: What) {
        let happening = Happening { unix_ms: self.now.unix_ms, what };
        self.dispatcher.handle_happening(self.now, &happening);
    }

    fn publish(&mut self, channel: &str, n: u64) {
        let data = n.to_string().into_bytes().into();
        let publication = Arc::new(Publication { offset: n, data, ..Publication::default() });
        self.happens(What::Publish {
            channel: channel.into(),
            epoch: Epoch::from_u64(1),
            publication,
        });
    }

    /// What is to be sent now.
    fn attempts(&mut self) -> Vec<Attempt> {
        self.dispatcher.handle_timeout(self.now);
        std::iter::from_fn(|| self.dispatcher.poll_attempt(self.now)).collect()
    }

    /// The one request that is to be sent now.
    fn attempt(&mut self) -> Attempt {
        let mut attempts = self.attempts();
        assert_eq!(attempts.len(), 1);
        attempts.remove(0)
    }

    fn ends(&mut self, attempt: &Attempt, verdict: &Verdict) {
        self.dispatcher.handle_verdict(self.now, attempt.tag, verdict);
    }

    /// Goes to when something is due.
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
        self.board.status()["hooks"]["audit"][name].as_u64().expect("a count")
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

fn refused_connection() -> Verdict {
    Verdict::Unreachable("connection refused".into())
}

fn busy(status: u16) -> Verdict {
    Verdict::Busy { status, after_ms: None }
}

#[test]
fn what_happens_while_a_request_is_under_way_leaves_together_after_it() {
    let mut town = Town::with_members(&["a"]);
    town.publish("news", 1);
    let first = town.attempt();
    assert_eq!(data(&first), [1]);
    (2..=250).for_each(|n| town.publish("news", n));
    assert!(town.attempts().is_empty(), "one request of a channel at a time");
    town.ends(&first, &Verdict::Delivered);
    let second = town.attempt();
    assert_eq!(data(&second), (2..=101).collect::<Vec<_>>(), "up to batch_events_max");
    assert_ne!(first.key, second.key);
    town.ends(&second, &Verdict::Delivered);
    let third = town.attempt();
    assert_eq!(data(&third).len(), 100);
    town.ends(&third, &Verdict::Delivered);
    let last = town.attempt();
    town.ends(&last, &Verdict::Delivered);
    assert!(town.attempts().is_empty());
    assert_eq!((town.status("delivered"), town.status("queue_bytes")), (250, 0));
    let ids: BTreeSet<String> = [&first, &second, &third, &last]
        .into_iter()
        .flat_map(|attempt| events(attempt).into_iter().map(|event| event["id"].to_string()))
        .collect();
    assert_eq!(ids.len(), 250, "no two events have one id");
}

#[test]
fn an_attempt_that_fails_is_made_again_with_the_same_key_and_body() {
    let mut town = Town::with_members(&["a"]);
    town.publish("news", 1);
    let first = town.attempt();
    town.ends(&first, &busy(500));
    town.publish("news", 2);
    assert!(town.attempts().is_empty(), "it rests");
    assert!((50..=100).contains(&town.wait()));
    let second = town.attempt();
    assert_eq!((&second.key, &second.body), (&first.key, &first.body));
    assert_eq!((first.number, second.number), (1, 2));
    town.ends(&second, &Verdict::Delivered);
    let next = town.attempt();
    assert_eq!(data(&next), [2], "and the next keeps its place behind it");
}

#[test]
fn a_backend_that_is_down_for_an_hour_gets_everything_when_it_is_back() {
    let mut town = Town::with_members(&["a"]);
    (1..=500).for_each(|n| town.publish("news", n));
    let mut attempts = 0;
    let until_ms = town.now.ms + 3_600_000;
    while town.now.ms < until_ms {
        let attempt = town.attempt();
        town.ends(&attempt, &refused_connection());
        assert_eq!(attempt.number, 1, "what never left is not counted");
        attempts += 1;
        assert!(town.attempts().is_empty());
        town.wait();
    }
    assert!((120..150).contains(&attempts), "{attempts} attempts in an hour");
    let mut got = Vec::new();
    while let Some(attempt) = town.attempts().pop() {
        got.extend(data(&attempt));
        town.ends(&attempt, &Verdict::Delivered);
    }
    assert_eq!(got, (1..=500).collect::<Vec<_>>());
    let failing = &town.board.status()["failing"];
    assert_eq!(failing, &serde_json::json!({}), "it is no trouble any more");
}

#[test]
fn of_two_members_one_dies_and_the_other_gets_what_it_had() {
    let mut town = Town::with_members(&["a", "b"]);
    (0..64).for_each(|n| town.publish(&format!("room{n}"), n));
    let attempts = town.attempts();
    let of_a: Vec<_> = attempts.iter().filter(|attempt| member(attempt) == "a").collect();
    assert_eq!((attempts.len(), of_a.len()), (8, 4), "every lane has one, and they share");
    for attempt in &attempts {
        let verdict = match &*member(attempt) {
            "a" => Verdict::Broken("reset".into()),
            _ => Verdict::Delivered,
        };
        town.ends(attempt, &verdict);
    }
    let again = town.attempts();
    assert_eq!(again.len(), 4);
    assert!(again.iter().all(|attempt| member(attempt) == "b"));
    let keys = |of: &[&Attempt]| of.iter().map(|of| of.key.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&again.iter().collect::<Vec<_>>()), keys(&of_a));
    again.iter().for_each(|attempt| town.ends(attempt, &Verdict::Delivered));
    assert_eq!(town.status("delivered"), 64);
    assert_eq!(town.board.status()["failing"]["pool"]["a"]["failures"], 1);

    // When its time is over, it takes part again.
    town.wait();
    (0..64).for_each(|n| town.publish(&format!("room{n}"), n));
    let members: BTreeSet<String> = town.attempts().iter().map(member).collect();
    assert_eq!(members.len(), 2);
}

#[test]
fn a_request_that_is_refused_is_not_sent_again_and_the_next_says_what_is_missing() {
    let mut town = Town::with_members(&["a", "b"]);
    (1..=3).for_each(|n| town.publish("news", n));
    let attempt = town.attempt();
    town.ends(&attempt, &Verdict::Refused { status: 413 });
    assert!(town.attempts().is_empty(), "that something is missing is not said alone");
    town.publish("news", 4);
    let next = town.attempt();
    let told = events(&next);
    assert_eq!((&told[0]["event"], &told[0]["count"]), (&"missed".into(), &3.into()));
    assert_eq!((&told[0]["reason"], &told[1]["data"]), (&"refused".into(), &4.into()));
    town.ends(&next, &Verdict::Delivered);
    assert_eq!((town.status("dropped_refused"), town.status("delivered")), (3, 1));
    assert_eq!((town.status("requests"), town.status("requests_refused")), (2, 1));
}

#[test]
fn attempts_are_bounded_and_come_less_and_less_often() {
    let mut town = Town::with_members(&["a"]);
    town.hook(|hook| hook.attempts_max = 12);
    town.publish("news", 1);
    let mut waited = Vec::new();
    for number in 1..=12 {
        let attempt = town.attempt();
        assert_eq!(attempt.number, number);
        town.ends(&attempt, &busy(500));
        if number < 12 {
            waited.push(town.wait());
        }
    }
    assert!(waited.windows(3).all(|w| w[2] > w[0] || w[2] >= 15_000), "{waited:?}");
    assert!(waited.iter().all(|&ms| ms <= 30_000));
    assert!(town.attempts().is_empty());
    assert_eq!((town.status("dropped_given_up"), town.status("requests_busy")), (1, 12));
}

#[test]
fn who_asks_for_time_is_given_it() {
    let mut town = Town::with_members(&["a", "b"]);
    town.publish("news", 1);
    let first = town.attempt();
    town.ends(&first, &Verdict::Busy { status: 429, after_ms: Some(7_000) });
    let second = town.attempt();
    assert_ne!(member(&first), member(&second), "the other is asked at once");
    town.ends(&second, &Verdict::Busy { status: 503, after_ms: None });
    assert!(town.attempts().is_empty(), "now nobody can be asked");
    assert_eq!(town.wait(), 1_000);
    let third = town.attempt();
    assert_eq!(member(&third), member(&second));
    town.ends(&third, &Verdict::Busy { status: 503, after_ms: Some(60_000) });
    assert_eq!(town.wait(), 6_000);
    assert_eq!(member(&town.attempt()), member(&first));
}

#[test]
fn a_slow_backend_and_one_that_answers_nonsense_are_told_apart() {
    let mut town = Town::with_members(&["a"]);
    town.publish("news", 1);
    let attempt = town.attempt();
    town.ends(&attempt, &Verdict::TimedOut);
    town.wait();
    let attempt = town.attempt();
    town.ends(&attempt, &Verdict::Broken("the answer is not HTTP".into()));
    assert_eq!(attempt.number, 2);
    let counts = ["requests_timed_out", "requests_broken", "requests_unreachable"];
    assert_eq!(counts.map(|name| town.status(name)), [1, 1, 0]);
    let status = town.board.status();
    assert_eq!(status["hooks"]["audit"]["last_failure"]["why"], "the answer is not HTTP");
    assert_eq!(status["failing"]["pool"]["a"]["failures"], 2);
}

#[test]
fn a_full_queue_drops_what_comes_says_how_many_and_counts_them() {
    let mut town = Town::with_members(&["a"]);
    town.hook(|hook| hook.queue_bytes_max = 65_536);
    (1..=1_000).for_each(|n| town.publish("news", n));
    let queued = town.status("events");
    assert!((200..1_000).contains(&queued), "{queued}");
    assert_eq!(town.status("dropped_queue_full"), 1_000 - queued);
    let mut next = queued + 1;
    let mut told = 0;
    // When there is room again, the first event behind the gap follows the word of it.
    while let Some(attempt) = town.attempts().pop() {
        for event in events(&attempt) {
            if event["event"] == "missed" {
                assert_eq!(event["reason"], "queue_full");
                told += event["count"].as_u64().unwrap();
            }
        }
        town.ends(&attempt, &Verdict::Delivered);
        if next == queued + 1 {
            town.publish("news", 1_001);
            next += 1;
        }
    }
    assert_eq!(told, 1_000 - queued);
    assert_eq!(town.status("queue_events"), 0);
}

#[test]
fn what_a_worker_could_not_hand_over_is_told_to_every_hook() {
    let mut town = Town::with_members(&["a"]);
    town.happens(What::Missed(17));
    assert!(town.attempts().is_empty());
    for n in 0..64 {
        town.publish(&format!("room{n}"), n);
    }
    let told: Vec<Value> = town.attempts().iter().flat_map(events).collect();
    let missed: Vec<&Value> = told.iter().filter(|event| event["event"] == "missed").collect();
    assert_eq!(missed.len(), 1);
    assert_eq!((&missed[0]["count"], &missed[0]["reason"]), (&17.into(), &"overflow".into()));
}

#[test]
fn a_hook_that_is_removed_takes_its_events_along_and_the_counters_stay() {
    let mut town = Town::with_members(&["a"]);
    (1..=5).for_each(|n| town.publish("news", n));
    let under_way = town.attempt();
    town.publish("news", 6);
    town.settings.hooks.remove("audit");
    town.apply();
    town.ends(&under_way, &Verdict::Delivered);
    assert!(town.attempts().is_empty());
    assert_eq!(town.dispatcher.len(), 0);
    let exposed = town.board.exposition();
    assert!(
        exposed.contains("dunlin_webhook_dropped_hook_removed_total{hook=\"\"} 6"),
        "{exposed}"
    );

    // One of the same name is another.
    town.settings.hooks.insert("audit", hook());
    town.apply();
    town.publish("news", 7);
    assert_eq!(data(&town.attempt()), [7]);
}

#[test]
fn what_waits_leaves_under_the_settings_of_the_hour() {
    let mut town = Town::with_members(&[]);
    town.publish("news", 1);
    assert!(town.attempts().is_empty(), "there is nobody");
    assert_eq!(town.dispatcher.poll_timeout(), None, "and nothing to wait for but the settings");

    let mut pool = town.settings.upstreams["pool"].clone();
    let address = "a.example:80".into();
    pool.members.insert("a", config::Member { address, down: true, ..config::Member::default() });
    town.settings.upstreams.insert("pool", pool.clone());
    town.apply();
    assert!(town.attempts().is_empty(), "it is down");

    let other = config::Upstream {
        members: [(
            "z",
            config::Member { address: "z.example:80".into(), ..config::Member::default() },
        )]
        .into_iter()
        .collect(),
        ..config::Upstream::default()
    };
    town.settings.upstreams.insert("other", other);
    town.hook(|hook| {
        hook.upstream = "other".into();
        hook.path = "/v2".into();
    });
    let attempt = town.attempt();
    assert_eq!((&*attempt.hook.path, member(&attempt).as_str()), ("/v2", "z"));
    town.ends(&attempt, &refused_connection());

    // Its upstream goes, and it goes back to the first, whose member is back.
    pool.members.insert(
        "a",
        config::Member { address: "a.example:80".into(), ..config::Member::default() },
    );
    town.settings.upstreams.insert("pool", pool);
    town.settings.hooks.insert("audit", hook());
    town.settings.upstreams.remove("other");
    town.apply();
    let again = town.attempt();
    assert_eq!((member(&again).as_str(), &again.key), ("a", &attempt.key));
    let gone: Vec<u64> = std::iter::from_fn(|| town.dispatcher.poll_gone()).collect();
    assert_eq!(gone, [attempt.endpoint], "connections to who is gone are let go");
}

#[test]
fn events_of_one_session_keep_their_order_and_its_hooks_choose() {
    let mut town = Town::with_members(&["a"]);
    town.hook(|hook| {
        hook.events =
            [HookEventKind::Connect, HookEventKind::Subscribe, HookEventKind::Disconnect].into();
        hook.channels = Some(config::Pattern::parse("chat:*").unwrap());
    });
    let session = SessionId::from_u64(5).unwrap();
    let user = || Box::from("ada");
    town.happens(What::Connect { session, user: user(), transport: "sse" });
    for channel in ["chat:1", "news", "chat:2"] {
        town.happens(What::Subscribe { session, user: user(), channel: channel.into() });
    }
    town.publish("chat:1", 1);
    let reason = "connection closed".into();
    town.happens(What::Disconnect { session, user: user(), code: 3000, reason });
    let told = events(&town.attempt());
    let told: Vec<_> = told
        .iter()
        .map(|event| (event["event"].as_str().unwrap(), event["channel"].as_str().unwrap_or("")))
        .collect();
    let chat = |channel| ("subscribe", channel);
    assert_eq!(told, [("connect", ""), chat("chat:1"), chat("chat:2"), ("disconnect", "")]);
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
    /// Whatever backends answer and whatever is changed: every event reaches a backend that takes it, those of a
    /// channel in their order, and each batch under one key as one body. Nothing is dropped but what is counted.
    #[test]
    fn nothing_is_lost_and_order_is_kept(steps in prop::collection::vec(step(), 1..200)) {
        let mut town = Town::with_members(&["a", "b", "c"]);
        town.hook(|hook| hook.attempts_max = 1_000);
        let mut published: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut taken: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let mut bodies: BTreeMap<String, Arc<[u8]>> = BTreeMap::new();
        let mut under_way: Vec<Attempt> = Vec::new();
        let mut n = 0;
        let mut end = |town: &mut Town, attempt: &Attempt, verdict: &Verdict| {
            let body = bodies.entry(attempt.key.to_string()).or_insert_with(|| Arc::clone(&attempt.body));
            assert_eq!(body, &attempt.body);
            if *verdict == Verdict::Delivered {
                for event in events(attempt) {
                    let channel = event["channel"].as_str().unwrap().to_owned();
                    taken.entry(channel).or_default().push(event["data"].as_u64().unwrap());
                }
            }
            town.ends(attempt, verdict);
        };
        for step in steps {
            match step {
                Step::Publish(channel) => {
                    n += 1;
                    let channel = format!("room{}", channel % 12);
                    town.publish(&channel, n);
                    published.entry(channel).or_default().push(n);
                }
                Step::Ends(which, how) if !under_way.is_empty() => {
                    let attempt = under_way.swap_remove(usize::from(which) % under_way.len());
                    let verdict = match how % 8 {
                        0 => refused_connection(),
                        1 => Verdict::TimedOut,
                        2 => Verdict::Broken("reset".into()),
                        3 => busy(500),
                        4 => Verdict::Busy { status: 429, after_ms: Some(u64::from(how) * 10) },
                        5 => Verdict::Moved,
                        _ => Verdict::Delivered,
                    };
                    end(&mut town, &attempt, &verdict);
                }
                Step::Ends(..) => {}
                Step::Wait => {
                    if town.dispatcher.poll_timeout().is_some() {
                        town.wait();
                    }
                }
                Step::Settings(what) => {
                    let mut pool = town.settings.upstreams["pool"].clone();
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
                    town.settings.upstreams.insert("pool", pool);
                    town.apply();
                }
            }
            under_way.append(&mut town.attempts());
            while town.dispatcher.poll_gone().is_some() {}
        }
        let mut pool = town.settings.upstreams["pool"].clone();
        pool.members.insert("d", config::Member { address: "d.example:80".into(), ..config::Member::default() });
        town.settings.upstreams.insert("pool", pool);
        town.apply();
        loop {
            under_way.append(&mut town.attempts());
            match under_way.pop() {
                Some(attempt) => end(&mut town, &attempt, &Verdict::Delivered),
                None if town.dispatcher.len() > 0 => drop(town.wait()),
                None => break,
            }
        }
        prop_assert_eq!(taken, published);
        prop_assert_eq!(town.status("queue_bytes"), 0);
    }
}
