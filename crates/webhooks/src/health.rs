//! Active health checks: each member of an upstream gets periodic requests, and receives no other requests while they
//! fail. This module has no I/O and no clock; the caller sends the requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use dunlin_config as config;
use dunlin_config::Map;
use dunlin_hub::Now;
use dunlin_metrics::{Collector, DescriptorEncoder, LiveSeries, metrics};
use dunlin_wire::backoff::Jitter;
use hashbrown::HashMap;
use serde_json::{Value, json};

/// Maximum number of concurrent checks. Limits sockets and bursts, whatever the number of members.
const IN_FLIGHT_MAX: usize = 256;
/// Period in milliseconds over which the first checks of an upstream are distributed; an interval, if that is shorter.
const FIRST_WITHIN_MS: u64 = 1_000;

metrics! {
    /// A metric of each upstream of `webhooks.upstreams`.
    UpstreamMetric,
    /// The metrics of one upstream.
    UpstreamCounters;
    Members, Gauge, "upstream_members", "Members of an upstream that has checks.";
    Unhealthy, Gauge, "upstream_members_unhealthy", "Members that get no requests, for they fail their checks.";
    Checks, Counter, "upstream_checks_total", "Checks that have ended.";
    Failed, Counter, "upstream_checks_failed_total", "Checks that a member has not passed.";
    Changes, Counter, "upstream_health_changes_total", "Times that a member became healthy, or ceased to be.";
}

/// A member that failed its checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnhealthyMember {
    /// The address that was checked.
    pub address: Arc<str>,
    /// The time of the change, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The error of the last check.
    pub error: Arc<str>,
}

/// The unhealthy members of all upstreams. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Unhealthy(Map<Map<UnhealthyMember>>);

impl Unhealthy {
    /// Returns the unhealthy members of an upstream.
    pub fn of(&self, upstream: &str) -> Map<UnhealthyMember> {
        self.0.get(upstream).cloned().unwrap_or_default()
    }

    fn remove(&mut self, upstream: &str, member: &str) {
        let mut members = self.of(upstream);
        if members.remove(member).is_none() {
            return;
        }
        match members.is_empty() {
            true => drop(self.0.remove(upstream)),
            false => self.0.insert(upstream, members),
        }
    }
}

/// A check to execute: a `GET` of the path in the upstream's `health_check`, on a separate connection.
#[derive(Clone, Debug)]
pub struct Check {
    /// Passed back with the result.
    pub tag: u64,
    /// The upstream's name.
    pub name: Arc<str>,
    /// Settings of the upstream.
    pub upstream: Arc<config::Upstream>,
    /// The member to check.
    pub member: Arc<config::Member>,
}

/// Schedules health checks and evaluates their results.
///
/// Pass settings and results when they arrive. Call [`poll_check`](HealthChecker::poll_check) until it returns
/// `None`, and again at [`poll_timeout`](HealthChecker::poll_timeout). Pass exactly one result for each check.
#[derive(Debug)]
pub struct HealthChecker {
    stats: Arc<UpstreamStats>,
    /// The counters of upstreams with members to check.
    counters: HashMap<Arc<str>, Arc<UpstreamCounters>>,
    settings: Map<config::Upstream>,
    /// Members by number.
    members: HashMap<u64, CheckedMember>,
    /// Numbers of members, by upstream and name.
    numbers: HashMap<Arc<str>, HashMap<Arc<str>, u64>>,
    last: u64,
    due: BinaryHeap<Reverse<(u64, u64)>>,
    in_flight: usize,
    jitter: Jitter,
    unhealthy: Unhealthy,
}

#[derive(Debug)]
struct CheckedMember {
    upstream: Arc<str>,
    name: Arc<str>,
    config: Arc<config::Member>,
    /// Number of consecutive checks that contradict the current state.
    against: u32,
    is_unhealthy: bool,
}

impl HealthChecker {
    /// Creates a checker without upstreams. `seed` is any number; it varies the times of checks.
    pub fn new(stats: Arc<UpstreamStats>, seed: u64) -> HealthChecker {
        HealthChecker {
            stats,
            counters: HashMap::new(),
            settings: Map::new(),
            members: HashMap::new(),
            numbers: HashMap::new(),
            last: 0,
            due: BinaryHeap::new(),
            in_flight: 0,
            jitter: Jitter::new(seed),
            unhealthy: Unhealthy::default(),
        }
    }

    /// Applies new settings of the upstreams. The state of a member is reset when its address or its upstream's
    /// checks change; a new member counts as healthy.
    pub fn handle_settings(&mut self, now: Now, new: &Map<config::Upstream>) {
        if self.settings.is_same(new) {
            return;
        }
        let old = std::mem::replace(&mut self.settings, new.clone());
        for (upstream, before, after) in new.changes_from(&old) {
            let none = Map::new();
            let members = |of: Option<&Arc<config::Upstream>>| {
                of.filter(|of| of.health_check.is_on()).map_or(&none, |of| &of.members).clone()
            };
            let (before, members) = (members(before), members(after));
            for (name, was, is) in members.changes_from(&before) {
                let moved = was.map(|was| &was.address) != is.map(|is| &is.address);
                if moved && was.is_some() {
                    self.forget(upstream, name);
                }
                match is {
                    Some(member) if moved => {
                        let check = after.map_or(0, |of| of.health_check.interval_ms);
                        self.begin(now, (upstream, name), member, check);
                    }
                    Some(member) => {
                        if let Some(known) = self.number(upstream, name)
                            && let Some(known) = self.members.get_mut(&known)
                        {
                            known.config = Arc::clone(member);
                        }
                    }
                    None => {}
                }
            }
            if members.is_empty() {
                self.counters.remove(upstream);
                continue;
            }
            let begin = || self.stats.0.begin(Arc::clone(upstream));
            let counters = self.counters.entry(Arc::clone(upstream)).or_insert_with(begin);
            counters.set(UpstreamMetric::Members, members.len() as u64);
            let unhealthy = self.unhealthy.of(upstream).len() as u64;
            counters.set(UpstreamMetric::Unhealthy, unhealthy);
        }
    }

    /// Returns the next check that is due.
    pub fn poll_check(&mut self, now: Now) -> Option<Check> {
        while self.in_flight < IN_FLIGHT_MAX
            && let Some(Reverse((at_ms, _))) = self.due.peek()
            && *at_ms <= now.ms
            && let Some(Reverse((_, number))) = self.due.pop()
        {
            let Some(member) = self.members.get(&number) else { continue };
            let Some(upstream) = self.settings.get_shared(&member.upstream) else { continue };
            self.in_flight += 1;
            return Some(Check {
                tag: number,
                name: Arc::clone(&member.upstream),
                upstream: Arc::clone(upstream),
                member: Arc::clone(&member.config),
            });
        }
        None
    }

    /// Returns when the next check is due, in milliseconds; `None`: not before a result or new settings.
    pub fn poll_timeout(&self) -> Option<u64> {
        let next = self.due.peek().filter(|_| self.in_flight < IN_FLIGHT_MAX);
        next.map(|Reverse((at_ms, _))| *at_ms)
    }

    /// Handles the result of a check. Returns whether the health of the member has changed.
    pub fn handle_result(&mut self, now: Now, tag: u64, result: Result<(), Arc<str>>) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        // The member may have been removed meanwhile.
        let Some(member) = self.members.get_mut(&tag) else { return false };
        let Some(upstream) = self.settings.get(&member.upstream) else { return false };
        let check = &upstream.health_check;
        self.due.push(Reverse((now.ms + check.interval_ms, tag)));
        let Some(stats) = self.counters.get(&member.upstream) else { return false };
        stats.count(UpstreamMetric::Checks);
        if result.is_err() {
            stats.count(UpstreamMetric::Failed);
        }
        if result.is_ok() != member.is_unhealthy {
            member.against = 0;
            return false;
        }
        member.against += 1;
        if member.against < if member.is_unhealthy { check.rise } else { check.fall } {
            return false;
        }
        member.against = 0;
        member.is_unhealthy = result.is_err();
        let (of, name, address) = (&member.upstream, &member.name, &member.config.address);
        match result {
            Ok(()) => {
                tracing::info!(upstream = %of, member = %name, %address, "a member passes its checks and gets requests again");
                self.unhealthy.remove(of, name);
            }
            Err(error) => {
                tracing::warn!(upstream = %of, member = %name, %address, "a member fails its checks and gets no requests: {error}");
                let address = Arc::clone(address);
                let found = UnhealthyMember { address, since_unix_ms: now.unix_ms, error };
                let mut members = self.unhealthy.of(of);
                members.insert(Arc::clone(name), found);
                self.unhealthy.0.insert(Arc::clone(of), members);
            }
        }
        stats.count(UpstreamMetric::Changes);
        stats.set(UpstreamMetric::Unhealthy, self.unhealthy.of(of).len() as u64);
        true
    }

    /// Returns the unhealthy members.
    pub fn unhealthy(&self) -> &Unhealthy {
        &self.unhealthy
    }

    fn number(&self, upstream: &str, name: &str) -> Option<u64> {
        self.numbers.get(upstream)?.get(name).copied()
    }

    fn begin(
        &mut self,
        now: Now,
        (upstream, name): (&Arc<str>, &Arc<str>),
        config: &Arc<config::Member>,
        interval_ms: u64,
    ) {
        self.last += 1;
        let member = CheckedMember {
            upstream: Arc::clone(upstream),
            name: Arc::clone(name),
            config: Arc::clone(config),
            against: 0,
            is_unhealthy: false,
        };
        self.members.insert(self.last, member);
        self.numbers.entry(Arc::clone(upstream)).or_default().insert(Arc::clone(name), self.last);
        let within_ms = interval_ms.clamp(1, FIRST_WITHIN_MS);
        self.due.push(Reverse((now.ms + self.jitter.below(within_ms), self.last)));
    }

    fn forget(&mut self, upstream: &Arc<str>, name: &Arc<str>) {
        if let Some(numbers) = self.numbers.get_mut(upstream) {
            if let Some(number) = numbers.remove(name) {
                self.members.remove(&number);
            }
            if numbers.is_empty() {
                self.numbers.remove(upstream);
            }
        }
        self.unhealthy.remove(upstream, name);
    }
}

/// Counters of upstreams with checks. Written by one thread, read by any.
#[derive(Debug, Default)]
pub struct UpstreamStats(LiveSeries<Arc<str>, UpstreamCounters>);

impl UpstreamStats {
    /// Returns the status for `/status/upstreams`: counters and unhealthy members.
    pub fn status(&self, unhealthy: &Unhealthy) -> Value {
        let all = self.0.live();
        let upstreams = all.iter().map(|(name, counters)| {
            let failing = unhealthy.of(name);
            let failing = failing.iter().map(|(member, of)| {
                let status = json!({
                    "address": &*of.address, "since_ms": of.since_unix_ms, "error": &*of.error,
                });
                (member.to_owned(), status)
            });
            let status = json!({
                "members": counters.get(UpstreamMetric::Members),
                "checks": counters.get(UpstreamMetric::Checks),
                "checks_failed": counters.get(UpstreamMetric::Failed),
                "unhealthy": failing.collect::<serde_json::Map<_, _>>(),
            });
            (name.to_string(), status)
        });
        Value::Object(upstreams.collect())
    }
}

impl Collector for UpstreamStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = self.0.live();
        let series = all.iter().map(|(name, of)| ([("upstream", &**name)], &**of));
        UpstreamCounters::encode(&mut encoder, series)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(members: &[(&str, &str)], path: &str) -> Map<config::Upstream> {
        let members = members.iter().map(|&(name, address)| {
            (name, config::Member { address: address.into(), ..config::Member::default() })
        });
        let check = config::HealthCheck {
            path: Some(path.into()).filter(|_| !path.is_empty()),
            interval_ms: 1_000,
            rise: 2,
            fall: 3,
            ..config::HealthCheck::default()
        };
        let upstream = config::Upstream {
            members: members.collect(),
            health_check: check,
            ..config::Upstream::default()
        };
        [("pool", upstream)].into_iter().collect()
    }

    fn at(ms: u64) -> Now {
        Now { ms, unix_ms: ms }
    }

    fn checker() -> HealthChecker {
        HealthChecker::new(Arc::default(), 7)
    }

    /// Executes the checks of one interval; `is_up` returns by address whether a member passes.
    fn round(checker: &mut HealthChecker, now: &mut Now, is_up: impl Fn(&str) -> bool) -> usize {
        *now = at(now.ms + 1_000);
        let mut made = 0;
        while let Some(check) = checker.poll_check(*now) {
            let result = if is_up(&check.member.address) { Ok(()) } else { Err("refused".into()) };
            checker.handle_result(*now, check.tag, result);
            made += 1;
        }
        made
    }

    fn failing(checker: &HealthChecker) -> Vec<String> {
        checker.unhealthy().of("pool").keys().map(str::to_owned).collect()
    }

    #[test]
    fn a_member_is_out_after_so_many_failures_in_a_row_and_back_after_so_many_passes() {
        let (mut checker, mut now) = (checker(), at(0));
        checker.handle_settings(now, &settings(&[("a", "a:1"), ("b", "b:1")], "/health"));
        assert_eq!(round(&mut checker, &mut now, |_| true), 2);
        for _ in 0..2 {
            round(&mut checker, &mut now, |of| of != "a:1");
        }
        round(&mut checker, &mut now, |_| true);
        for _ in 0..2 {
            round(&mut checker, &mut now, |of| of != "a:1");
        }
        assert!(failing(&checker).is_empty(), "they were not in a row");
        round(&mut checker, &mut now, |of| of != "a:1");
        assert_eq!(failing(&checker), ["a"]);
        round(&mut checker, &mut now, |_| true);
        assert_eq!(failing(&checker), ["a"], "one pass is not enough");
        round(&mut checker, &mut now, |_| true);
        assert!(failing(&checker).is_empty());
        let status = checker.stats.status(checker.unhealthy());
        assert_eq!(status["pool"]["checks"], 18, "{status}");
        assert_eq!(status["pool"]["checks_failed"], 5, "{status}");
    }

    #[test]
    fn health_follows_the_address_and_the_checks_of_a_member() {
        let (mut checker, mut now) = (checker(), at(0));
        let fail = |checker: &mut HealthChecker, now: &mut Now| {
            for _ in 0..3 {
                round(checker, now, |_| false);
            }
        };
        checker.handle_settings(now, &settings(&[("a", "a:1"), ("b", "b:1")], "/health"));
        fail(&mut checker, &mut now);
        assert_eq!(failing(&checker), ["a", "b"]);
        checker.handle_settings(now, &settings(&[("a", "a:2"), ("b", "b:1")], "/health"));
        assert_eq!(failing(&checker), ["b"], "another address is another backend");
        checker.handle_settings(now, &settings(&[("a", "a:2")], "/other"));
        assert!(failing(&checker).is_empty());
        assert_eq!(round(&mut checker, &mut now, |_| true), 1);
        fail(&mut checker, &mut now);
        let asked = checker.poll_check(at(now.ms + 1_000)).unwrap();
        checker.handle_settings(now, &settings(&[("a", "a:2")], ""));
        assert!(failing(&checker).is_empty() && checker.poll_timeout().is_none());
        checker.handle_result(now, asked.tag, Ok(()));
        assert_eq!((checker.in_flight, checker.members.len()), (0, 0));
        assert_eq!(checker.stats.status(checker.unhealthy()), json!({}));
    }

    #[test]
    fn however_many_members_there_are_only_so_many_are_asked_at_once() {
        let members: Vec<String> = (0..10_000).map(|n| format!("m{n}:1")).collect();
        let members: Vec<_> = members.iter().map(|of| (&**of, &**of)).collect();
        let mut checker = checker();
        checker.handle_settings(at(0), &settings(&members, "/health"));
        let now = at(FIRST_WITHIN_MS);
        let asked: Vec<Check> = std::iter::from_fn(|| checker.poll_check(now)).collect();
        assert_eq!(asked.len(), IN_FLIGHT_MAX);
        assert_eq!(checker.poll_timeout(), None, "a result comes first");
        checker.handle_result(now, asked[0].tag, Ok(()));
        assert!(checker.poll_check(now).is_some() && checker.poll_check(now).is_none());
    }
}
