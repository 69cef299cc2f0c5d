//! Any sequence of calls against the simplest correct model.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::collections::{BTreeMap, VecDeque};

use dunlin_bus::{Endpoint, MeshConfig, RequestId, RequestTable, SendError, mesh};
use proptest::{collection::vec, prelude::*};

fn cases() -> ProptestConfig {
    let cases = if cfg!(miri) { 2 } else { 256 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn calls_max() -> usize {
    if cfg!(miri) { 40 } else { 300 }
}

const ENDPOINTS: usize = 3;

#[derive(Debug, Clone)]
enum Call {
    Send { from: usize, to: usize, count: usize },
    Broadcast { from: usize },
    Receive { at: usize, max: usize },
    Flush { at: usize },
    Sleep { at: usize },
    Trim { at: usize },
    PollRoom { at: usize },
}

fn call() -> impl Strategy<Value = Call> {
    let at = 0..ENDPOINTS;
    prop_oneof![
        6 => (at.clone(), at.clone(), 1..20usize)
            .prop_map(|(from, to, count)| Call::Send { from, to, count }),
        1 => at.clone().prop_map(|from| Call::Broadcast { from }),
        6 => (at.clone(), 0..30usize).prop_map(|(at, max)| Call::Receive { at, max }),
        1 => at.clone().prop_map(|at| Call::Flush { at }),
        2 => at.clone().prop_map(|at| Call::Sleep { at }),
        2 => at.clone().prop_map(|at| Call::Trim { at }),
        2 => at.prop_map(|at| Call::PollRoom { at }),
    ]
}

/// A queue for each edge, and whether it has refused since its sender was notified of room.
struct Model {
    slots: usize,
    edges: BTreeMap<(usize, usize), VecDeque<Box<u32>>>,
    refused: BTreeMap<(usize, usize), bool>,
    next: u32,
}

impl Model {
    fn send(&mut self, endpoint: &mut Endpoint<Box<u32>>, to: usize) {
        self.next += 1;
        let value = Box::new(self.next);
        let outcome = endpoint.send(to, value.clone());
        self.expect(endpoint.index(), to, value, &outcome);
    }

    fn expect(
        &mut self,
        from: usize,
        to: usize,
        value: Box<u32>,
        outcome: &Result<(), SendError<Box<u32>>>,
    ) {
        let edge = self.edges.entry((from, to)).or_default();
        if edge.len() < self.slots {
            assert_eq!(outcome, &Ok(()));
            edge.push_back(value);
        } else {
            assert_eq!(outcome, &Err(SendError::Full { to, value }));
            self.refused.insert((from, to), true);
        }
    }

    fn waiting_at(&self, at: usize) -> usize {
        self.edges.iter().filter(|((_, to), _)| *to == at).map(|(_, edge)| edge.len()).sum()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_mesh_is_a_queue_for_each_edge(
        slots in 1..40usize,
        initial in 1..8usize,
        burst in 1..5usize,
        calls in vec(call(), 1..calls_max()),
    ) {
        let config = MeshConfig { ring_slots: slots, ring_slots_initial: initial, burst };
        let mut endpoints = mesh::<Box<u32>>(ENDPOINTS, &config).unwrap();
        let mut model =
            Model { slots, edges: BTreeMap::new(), refused: BTreeMap::new(), next: 0 };
        for call in calls {
            match call {
                Call::Send { from, to, count } => {
                    for _ in 0..count {
                        model.send(&mut endpoints[from], to);
                    }
                }
                Call::Broadcast { from } => {
                    model.next += 1;
                    let value = Box::new(model.next);
                    let outcome = endpoints[from].broadcast(|_| value.clone());
                    let mut sent = 0;
                    for to in (0..ENDPOINTS).filter(|&to| to != from) {
                        let refused = outcome.refused.iter().find(|refused| refused.to() == to);
                        sent += usize::from(refused.is_none());
                        let one = refused.cloned().map_or(Ok(()), Err);
                        model.expect(from, to, value.clone(), &one);
                    }
                    prop_assert_eq!(outcome.sent, sent);
                }
                Call::Receive { at, max } => {
                    let waiting = model.waiting_at(at);
                    let received = endpoints[at].drain(max, |from, value| {
                        let edge = model.edges.get_mut(&(from, at)).unwrap();
                        assert_eq!(edge.pop_front(), Some(value));
                    });
                    prop_assert_eq!(received, max.min(waiting));
                }
                Call::Flush { at } => {
                    endpoints[at].flush();
                }
                Call::Sleep { at } => {
                    let waiting = model.waiting_at(at);
                    if endpoints[at].prepare_sleep() {
                        prop_assert_eq!(waiting, 0);
                    }
                    endpoints[at].wake();
                }
                Call::Trim { at } => endpoints[at].trim(),
                Call::PollRoom { at } => {
                    while let Some(to) = endpoints[at].poll_room() {
                        let refused = model.refused.insert((at, to), false);
                        prop_assert!(refused.is_some(), "notified of room on an edge never full");
                    }
                }
            }
        }
        for (at, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint.drain(usize::MAX, |from, value| {
                let edge = model.edges.get_mut(&(from, at)).unwrap();
                assert_eq!(edge.pop_front(), Some(value));
            });
        }
        prop_assert!(model.edges.values().all(VecDeque::is_empty));
        for (at, endpoint) in endpoints.iter_mut().enumerate() {
            while let Some(to) = endpoint.poll_room() {
                model.refused.insert((at, to), false);
            }
        }
        prop_assert!(model.refused.values().all(|&room_notified| !room_notified), "every refusal was made good");
    }

    #[test]
    fn a_table_of_requests_is_a_map(
        pending_max in 0..20usize,
        calls in vec((0..5u8, 0..100u64), 1..calls_max()),
    ) {
        let mut requests = RequestTable::new(pending_max);
        let mut model = BTreeMap::<RequestId, (u64, u32)>::new();
        let mut gone = Vec::new();
        let mut now = 0;
        for (step, (call, number)) in calls.into_iter().enumerate() {
            let context = step as u32;
            match call {
                0 | 1 => match requests.insert(now + number, context) {
                    Ok(id) => prop_assert_eq!(model.insert(id, (now + number, context)), None),
                    Err(refused) => {
                        prop_assert_eq!(refused.0, context);
                        prop_assert_eq!(model.len(), pending_max);
                    }
                },
                2 if !model.is_empty() => {
                    let id = *model.keys().nth(number as usize % model.len()).unwrap();
                    prop_assert_eq!(requests.get(id).copied(), Some(model[&id].1));
                    prop_assert_eq!(requests.take(id), model.remove(&id).map(|(_, context)| context));
                    gone.push(id);
                }
                3 => {
                    now += number;
                    let mut last = 0;
                    for (id, context) in requests.expire(now) {
                        let (deadline, expected) = model.remove(&id).unwrap();
                        prop_assert_eq!(context, expected);
                        prop_assert!(last <= deadline && deadline <= now);
                        last = deadline;
                        gone.push(id);
                    }
                    prop_assert!(model.values().all(|&(deadline, _)| deadline > now));
                }
                _ => {
                    for &id in &gone {
                        prop_assert_eq!(requests.take(id), None);
                    }
                }
            }
            prop_assert_eq!(requests.len(), model.len());
            prop_assert_eq!(
                requests.next_deadline(),
                model.values().map(|&(deadline, _)| deadline).min()
            );
        }
    }
}

#[test]
fn a_late_reply_is_not_taken_for_the_next_requests() {
    let mut requests = RequestTable::new(1);
    let first = requests.insert(10, "first").unwrap();
    requests.insert(10, "too many").unwrap_err();
    assert_eq!(requests.expire(10).collect::<Vec<_>>(), [(first, "first")]);

    let second = requests.insert(20, "second").unwrap();
    assert_eq!(requests.take(first), None, "the place is the same, the generation is not");
    assert_eq!(requests.get_mut(second), Some(&mut "second"));
    assert_eq!(RequestId::from_u64(second.to_u64()), Some(second));
    assert_eq!(RequestId::from_u64(0), None);
    assert_eq!(requests.take(second), Some("second"));
    assert_eq!(requests.take(RequestId::from_u64(u64::MAX).unwrap()), None);
}
