//! An upstream: which of its members is asked next, and whose circuit is open.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use dunlin_config as config;
use dunlin_wire::backoff::Backoff;
use hashbrown::HashMap;

use crate::dispatcher::QueueId;

/// What a request adds to the pass of a member of weight 1. The larger, the finer the shares.
const STRIDE: u128 = 1 << 32;
/// How long the circuit of a failing member is open.
const CIRCUIT_BACKOFF: Backoff = Backoff { min_ms: 1_000, max_ms: 30_000 };

/// The members of an upstream. Each request goes to the member with the lowest pass, which then grows by the inverse of
/// its weight (stride scheduling); a heap of them costs the same whatever the weights are. A member that fails is left
/// out while its circuit is open, twice as long each time.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) config: Arc<config::Upstream>,
    members: HashMap<Arc<str>, Member>,
    /// Pass, ticket and name of each member, the lowest pass first. An entry is valid if the ticket is the member's.
    schedule: BinaryHeap<Reverse<(u128, u64, Arc<str>)>>,
    /// The pass of the member that was asked last: nobody enters the schedule below it.
    pass: u128,
    tickets: u64,
    /// When circuits close.
    open_circuits: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    /// Queues that wait for a member.
    pub(crate) waiting: VecDeque<QueueId>,
}

#[derive(Debug)]
struct Member {
    config: Arc<config::Member>,
    /// Its connection pool; see [`Attempt::pool`](crate::Attempt::pool).
    pool: u64,
    pass: u128,
    /// Of its entry in the schedule; 0 when it has none.
    ticket: u64,
    /// In a row.
    failures: u32,
    circuit_open_until_ms: Option<u64>,
}

/// The member to ask.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Member>,
    pub(crate) pool: u64,
}

/// Numbers connection pools, and collects those that are not used any more.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    last: u64,
    unused: Vec<u64>,
}

impl Pools {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A pool that no attempt will name again.
    pub(crate) fn poll_unused(&mut self) -> Option<u64> {
        self.unused.pop()
    }
}

impl Upstream {
    pub(crate) fn new(config: &Arc<config::Upstream>, pools: &mut Pools) -> Upstream {
        let mut upstream = Upstream {
            config: Arc::new(config::Upstream::default()),
            members: HashMap::new(),
            schedule: BinaryHeap::new(),
            pass: 0,
            tickets: 0,
            open_circuits: BinaryHeap::new(),
            waiting: VecDeque::new(),
        };
        upstream.update(config, pools);
        upstream
    }

    /// Follows a change of its settings. The cost is that of the members that differ.
    pub(crate) fn update(&mut self, new: &Arc<config::Upstream>, pools: &mut Pools) {
        let old = std::mem::replace(&mut self.config, Arc::clone(new));
        for (name, _, after) in new.members.changes_from(&old.members) {
            let Some(after) = after else {
                if let Some(member) = self.members.remove(name) {
                    pools.unused.push(member.pool);
                }
                continue;
            };
            match self.members.get_mut(name) {
                Some(member) => {
                    if member.config.address != after.address {
                        pools.unused.push(member.pool);
                        member.pool = pools.next();
                        // The failures were those of the other address.
                        (member.failures, member.circuit_open_until_ms) = (0, None);
                    }
                    member.config = Arc::clone(after);
                }
                None => {
                    let member = Member {
                        config: Arc::clone(after),
                        pool: pools.next(),
                        pass: self.pass,
                        ticket: 0,
                        failures: 0,
                        circuit_open_until_ms: None,
                    };
                    self.members.insert(Arc::clone(name), member);
                }
            }
            self.enter(name);
        }
        if !shares_connections(&old, new) {
            for member in self.members.values_mut() {
                pools.unused.push(member.pool);
                member.pool = pools.next();
            }
        }
    }

    /// Removes all members.
    pub(crate) fn clear(&mut self, pools: &mut Pools) {
        pools.unused.extend(self.members.drain().map(|(_, member)| member.pool));
    }

    /// The member to ask: another than `not` if there is another. `None`: no member may be asked now.
    pub(crate) fn select(&mut self, now_ms: u64, not: Option<&str>) -> Option<Selection> {
        self.close_expired_circuits(now_ms);
        let mut name = self.pop_lowest()?;
        if not == Some(&*name)
            && let Some(other) = self.pop_lowest()
        {
            self.enter(&name);
            name = other;
        }
        let member = self.members.get_mut(&name)?;
        self.pass = member.pass;
        member.pass += STRIDE / u128::from(member.config.weight.max(1));
        let selected = Selection {
            config: Arc::clone(&member.config),
            pool: member.pool,
            name: Arc::clone(&name),
        };
        self.enter(&name);
        Some(selected)
    }

    /// Opens the circuit of a member that failed on this pool, for as long as it asked or for a back-off. Returns until
    /// when, and how many failures in a row that makes. `None` if the circuit is open already or the pool is another.
    pub(crate) fn handle_failure(
        &mut self,
        now_ms: u64,
        name: &str,
        pool: u64,
        retry_after_ms: Option<u64>,
    ) -> Option<(u64, u32)> {
        let (name, member) = self.members.get_key_value(name)?;
        let over = |until_ms: u64| until_ms <= now_ms;
        if member.pool != pool || !member.circuit_open_until_ms.is_none_or(over) {
            return None;
        }
        let name = Arc::clone(name);
        let member = self.members.get_mut(&name)?;
        member.failures = member.failures.saturating_add(1);
        let backoff_ms = CIRCUIT_BACKOFF.delay_ms(member.failures);
        let until_ms = now_ms + retry_after_ms.unwrap_or(backoff_ms).max(1);
        member.circuit_open_until_ms = Some(until_ms);
        member.ticket = 0;
        let failures = member.failures;
        self.open_circuits.push(Reverse((until_ms, name)));
        Some((until_ms, failures))
    }

    /// A member has answered on this pool. True when it had failed before.
    pub(crate) fn handle_success(&mut self, name: &str, pool: u64) -> bool {
        let member = self.members.get_mut(name).filter(|member| member.pool == pool);
        member.is_some_and(|member| std::mem::take(&mut member.failures) > 0)
    }

    /// Members whose circuit closes enter the schedule again.
    fn close_expired_circuits(&mut self, now_ms: u64) {
        while let Some(Reverse((until_ms, _))) = self.open_circuits.peek()
            && *until_ms <= now_ms
            && let Some(Reverse((until_ms, name))) = self.open_circuits.pop()
        {
            if let Some(member) = self.members.get_mut(&name)
                && member.circuit_open_until_ms == Some(until_ms)
            {
                member.circuit_open_until_ms = None;
                self.enter(&name);
            }
        }
    }

    /// Takes the member with the lowest pass out of the schedule.
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

    /// Puts a member into the schedule, if it may be asked.
    fn enter(&mut self, name: &Arc<str>) {
        let Some(member) = self.members.get_mut(name) else { return };
        member.ticket = 0;
        if member.config.down || member.circuit_open_until_ms.is_some() {
            return;
        }
        self.tickets += 1;
        member.ticket = self.tickets;
        // A member that was away does not catch up on the requests it missed.
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

/// Whether connections under the one settings serve the other.
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
            let Some(selected) = upstream.select(now_ms, None) else { break };
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
        assert!(of.select(0, None).is_none());
        let gone: Vec<u64> = std::iter::from_fn(|| pools.poll_unused()).collect();
        assert_eq!(gone.len(), 3);
    }

    #[test]
    fn the_circuit_of_a_failing_member_is_open_longer_each_time_and_closes_again() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false), ("b", 1, false)]), &mut pools);
        let a = of.select(0, None).unwrap();
        assert_eq!(of.handle_failure(0, &a.name, a.pool, None), Some((1_000, 1)));
        assert_eq!(of.handle_failure(5, &a.name, a.pool, None), None, "sent before it was known");
        assert_eq!(shares(&mut of, 999, 10), [share("b", 10)]);
        let both = shares(&mut of, 1_000, 10);
        assert_eq!(both, [share("a", 5), share("b", 5)], "it does not catch up");
        assert_eq!(of.handle_failure(1_000, "a", a.pool, None), Some((3_000, 2)));
        assert_eq!(
            of.handle_failure(9_000, "a", a.pool, Some(70_000)),
            Some((79_000, 3)),
            "as it asked"
        );
        assert!(of.handle_success("a", a.pool), "to what was sent before");
        assert_eq!(shares(&mut of, 10_000, 4), [share("b", 4)]);
        assert_eq!(of.handle_failure(80_000, "a", a.pool, None), Some((81_000, 1)));
        for _ in 0..99 {
            of.handle_failure(u64::from(u32::MAX), "b", 2, None);
        }
    }

    #[test]
    fn a_second_attempt_goes_to_another_member_if_there_is_one() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 9, false), ("b", 1, false)]), &mut pools);
        for _ in 0..20 {
            assert_eq!(&*of.select(0, Some("a")).unwrap().name, "b");
        }
        of.update(&upstream(&[("a", 9, false)]), &mut pools);
        assert_eq!(&*of.select(0, Some("a")).unwrap().name, "a", "alone it is asked again");
    }

    #[test]
    fn another_address_is_another_backend() {
        let mut pools = Pools::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut pools);
        let before = of.select(0, None).unwrap();
        of.handle_failure(0, "a", before.pool, None);
        let mut moved = config::Upstream::clone(&upstream(&[]));
        let address = "elsewhere.example:80".into();
        moved.members.insert("a", config::Member { address, ..config::Member::default() });
        of.update(&Arc::new(moved.clone()), &mut pools);
        let after = of.select(0, None).expect("nothing is known against it");
        assert_ne!(before.pool, after.pool);
        assert_eq!(pools.poll_unused(), Some(before.pool));
        assert_eq!(
            of.handle_failure(0, "a", before.pool, None),
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
