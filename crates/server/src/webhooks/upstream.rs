//! An upstream: whose turn it is among its members, and who is left alone for a while.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use dunlin_config as config;
use hashbrown::HashMap;

use super::dispatcher::LaneId;

/// What a member of weight 1 moves on by with each request; the larger, the finer the shares.
const STRIDE: u128 = 1 << 32;
/// How long a member is left alone after its first failure, and after many.
const AVOIDED_MS_MIN: u64 = 1_000;
const AVOIDED_MS_MAX: u64 = 30_000;

/// Members of an upstream by turns: each request goes to the one that is behind the others in proportion to its
/// weight (stride scheduling), at the cost of a heap of them whatever the weights are. Whoever fails is left out
/// until its time is over, each time twice as long.
pub(crate) struct Upstream {
    pub(crate) config: Arc<config::Upstream>,
    members: HashMap<Arc<str>, Member>,
    /// How far each member is, the last first; an entry counts if its ticket is the member's.
    turns: BinaryHeap<Reverse<(u128, u64, Arc<str>)>>,
    /// How far whoever was asked last was: nobody begins behind this.
    pass: u128,
    tickets: u64,
    /// When members that are left alone are so no more.
    avoided: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    /// Lanes that wait for a member.
    pub(crate) parked: VecDeque<LaneId>,
}

struct Member {
    config: Arc<config::Member>,
    /// Where it is reached, and how: another number is another set of connections.
    endpoint: u64,
    pass: u128,
    /// Of its entry among the turns; 0 when it has none.
    ticket: u64,
    /// In a row.
    failures: u32,
    avoided_until_ms: Option<u64>,
}

/// The member whose turn it is.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<config::Member>,
    pub(crate) endpoint: u64,
}

/// Numbers connections' ends, and tells of those that are not needed any more.
#[derive(Default)]
pub(crate) struct Endpoints {
    last: u64,
    gone: Vec<u64>,
}

impl Endpoints {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// One that nobody is to be asked at any more.
    pub(crate) fn poll_gone(&mut self) -> Option<u64> {
        self.gone.pop()
    }
}

impl Upstream {
    pub(crate) fn new(config: &Arc<config::Upstream>, endpoints: &mut Endpoints) -> Upstream {
        let mut upstream = Upstream {
            config: Arc::new(config::Upstream::default()),
            members: HashMap::new(),
            turns: BinaryHeap::new(),
            pass: 0,
            tickets: 0,
            avoided: BinaryHeap::new(),
            parked: VecDeque::new(),
        };
        upstream.update(config, endpoints);
        upstream
    }

    /// Follows a change of its configuration: the cost is that of what differs, if it is members.
    pub(crate) fn update(&mut self, new: &Arc<config::Upstream>, endpoints: &mut Endpoints) {
        let old = std::mem::replace(&mut self.config, Arc::clone(new));
        for (name, _, after) in new.members.changes_from(&old.members) {
            let Some(after) = after else {
                if let Some(member) = self.members.remove(name) {
                    endpoints.gone.push(member.endpoint);
                }
                continue;
            };
            match self.members.get_mut(name) {
                Some(member) => {
                    if member.config.address != after.address {
                        endpoints.gone.push(member.endpoint);
                        member.endpoint = endpoints.next();
                        // Nothing is known against who is there now.
                        (member.failures, member.avoided_until_ms) = (0, None);
                    }
                    member.config = Arc::clone(after);
                }
                None => {
                    let member = Member {
                        config: Arc::clone(after),
                        endpoint: endpoints.next(),
                        pass: self.pass,
                        ticket: 0,
                        failures: 0,
                        avoided_until_ms: None,
                    };
                    self.members.insert(Arc::clone(name), member);
                }
            }
            self.enter(name);
        }
        if !reached_alike(&old, new) {
            for member in self.members.values_mut() {
                endpoints.gone.push(member.endpoint);
                member.endpoint = endpoints.next();
            }
        }
    }

    /// Lets all members go.
    pub(crate) fn clear(&mut self, endpoints: &mut Endpoints) {
        endpoints.gone.extend(self.members.drain().map(|(_, member)| member.endpoint));
    }

    /// Whose turn it is; another than `not` if there is another. `None`: nobody can be asked now.
    pub(crate) fn choose(&mut self, now_ms: u64, not: Option<&str>) -> Option<Chosen> {
        self.forgive(now_ms);
        let mut name = self.next_turn()?;
        if not == Some(&*name)
            && let Some(other) = self.next_turn()
        {
            self.enter(&name);
            name = other;
        }
        let member = self.members.get_mut(&name)?;
        self.pass = member.pass;
        member.pass += STRIDE / u128::from(member.config.weight.max(1));
        let chosen = Chosen {
            config: Arc::clone(&member.config),
            endpoint: member.endpoint,
            name: Arc::clone(&name),
        };
        self.enter(&name);
        Some(chosen)
    }

    /// A member has failed at this endpoint: it is left alone for a while, or for as long as it asked for. `None`
    /// when it is so already, for what was sent before.
    pub(crate) fn failed(
        &mut self,
        now_ms: u64,
        name: &str,
        endpoint: u64,
        pause_ms: Option<u64>,
    ) -> Option<u64> {
        let (name, member) = self.members.get_key_value(name)?;
        let over = |until_ms: u64| until_ms <= now_ms;
        if member.endpoint != endpoint || !member.avoided_until_ms.is_none_or(over) {
            return None;
        }
        let name = Arc::clone(name);
        let member = self.members.get_mut(&name)?;
        member.failures = member.failures.saturating_add(1);
        let doubled = AVOIDED_MS_MIN << (member.failures - 1).min(16);
        let until_ms = now_ms + pause_ms.unwrap_or(doubled.min(AVOIDED_MS_MAX)).max(1);
        member.avoided_until_ms = Some(until_ms);
        member.ticket = 0;
        self.avoided.push(Reverse((until_ms, name)));
        Some(until_ms)
    }

    /// A member has answered. True when it had failed before.
    pub(crate) fn answered(&mut self, name: &str, endpoint: u64) -> bool {
        let member = self.members.get_mut(name).filter(|member| member.endpoint == endpoint);
        member.is_some_and(|member| std::mem::take(&mut member.failures) > 0)
    }

    /// How often in a row a member has failed.
    pub(crate) fn failures(&self, name: &str) -> u32 {
        self.members.get(name).map_or(0, |member| member.failures)
    }

    /// Those whose time is over take turns again.
    fn forgive(&mut self, now_ms: u64) {
        while let Some(Reverse((until_ms, _))) = self.avoided.peek()
            && *until_ms <= now_ms
            && let Some(Reverse((until_ms, name))) = self.avoided.pop()
        {
            if let Some(member) = self.members.get_mut(&name)
                && member.avoided_until_ms == Some(until_ms)
            {
                member.avoided_until_ms = None;
                self.enter(&name);
            }
        }
    }

    /// Takes out the member that is the furthest behind.
    fn next_turn(&mut self) -> Option<Arc<str>> {
        while let Some(Reverse((_, ticket, name))) = self.turns.pop() {
            if let Some(member) = self.members.get_mut(&name)
                && member.ticket == ticket
            {
                member.ticket = 0;
                return Some(name);
            }
        }
        None
    }

    /// A member takes part in the turns from here on, if it may.
    fn enter(&mut self, name: &Arc<str>) {
        let Some(member) = self.members.get_mut(name) else { return };
        member.ticket = 0;
        if member.config.down || member.avoided_until_ms.is_some() {
            return;
        }
        self.tickets += 1;
        member.ticket = self.tickets;
        // Who was away does not catch up on what it missed.
        member.pass = member.pass.max(self.pass);
        self.turns.push(Reverse((member.pass, member.ticket, Arc::clone(name))));
        if self.turns.len() > 2 * self.members.len() + 16 {
            let members = &self.members;
            self.turns.retain(|Reverse((_, ticket, name))| {
                members.get(name).is_some_and(|member| member.ticket == *ticket)
            });
        }
    }
}

/// Whether both are asked in the same way, so that connections can stay.
fn reached_alike(a: &config::Upstream, b: &config::Upstream) -> bool {
    let way = |of: &config::Upstream| {
        (of.tls, of.ca.clone(), of.connect_timeout_ms, of.timeout_ms, of.connections_per_member_max)
    };
    way(a) == way(b)
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
            let Some(chosen) = upstream.choose(now_ms, None) else { break };
            *shares.entry(chosen.name.to_string()).or_default() += 1;
        }
        shares.into_iter().collect()
    }

    fn share(name: &str, requests: usize) -> (String, usize) {
        (name.to_owned(), requests)
    }

    #[test]
    fn requests_are_shared_by_weight_and_none_goes_to_who_is_down() {
        let mut endpoints = Endpoints::default();
        let three = upstream(&[("a", 3, false), ("b", 1, false), ("c", 5, true)]);
        let mut of = Upstream::new(&three, &mut endpoints);
        assert_eq!(shares(&mut of, 0, 400), [share("a", 300), share("b", 100)]);
        of.update(&upstream(&[("a", 1, true), ("b", 1, false), ("c", 1, false)]), &mut endpoints);
        assert_eq!(shares(&mut of, 0, 100), [share("b", 50), share("c", 50)]);
        assert_eq!(endpoints.poll_gone(), None, "nobody has moved");
        of.update(&upstream(&[]), &mut endpoints);
        assert!(of.choose(0, None).is_none());
        let gone: Vec<u64> = std::iter::from_fn(|| endpoints.poll_gone()).collect();
        assert_eq!(gone.len(), 3);
    }

    #[test]
    fn who_fails_is_left_alone_longer_and_longer_and_then_takes_part_again() {
        let mut endpoints = Endpoints::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false), ("b", 1, false)]), &mut endpoints);
        let a = of.choose(0, None).unwrap();
        assert_eq!(of.failed(0, &a.name, a.endpoint, None), Some(AVOIDED_MS_MIN));
        assert_eq!(of.failed(5, &a.name, a.endpoint, None), None, "sent before it was known");
        assert_eq!(shares(&mut of, 999, 10), [share("b", 10)]);
        let both = shares(&mut of, 1_000, 10);
        assert_eq!(both, [share("a", 5), share("b", 5)], "it does not catch up");
        assert_eq!(of.failed(1_000, "a", a.endpoint, None), Some(1_000 + 2 * AVOIDED_MS_MIN));
        assert_eq!(of.failed(9_000, "a", a.endpoint, Some(70_000)), Some(79_000), "as it asked");
        assert!(of.answered("a", a.endpoint), "to what was sent before");
        assert_eq!(shares(&mut of, 10_000, 4), [share("b", 4)]);
        assert_eq!(of.failed(80_000, "a", a.endpoint, None), Some(80_000 + AVOIDED_MS_MIN));
        for _ in 0..99 {
            of.failed(u64::from(u32::MAX), "b", 2, None);
        }
    }

    #[test]
    fn a_second_attempt_goes_to_another_member_if_there_is_one() {
        let mut endpoints = Endpoints::default();
        let mut of = Upstream::new(&upstream(&[("a", 9, false), ("b", 1, false)]), &mut endpoints);
        for _ in 0..20 {
            assert_eq!(&*of.choose(0, Some("a")).unwrap().name, "b");
        }
        of.update(&upstream(&[("a", 9, false)]), &mut endpoints);
        assert_eq!(&*of.choose(0, Some("a")).unwrap().name, "a", "alone it is asked again");
    }

    #[test]
    fn who_moves_is_somebody_else() {
        let mut endpoints = Endpoints::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut endpoints);
        let before = of.choose(0, None).unwrap();
        of.failed(0, "a", before.endpoint, None);
        let mut moved = config::Upstream::clone(&upstream(&[]));
        let address = "elsewhere.example:80".into();
        moved.members.insert("a", config::Member { address, ..config::Member::default() });
        of.update(&Arc::new(moved.clone()), &mut endpoints);
        let after = of.choose(0, None).expect("nothing is known against it");
        assert_ne!(before.endpoint, after.endpoint);
        assert_eq!(endpoints.poll_gone(), Some(before.endpoint));
        assert_eq!(of.failed(0, "a", before.endpoint, None), None, "an answer from where it was");

        moved.tls = true;
        of.update(&Arc::new(moved), &mut endpoints);
        assert_eq!(endpoints.poll_gone(), Some(after.endpoint), "connections are opened anew");
    }

    #[test]
    fn turns_take_no_more_memory_than_members() {
        let mut endpoints = Endpoints::default();
        let mut of = Upstream::new(&upstream(&[("a", 1, false)]), &mut endpoints);
        for weight in 1..1_000 {
            of.update(&upstream(&[("a", weight, false)]), &mut endpoints);
        }
        assert!(of.turns.len() <= 18, "{}", of.turns.len());
    }
}
