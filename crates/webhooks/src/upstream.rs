//! An upstream: selects the next member, and tracks circuits and health.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use dunlin_config as config;
use dunlin_wire::backoff::Backoff;
use hashbrown::HashMap;

use crate::health::UnhealthyMember;

/// Increment of a member's pass for each request, at weight 1. A larger value makes the shares more precise.
const STRIDE: u128 = 1 << 32;
/// How long the circuit of a failing member is open.
const CIRCUIT_BACKOFF: Backoff = Backoff { min_ms: 1_000, max_ms: 30_000 };

/// The members of an upstream. Each request goes to the member with the lowest pass, which is then increased by the
/// inverse of its weight (stride scheduling); the cost does not depend on the weights. A failing member gets no
/// requests while its circuit is open, each time for twice as long; then a single request tries it. An unhealthy member
/// gets none until it is healthy.
///
/// Each selection must end with one of [`handle_success`](Upstream::handle_success),
/// [`handle_failure`](Upstream::handle_failure) and [`handle_nothing`](Upstream::handle_nothing).
#[derive(Debug)]
pub struct Upstream {
    config: Arc<config::Upstream>,
    members: HashMap<Arc<str>, MemberState>,
    /// Pass, ticket and name of members, the lowest pass first. An entry is valid if its ticket is the member's.
    schedule: BinaryHeap<Reverse<(u128, u64, Arc<str>)>>,
    /// Pass of the last selected member. Members enter the schedule with at least this pass.
    pass: u128,
    tickets: u64,
    /// When circuits close.
    open_circuits: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    unhealthy: config::Map<UnhealthyMember>,
}

#[derive(Debug)]
struct MemberState {
    config: Arc<config::Member>,
    /// Its connection pool; see [`Selection::pool`].
    pool: u64,
    pass: u128,
    /// The ticket of its valid entry in the schedule; 0 if it has none.
    ticket: u64,
    circuit: Circuit,
    is_unhealthy: bool,
}

/// The state of a member as its requests show it.
#[derive(Debug, Default)]
struct Circuit {
    state: CircuitState,
    /// Consecutive failures.
    failures: u32,
    /// The client of the last failed request.
    failed_by: Option<u64>,
    /// How often the circuit has opened since the last success.
    opened: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CircuitState {
    #[default]
    Closed,
    /// Open until this time, in milliseconds.
    Open(u64),
    /// One request may try the member.
    HalfOpen,
    /// One request is trying the member.
    Trying,
}

/// The selected member.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Its name.
    pub name: Arc<str>,
    /// Its settings.
    pub config: Arc<config::Member>,
    /// The connection pool of the request. Selections with the same number have equal connection settings; different
    /// settings get a different number.
    pub pool: u64,
}

/// A failed request to a member.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The client of the request. Consecutive failures of the same client count once, so that a client with failing
    /// requests cannot block a backend for others. With `None` each failure counts.
    pub by: Option<u64>,
    /// Number of consecutive failures that open the circuit; 0: it does not open.
    pub failures_max: u32,
    /// Pause in milliseconds requested by the member; by default a back-off.
    pub retry_after_ms: Option<u64>,
}

/// A circuit that has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCircuit {
    /// When the circuit closes, in milliseconds.
    pub until_ms: u64,
    /// Consecutive failures so far.
    pub failures: u32,
}

/// Assigns numbers to connection pools, and collects unused ones.
#[derive(Debug, Default)]
pub struct Pools {
    last: u64,
    unused: Vec<u64>,
}

impl Pools {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns a pool that no selection will use again.
    pub fn poll_unused(&mut self) -> Option<u64> {
        self.unused.pop()
    }
}

impl Upstream {
    /// Creates an upstream with healthy members.
    pub fn new(config: &Arc<config::Upstream>, pools: &mut Pools) -> Upstream {
        let mut upstream = Upstream {
            config: Arc::new(config::Upstream::default()),
            members: HashMap::new(),
            schedule: BinaryHeap::new(),
            pass: 0,
            tickets: 0,
            open_circuits: BinaryHeap::new(),
            unhealthy: config::Map::new(),
        };
        upstream.update(config, pools);
        upstream
    }

    /// Returns the settings.
    pub fn config(&self) -> &Arc<config::Upstream> {
        &self.config
    }

    /// Applies new settings. The cost depends on the number of changed members.
    pub fn update(&mut self, new: &Arc<config::Upstream>, pools: &mut Pools) {
        if Arc::ptr_eq(&self.config, new) {
            return;
        }
        let old = std::mem::replace(&mut self.config, Arc::clone(new));
        for (name, _, after) in new.members.changes_from(&old.members) {
            let Some(after) = after else {
                if let Some(member) = self.members.remove(name) {
                    pools.unused.push(member.pool);
                }
                continue;
            };
            let is_unhealthy = is_unhealthy(&self.unhealthy, name, after);
            match self.members.get_mut(name) {
                Some(member) => {
                    if member.config.address != after.address {
                        member.renew(pools);
                    }
                    member.config = Arc::clone(after);
                    member.is_unhealthy = is_unhealthy;
                }
                None => {
                    let member = MemberState {
                        config: Arc::clone(after),
                        pool: pools.next(),
                        pass: self.pass,
                        ticket: 0,
                        circuit: Circuit::default(),
                        is_unhealthy,
                    };
                    self.members.insert(Arc::clone(name), member);
                }
            }
            self.enter(name);
        }
        if !shares_connections(&old, new) {
            self.members.values_mut().for_each(|member| member.renew(pools));
            let names: Vec<Arc<str>> = self.members.keys().cloned().collect();
            names.iter().for_each(|name| self.enter(name));
        }
    }

    /// Removes all members.
    pub fn clear(&mut self, pools: &mut Pools) {
        pools.unused.extend(self.members.drain().map(|(_, member)| member.pool));
        self.config = Arc::default();
    }

    /// Applies the health of members. The cost depends on the number of changed members.
    pub fn handle_health(&mut self, unhealthy: &config::Map<UnhealthyMember>) {
        if self.unhealthy.is_same(unhealthy) {
            return;
        }
        let old = std::mem::replace(&mut self.unhealthy, unhealthy.clone());
        for (name, ..) in unhealthy.changes_from(&old) {
            let Some(member) = self.members.get_mut(name) else { continue };
            let was_unhealthy = member.is_unhealthy;
            member.is_unhealthy = is_unhealthy(unhealthy, name, &member.config);
            if was_unhealthy && !member.is_unhealthy {
                // The cause of earlier failures has been fixed.
                member.circuit = Circuit::default();
            }
            self.enter(name);
        }
    }

    /// Selects a member that is not in `tried`. `None` if no other member is available.
    pub fn select(&mut self, now_ms: u64, tried: &[Arc<str>]) -> Option<Selection> {
        self.close_expired_circuits(now_ms);
        let mut passed_over = Vec::new();
        let selected = loop {
            match self.pop_lowest() {
                Some(name) if tried.contains(&name) => passed_over.push(name),
                other => break other,
            }
        };
        passed_over.iter().for_each(|name| self.enter(name));
        let name = selected?;
        let member = self.members.get_mut(&name)?;
        self.pass = member.pass;
        member.pass += STRIDE / u128::from(member.config.weight.max(1));
        if member.circuit.state == CircuitState::HalfOpen {
            member.circuit.state = CircuitState::Trying;
        }
        let selected = Selection {
            config: Arc::clone(&member.config),
            pool: member.pool,
            name: Arc::clone(&name),
        };
        self.enter(&name);
        Some(selected)
    }

    /// Handles a failed request of this pool. Returns the circuit if this failure opened it.
    pub fn handle_failure(
        &mut self,
        now_ms: u64,
        name: &str,
        pool: u64,
        failure: Failure,
    ) -> Option<OpenCircuit> {
        let (name, member) = self.members.get_key_value(name)?;
        let name = Arc::clone(name);
        if member.pool != pool {
            return None;
        }
        let circuit = &mut self.members.get_mut(&name)?.circuit;
        // Failures of requests that were in flight when the circuit opened do not prolong it.
        if matches!(circuit.state, CircuitState::Open(until_ms) if until_ms > now_ms) {
            return None;
        }
        let tried = circuit.state == CircuitState::Trying;
        let counts = failure.by.is_none() || circuit.failed_by != failure.by || tried;
        circuit.failed_by = failure.by;
        circuit.failures = circuit.failures.saturating_add(u32::from(counts));
        let failures = circuit.failures;
        if failure.failures_max == 0 || !tried && failures < failure.failures_max {
            self.handle_nothing(&name, pool);
            return None;
        }
        circuit.opened = circuit.opened.saturating_add(1);
        let backoff_ms = CIRCUIT_BACKOFF.delay_ms(circuit.opened);
        let until_ms = now_ms + failure.retry_after_ms.unwrap_or(backoff_ms).max(1);
        circuit.state = CircuitState::Open(until_ms);
        self.enter(&name);
        self.open_circuits.push(Reverse((until_ms, name)));
        Some(OpenCircuit { until_ms, failures })
    }

    /// Handles a successful request of this pool. Returns whether earlier requests had failed.
    pub fn handle_success(&mut self, name: &str, pool: u64) -> bool {
        let Some((name, member)) = self.members.get_key_value(name) else { return false };
        let Circuit { state, failures, .. } = member.circuit;
        if member.pool != pool || failures == 0 && state == CircuitState::Closed {
            return false;
        }
        let name = Arc::clone(name);
        let Some(MemberState { circuit, .. }) = self.members.get_mut(&name) else { return false };
        // Keep an open circuit open, although a request sent earlier has succeeded.
        let state = match circuit.state {
            CircuitState::Open(_) => circuit.state,
            _ => CircuitState::Closed,
        };
        *circuit = Circuit { state, ..Circuit::default() };
        self.enter(&name);
        failures > 0
    }

    /// Handles a request of this pool that was not sent, or whose result does not indicate the member's health.
    pub fn handle_nothing(&mut self, name: &str, pool: u64) {
        let Some((name, member)) = self.members.get_key_value(name) else { return };
        if member.pool != pool || member.circuit.state != CircuitState::Trying {
            return;
        }
        let name = Arc::clone(name);
        if let Some(member) = self.members.get_mut(&name) {
            member.circuit.state = CircuitState::HalfOpen;
        }
        self.enter(&name);
    }

    /// Returns members to the schedule whose circuit closes.
    fn close_expired_circuits(&mut self, now_ms: u64) {
        while let Some(Reverse((until_ms, _))) = self.open_circuits.peek()
            && *until_ms <= now_ms
            && let Some(Reverse((until_ms, name))) = self.open_circuits.pop()
        {
            if let Some(member) = self.members.get_mut(&name)
                && member.circuit.state == CircuitState::Open(until_ms)
            {
                member.circuit.state = CircuitState::HalfOpen;
                self.enter(&name);
            }
        }
    }

    /// Removes the member with the lowest pass from the schedule.
    fn pop_lowest(&mut self) -> Option<Arc<str>> {
        while let Some(Reverse((_, ticket, name))) = self.schedule.pop() {
            if let Some(member) = self.members.get_mut(&name)
                && member.ticket == ticket
            {
                member.ticket = 0;
                return Some(name);
            }
        }
        None
    }

    /// Adds a member to the schedule if it is available; otherwise removes it.
    fn enter(&mut self, name: &Arc<str>) {
        let Some(member) = self.members.get_mut(name) else { return };
        member.ticket = 0;
        let may_be_asked =
            matches!(member.circuit.state, CircuitState::Closed | CircuitState::HalfOpen);
        if member.config.down || member.is_unhealthy || !may_be_asked {
            return;
        }
        self.tickets += 1;
        member.ticket = self.tickets;
        // A member that was unavailable does not catch up on missed requests.
        member.pass = member.pass.max(self.pass);
        self.schedule.push(Reverse((member.pass, member.ticket, Arc::clone(name))));
        if self.schedule.len() > 2 * self.members.len() + 16 {
            let members = &self.members;
            self.schedule.retain(|Reverse((_, ticket, name))| {
                members.get(name).is_some_and(|member| member.ticket == *ticket)
            });
        }
    }
}

impl MemberState {
    /// Replaces the connection pool and resets the circuit.
    fn renew(&mut self, pools: &mut Pools) {
        pools.unused.push(self.pool);
        self.pool = pools.next();
        self.circuit = Circuit::default();
    }
}

/// Returns whether the member is unhealthy at its current address.
fn is_unhealthy(
    unhealthy: &config::Map<UnhealthyMember>,
    name: &str,
    member: &config::Member,
) -> bool {
    unhealthy.get(name).is_some_and(|of| of.address == member.address)
}

/// Returns whether both settings can share connections.
fn shares_connections(a: &config::Upstream, b: &config::Upstream) -> bool {
    let settings = |of: &config::Upstream| {
        (of.tls, of.ca.clone(), of.connect_timeout_ms, of.timeout_ms, of.connections_per_member_max)
    };
    settings(a) == settings(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(members: &[(&str, u32, bool)]) -> Arc<config::Upstream> {
        let members = members.iter().map(|&(name, weight, down)| {
            let address = format!("{name}.example:80").into();
            (name, config::Member { address, weight, down })
        });
        Arc::new(config::Upstream { members: members.collect(), ..config::Upstream::default() })
    }

    fn shares(upstream: &mut Upstream, now_ms: u64, requests: usize) -> Vec<(String, usize)> {
        let mut shares = std::collections::BTreeMap::<String, usize>::new();
        for _ in 0..requests {
            let Some(selected) = upstream.select(now_ms, &[]) else { break };
            *shares.entry(selected.name.to_string()).or_default() += 1;
        }
        shares.into_iter().collect()
    }

    fn share(name: &str, requests: usize) -> (String, usize) {
        (name.to_owned(), requests)
    }

    #[test]
    fn requests_are_shared_by_weight_and_none_goes_to_a_member_that_is_down() {
        let mut pools = Pools::default();
        let three = upstream(&[("a", 3, false), ("b", 1, false), ("c", 5, true)]);
        let mut of = Upstream::new(&three, &mut pools);
        assert_eq!(shares(&mut of, 0, 400), [share("a", 300), share("b", 100)]);
        of.update(&upstream(&[("a", 1, true), ("b", 1, false), ("c", 1, false)]), &mut pools);
        assert_eq!(shares(&mut of, 0, 100), [share("b", 50), share("c", 50)]);
        assert_eq!(pools.poll_unused(), None, "nobody has moved");
        of.update(&upstream(&[]), &mut pools);
        assert!(of.select(0, &[]).is_none());
        let gone: Vec<u64> = std::iter::from_fn(|| pools.poll_unused()).collect();
        assert_eq!(gone.len(), 3);
    }

    /// Returns a failure that opens the circuit at once.
    fn failure(retry_after_ms: Option<u64>) -> Failure {
        Failure { by: None, failures_max: 1, retry_after_ms }
    }

    fn open(until_ms: u64, failures: u32) -> Option<OpenCircuit> {
        Some(OpenCircuit { until_ms, failures })
    }

    #[test]
    fn the_circuit_of_a_failing_member_is_open_longer_each_time_and_closes_again() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false), ("b", 1, false)]), &mut pools);
        let a = of.select(0, &[]).unwrap();
        assert_eq!(of.handle_failure(0, &a.name, a.pool, failure(None)), open(1_000, 1));
        let sent_before = of.handle_failure(5, &a.name, a.pool, failure(None));
        assert_eq!(sent_before, None, "sent before it was known");
        assert_eq!(shares(&mut of, 999, 10), [share("b", 10)]);
        let one_tries = shares(&mut of, 1_000, 10);
        assert_eq!(one_tries, [share("a", 1), share("b", 9)], "and it does not catch up");
        assert_eq!(of.handle_failure(1_000, "a", a.pool, failure(None)), open(3_000, 2));
        assert_eq!(shares(&mut of, 3_000, 4), [share("a", 1), share("b", 3)]);
        of.handle_nothing("a", a.pool);
        assert_eq!(shares(&mut of, 3_000, 4), [share("a", 1), share("b", 3)], "another tries");
        let as_it_asked = of.handle_failure(9_000, "a", a.pool, failure(Some(70_000)));
        assert_eq!(as_it_asked, open(79_000, 3));
        assert!(of.handle_success("a", a.pool), "to what was sent before");
        assert_eq!(shares(&mut of, 10_000, 4), [share("b", 4)]);
        assert_eq!(shares(&mut of, 80_000, 4), [share("a", 1), share("b", 3)]);
        assert_eq!(of.handle_failure(80_000, "a", a.pool, failure(None)), open(81_000, 1));
        assert_eq!(shares(&mut of, 81_000, 2), [share("a", 1), share("b", 1)]);
        assert!(of.handle_success("a", a.pool) && !of.handle_success("a", a.pool));
        assert_eq!(shares(&mut of, 81_000, 10), [share("a", 5), share("b", 5)]);
    }

    #[test]
    fn failures_of_one_client_count_once() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut pools);
        let pool = of.select(0, &[]).unwrap().pool;
        let by = |by| Failure { by: Some(by), failures_max: 2, retry_after_ms: None };
        assert!((0..100).all(|at_ms| of.handle_failure(at_ms, "a", pool, by(7)).is_none()));
        assert!(of.handle_success("a", pool));
        assert_eq!(of.handle_failure(100, "a", pool, by(1)), None, "they were not in a row");
        assert_eq!(of.handle_failure(100, "a", pool, by(2)), open(1_100, 2));
        assert!(of.select(1_099, &[]).is_none() && of.select(1_100, &[]).is_some());
        assert_eq!(of.handle_failure(1_100, "a", pool, by(2)), open(3_100, 3), "a try is one");
        let off = Failure { by: None, failures_max: 0, retry_after_ms: None };
        assert!(of.select(3_100, &[]).is_some());
        assert_eq!(of.handle_failure(3_100, "a", pool, off), None);
        assert!(of.select(3_100, &[]).is_some(), "another may try");
    }

    #[test]
    fn a_member_that_fails_its_checks_is_left_out_until_it_passes_them() {
        let mut pools = Pools::default();
        let both = upstream(&[("a", 1, false), ("b", 1, false)]);
        let mut of = Upstream::new(&both, &mut pools);
        let unhealthy = |address: &str| {
            let member = UnhealthyMember { address: address.into(), ..UnhealthyMember::default() };
            [("a", member)].into_iter().collect::<config::Map<_>>()
        };
        let a = of.select(0, &[]).unwrap();
        of.handle_failure(0, "a", a.pool, failure(Some(60_000)));
        of.handle_health(&unhealthy("a.example:80"));
        assert_eq!(shares(&mut of, 60_000, 4), [share("b", 4)], "though its circuit is closed");
        of.handle_health(&config::Map::new());
        assert_eq!(shares(&mut of, 60_000, 4), [share("a", 2), share("b", 2)]);
        // Health checked at another address does not apply.
        of.handle_health(&unhealthy("elsewhere.example:80"));
        assert_eq!(shares(&mut of, 60_000, 4), [share("a", 2), share("b", 2)]);
        let mut moved = config::Upstream::clone(&both);
        let address = "elsewhere.example:80".into();
        moved.members.insert("a", config::Member { address, ..config::Member::default() });
        of.update(&Arc::new(moved), &mut pools);
        assert_eq!(shares(&mut of, 60_000, 4), [share("b", 4)]);
    }

    #[test]
    fn a_second_attempt_goes_to_another_member_if_there_is_one() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 9, false), ("b", 1, false)]), &mut pools);
        for _ in 0..20 {
            assert_eq!(&*of.select(0, &["a".into()]).unwrap().name, "b");
        }
        assert!(of.select(0, &["a".into(), "b".into()]).is_none());
        assert!(of.select(0, &[]).is_some(), "they are there for others");
    }

    #[test]
    fn another_address_is_another_backend() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut pools);
        let before = of.select(0, &[]).unwrap();
        of.handle_failure(0, "a", before.pool, failure(None));
        let mut moved = config::Upstream::clone(&upstream(&[]));
        let address = "elsewhere.example:80".into();
        moved.members.insert("a", config::Member { address, ..config::Member::default() });
        of.update(&Arc::new(moved.clone()), &mut pools);
        let after = of.select(0, &[]).expect("nothing is known against it");
        assert_ne!(before.pool, after.pool);
        assert_eq!(pools.poll_unused(), Some(before.pool));
        assert_eq!(
            of.handle_failure(0, "a", before.pool, failure(None)),
            None,
            "an answer from where it was"
        );

        moved.tls = true;
        of.update(&Arc::new(moved), &mut pools);
        assert_eq!(pools.poll_unused(), Some(after.pool), "connections are opened anew");
    }

    #[test]
    fn the_schedule_takes_no_more_memory_than_members() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut pools);
        for weight in 1..1_000 {
            of.update(&upstream(&[("a", weight, false)]), &mut pools);
        }
        assert!(of.schedule.len() <= 18, "{}", of.schedule.len());
    }
}
