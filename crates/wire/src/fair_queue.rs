//! A queue that many share: each flow gets its turn, however much another has queued (deficit round robin, as in
//! Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1995).

use std::collections::{BTreeMap, VecDeque};

/// Items in flows. Items of a flow keep their order; flows take turns, each by the cost of its items.
///
/// A flow is whoever the items are queued for: a user, an address, a channel. It exists while it has items.
///
/// ```
/// use dunlin_wire::fair_queue::FairQueue;
///
/// let mut queue = FairQueue::new(1);
/// (0..3).for_each(|n| queue.push_back(7, 1, n));
/// queue.push_back(8, 1, 100);
/// let order: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
/// assert_eq!(order, [(7, 0), (8, 100), (7, 1), (7, 2)]);
/// ```
#[derive(Debug)]
pub struct FairQueue<T> {
    /// The flow whose turn it is. `None` only if the queue is empty, so that a single flow needs no look-up.
    current: Option<(u64, Flow<T>)>,
    /// The other flows. None of them is empty.
    waiting: BTreeMap<u64, Flow<T>>,
    /// The keys of `waiting`, next first.
    order: VecDeque<u64>,
    /// What a flow may take in one turn.
    quantum: u32,
    len: usize,
}

#[derive(Debug)]
struct Flow<T> {
    items: VecDeque<(u32, T)>,
    /// Sum of the costs of `items`.
    cost: u64,
    /// What it may still take in this turn; negative if its last item cost more.
    credit: i64,
}

impl<T> Flow<T> {
    fn new(credit: i64) -> Flow<T> {
        Flow { items: VecDeque::new(), cost: 0, credit }
    }
}

impl<T> FairQueue<T> {
    /// Creates an empty queue, in which a turn takes items that cost `quantum` in sum, and at least one.
    pub const fn new(quantum: u32) -> FairQueue<T> {
        let order = VecDeque::new();
        FairQueue { current: None, waiting: BTreeMap::new(), order, quantum, len: 0 }
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of flows that have items.
    pub fn flows(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }

    /// Returns the number of items of a flow.
    pub fn len_of(&self, flow: u64) -> usize {
        self.flow(flow).map_or(0, |flow| flow.items.len())
    }

    /// Returns the sum of the costs of a flow's items.
    pub fn cost_of(&self, flow: u64) -> u64 {
        self.flow(flow).map_or(0, |flow| flow.cost)
    }

    /// Appends an item to its flow.
    pub fn push_back(&mut self, flow: u64, cost: u32, item: T) {
        self.len += 1;
        let flow = self.flow_or_new(flow, false);
        flow.cost += u64::from(cost);
        flow.items.push_back((cost, item));
    }

    /// Returns an item that was taken to the front of its flow. A flow without other items gets the next turn.
    pub fn push_front(&mut self, flow: u64, cost: u32, item: T) {
        self.len += 1;
        let flow = self.flow_or_new(flow, true);
        flow.cost += u64::from(cost);
        flow.credit += i64::from(cost);
        flow.items.push_front((cost, item));
    }

    /// Returns the item that [`pop_front`](FairQueue::pop_front) takes next, and its flow.
    pub fn front(&self) -> Option<(u64, &T)> {
        let (key, flow) = self.current.as_ref()?;
        flow.items.front().map(|(_, item)| (*key, item))
    }

    /// Takes the next item, and returns its flow with it.
    pub fn pop_front(&mut self) -> Option<(u64, T)> {
        let (key, flow) = self.current.as_mut()?;
        let (key, (cost, item)) = (*key, flow.items.pop_front()?);
        self.len -= 1;
        flow.cost -= u64::from(cost);
        flow.credit -= i64::from(cost);
        if flow.items.is_empty() {
            self.current = None;
            self.next_turn();
        } else if flow.credit <= 0 {
            self.end_turn();
        }
        Some((key, item))
    }

    /// Takes the newest item of a flow.
    pub fn pop_back_of(&mut self, flow: u64) -> Option<T> {
        let (_, item) = match &mut self.current {
            Some((key, of)) if *key == flow => {
                let newest = of.items.pop_back()?;
                of.cost -= u64::from(newest.0);
                if of.items.is_empty() {
                    self.current = None;
                    self.next_turn();
                }
                newest
            }
            _ => {
                let of = self.waiting.get_mut(&flow)?;
                let newest = of.items.pop_back()?;
                of.cost -= u64::from(newest.0);
                if of.items.is_empty() {
                    self.waiting.remove(&flow);
                    self.order.retain(|key| *key != flow);
                }
                newest
            }
        };
        self.len -= 1;
        Some(item)
    }

    /// Returns the newest item of a flow.
    pub fn back_of_mut(&mut self, flow: u64) -> Option<&mut T> {
        let of = match &mut self.current {
            Some((key, of)) if *key == flow => of,
            _ => self.waiting.get_mut(&flow)?,
        };
        of.items.back_mut().map(|(_, item)| item)
    }

    /// Takes from the front of each flow the items that `is_over` returns `true` for.
    pub fn pop_while(&mut self, mut is_over: impl FnMut(&T) -> bool, mut taken: impl FnMut(T)) {
        let mut before = self.len;
        let mut retire = |flow: &mut Flow<T>| {
            while let Some((cost, item)) = flow.items.pop_front() {
                if !is_over(&item) {
                    flow.items.push_front((cost, item));
                    break;
                }
                flow.cost -= u64::from(cost);
                before -= 1;
                taken(item);
            }
            !flow.items.is_empty()
        };
        let has_more = self.current.as_mut().is_none_or(|(_, flow)| retire(flow));
        self.waiting.retain(|_, flow| retire(flow));
        self.len = before;
        if self.order.len() != self.waiting.len() {
            self.order.retain(|key| self.waiting.contains_key(key));
        }
        if !has_more {
            self.current = None;
            self.next_turn();
        }
    }

    fn flow(&self, flow: u64) -> Option<&Flow<T>> {
        match &self.current {
            Some((key, of)) if *key == flow => Some(of),
            _ => self.waiting.get(&flow),
        }
    }

    /// Returns a flow, which is created if necessary: for the next turn, or the last one.
    fn flow_or_new(&mut self, flow: u64, is_next: bool) -> &mut Flow<T> {
        let quantum = i64::from(self.quantum);
        let is_current = self.current.as_ref().is_none_or(|(key, _)| *key == flow);
        if is_current {
            return &mut self.current.get_or_insert_with(|| (flow, Flow::new(quantum))).1;
        }
        let (waiting, order) = (&mut self.waiting, &mut self.order);
        waiting.entry(flow).or_insert_with(|| {
            match is_next {
                true => order.push_front(flow),
                false => order.push_back(flow),
            }
            Flow::new(0)
        })
    }

    /// The current flow has had its share of this turn: the others follow.
    fn end_turn(&mut self) {
        if self.order.is_empty() {
            if let Some((_, alone)) = &mut self.current {
                alone.credit = i64::from(self.quantum);
            }
            return;
        }
        if let Some((key, flow)) = self.current.take() {
            self.waiting.insert(key, flow);
            self.order.push_back(key);
        }
        self.next_turn();
    }

    /// Selects the next flow. One that has taken too much waits for so many turns.
    fn next_turn(&mut self) {
        while let Some(key) = self.order.pop_front() {
            let Some(mut flow) = self.waiting.remove(&key) else { continue };
            let alone = self.order.is_empty();
            flow.credit = match alone {
                true => i64::from(self.quantum),
                false => flow.credit.min(0) + i64::from(self.quantum),
            };
            if flow.credit > 0 {
                self.current = Some((key, flow));
                return;
            }
            self.waiting.insert(key, flow);
            self.order.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| queue.pop_front()).collect()
    }

    #[test]
    fn item_of_a_quiet_flow_waits_for_one_turn_of_a_busy_one() {
        let mut queue = FairQueue::new(2);
        (0..1_000).for_each(|n| queue.push_back(1, 1, n));
        assert_eq!(queue.pop_front(), Some((1, 0)));
        queue.push_back(2, 1, 0);
        let order: Vec<u64> = drain(&mut queue).into_iter().map(|(flow, _)| flow).collect();
        assert_eq!(order.iter().position(|flow| *flow == 2), Some(1));
        assert_eq!(order.len(), 1_000);
    }

    #[test]
    fn flow_with_large_items_gets_as_many_bytes_as_one_with_small_ones() {
        let mut queue = FairQueue::new(100);
        (0..100).for_each(|n| queue.push_back(1, 1_000, n));
        (0..10_000).for_each(|n| queue.push_back(2, 10, n));
        let mut bytes = BTreeMap::new();
        for _ in 0..5_000 {
            let (flow, _) = queue.pop_front().unwrap();
            *bytes.entry(flow).or_insert(0) += if flow == 1 { 1_000 } else { 10 };
        }
        let (large, small) = (bytes[&1], bytes[&2]);
        assert!(large <= small + 1_100 && small <= large + 1_100, "{large} and {small}");
    }

    #[test]
    fn item_that_is_returned_is_the_next_of_its_flow() {
        let mut queue = FairQueue::new(1);
        (0..2).for_each(|n| queue.push_back(1, 1, n));
        queue.push_back(2, 1, 0);
        let (flow, first) = queue.pop_front().unwrap();
        queue.push_front(flow, 1, first);
        let mut own = drain(&mut queue);
        own.retain(|(flow, _)| *flow == 1);
        assert_eq!(own, [(1, 0), (1, 1)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Back(u64, u32),
        Front(u64),
        Pop,
        Newest(u64),
        While(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..5_u64, 0..9_u32).prop_map(|(flow, cost)| Step::Back(flow, cost)),
            1 => (0..5_u64).prop_map(Step::Front),
            3 => Just(Step::Pop),
            1 => (0..5_u64).prop_map(Step::Newest),
            1 => any::<u32>().prop_map(Step::While),
        ]
    }

    proptest! {
        /// Beside a model that is a queue for each flow: nothing is lost, nothing comes twice, each flow keeps its order, and
        /// `front` is what `pop_front` takes.
        #[test]
        fn each_flow_is_a_queue(steps in prop::collection::vec(step(), 0..300), quantum in 1..9_u32) {
            let mut queue = FairQueue::new(quantum);
            let mut model: BTreeMap<u64, VecDeque<(u32, u32)>> = BTreeMap::new();
            for (n, step) in (0..).zip(steps) {
                match step {
                    Step::Back(flow, cost) => {
                        queue.push_back(flow, cost, n);
                        model.entry(flow).or_default().push_back((cost, n));
                    }
                    Step::Front(flow) => {
                        queue.push_front(flow, 1, n);
                        model.entry(flow).or_default().push_front((1, n));
                    }
                    Step::Pop => {
                        let front = queue.front().map(|(flow, n)| (flow, *n));
                        let popped = queue.pop_front();
                        prop_assert_eq!(front, popped);
                        if let Some((flow, n)) = popped {
                            let expected = model.get_mut(&flow).unwrap().pop_front();
                            prop_assert_eq!(expected.map(|(_, n)| n), Some(n));
                        }
                    }
                    Step::Newest(flow) => {
                        let expected = model.get_mut(&flow).and_then(VecDeque::pop_back);
                        prop_assert_eq!(queue.pop_back_of(flow), expected.map(|(_, n)| n));
                    }
                    Step::While(divisor) => {
                        let is_over = |n: &u32| n % 7 != divisor % 7;
                        let mut taken = Vec::new();
                        queue.pop_while(is_over, |n| taken.push(n));
                        let mut expected = Vec::new();
                        for items in model.values_mut() {
                            while items.front().is_some_and(|(_, n)| is_over(n)) {
                                expected.extend(items.pop_front().map(|(_, n)| n));
                            }
                        }
                        taken.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(taken, expected);
                    }
                }
                model.retain(|_, items| !items.is_empty());
                prop_assert_eq!(queue.len(), model.values().map(VecDeque::len).sum::<usize>());
                prop_assert_eq!(queue.flows(), model.len());
                for (flow, items) in &model {
                    let cost: u64 = items.iter().map(|(cost, _)| u64::from(*cost)).sum();
                    prop_assert_eq!((queue.len_of(*flow), queue.cost_of(*flow)), (items.len(), cost));
                    prop_assert_eq!(queue.back_of_mut(*flow).map(|n| *n), items.back().map(|(_, n)| *n));
                }
                prop_assert_eq!(queue.front().is_some(), !model.is_empty());
            }
        }
    }
}
