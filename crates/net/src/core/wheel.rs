//! A hierarchical timing wheel whose entries are links inside other records.
//!
//! Seven levels of 64 slots; a slot of level `n` spans `64^n` ticks. An entry is at the level of the highest digit in
//! which its deadline differs from the current tick, and moves down when that digit is reached. So arming, rearming and
//! cancelling are O(1) and an entry is touched at most once per level.
//!
//! The wheel is *lazy*: moving a deadline away, which activity on a connection does, is only a store into the link. The
//! entry is found too early, checked again, and moved. Only a deadline that moves closer relinks the entry.

/// Bits of a tick per level.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 7;
/// The last tick that the wheel supports: 2^42 - 1, 139 years of milliseconds.
const TICK_MAX: u64 = (1 << (LEVEL_BITS * LEVELS as u32)) - 1;

const NIL: u32 = u32::MAX;
const UNLINKED: u64 = 0xffff;
const DEADLINE_BITS: u32 = 48;
/// The deadline of an entry that never expires; also the largest value in a [`TimerLink`].
pub(crate) const NEVER: u64 = (1 << DEADLINE_BITS) - 1;

/// An entry of a wheel: its deadline and its neighbours in its slot. Stored in the record it belongs to, so that a
/// timer costs sixteen bytes and no allocation.
#[derive(Debug)]
pub(crate) struct TimerLink {
    /// Deadline in ticks (48 bits) and the slot of this entry (16 bits).
    deadline_slot: u64,
    prev: u32,
    next: u32,
}

impl Default for TimerLink {
    fn default() -> TimerLink {
        TimerLink { deadline_slot: NEVER << 16 | UNLINKED, prev: NIL, next: NIL }
    }
}

impl TimerLink {
    /// Returns the tick at which this entry expires, or [`NEVER`].
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline_slot >> 16
    }

    fn slot(&self) -> Option<usize> {
        let slot = self.deadline_slot & 0xffff;
        (slot != UNLINKED).then_some(slot as usize)
    }

    fn set_deadline(&mut self, deadline: u64) {
        self.deadline_slot = deadline.min(NEVER) << 16 | (self.deadline_slot & 0xffff);
    }

    fn set_slot(&mut self, slot: u64) {
        self.deadline_slot = self.deadline_slot & !0xffff | slot;
    }
}

/// Access to the links of a wheel, by index.
pub(crate) trait TimerLinks {
    fn link(&self, index: u32) -> &TimerLink;
    fn link_mut(&mut self, index: u32) -> &mut TimerLink;
}

#[derive(Debug)]
pub(crate) struct Wheel {
    /// The tick up to which all entries were returned. No occupied slot starts before it.
    elapsed: u64,
    /// One bit per slot, one word per level.
    occupied: [u64; LEVELS],
    heads: Box<[u32; SLOTS * LEVELS]>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel { elapsed: 0, occupied: [0; LEVELS], heads: Box::new([NIL; SLOTS * LEVELS]) }
    }

    /// Sets the deadline of an entry, linked or not. A deadline in the past expires at the next tick.
    pub(crate) fn schedule(&mut self, links: &mut impl TimerLinks, index: u32, deadline: u64) {
        let link = links.link_mut(index);
        link.set_deadline(deadline);
        match link.slot() {
            // It will be found early and checked again: nothing to do now.
            Some(slot) if self.slot_start(slot) <= deadline => {}
            Some(slot) => {
                self.unlink(links, index, slot);
                self.insert(links, index);
            }
            None if deadline >= NEVER => {}
            None => self.insert(links, index),
        }
    }

    /// Removes an entry, if it is linked.
    pub(crate) fn cancel(&mut self, links: &mut impl TimerLinks, index: u32) {
        let link = links.link_mut(index);
        link.set_deadline(NEVER);
        if let Some(slot) = link.slot() {
            self.unlink(links, index, slot);
        }
    }

    /// Returns the next entry whose deadline is not after `now`, and removes it. Entries found early are moved. The
    /// wheel may be changed between two calls.
    pub(crate) fn pop(&mut self, links: &mut impl TimerLinks, now: u64) -> Option<u32> {
        while let Some((slot, start)) = self.next_slot().filter(|&(_, start)| start <= now) {
            debug_assert!(start >= self.elapsed);
            self.elapsed = start;
            while self.heads[slot] != NIL {
                let index = self.heads[slot];
                self.unlink(links, index, slot);
                let deadline = links.link(index).deadline();
                if deadline <= self.elapsed {
                    links.link_mut(index).set_deadline(NEVER);
                    return Some(index);
                }
                if deadline < NEVER {
                    self.insert(links, index);
                }
            }
        }
        self.elapsed = self.elapsed.max(now);
        None
    }

    /// Returns the current tick of the wheel. Directly after [`Wheel::pop`] returned an entry, the tick at which that
    /// was due.
    pub(crate) fn elapsed(&self) -> u64 {
        self.elapsed
    }

    /// Returns the tick at which [`Wheel::pop`] has work again: no later than the earliest deadline.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.next_slot().map(|(_, start)| start)
    }

    /// Returns the occupied slot that starts first, mostly of the lowest level. While a slot of a higher level is being
    /// emptied, entries that it has moved down do not precede its remaining ones.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let levels = self.occupied.iter().enumerate().filter(|&(_, &bits)| bits != 0);
        let first = levels.map(|(level, bits)| {
            let here = self.elapsed >> (LEVEL_BITS * level as u32) & (SLOTS as u64 - 1);
            let ahead = bits.rotate_right(here as u32).trailing_zeros() as usize;
            let slot = level * SLOTS + (here as usize + ahead) % SLOTS;
            (slot, self.slot_start(slot))
        });
        first.min_by_key(|&(_, start)| start)
    }

    /// Returns the first tick of a slot. Slots of a level lie within the current slot of the level above.
    fn slot_start(&self, slot: usize) -> u64 {
        let (level, slot) = (slot / SLOTS, (slot % SLOTS) as u64);
        let shift = LEVEL_BITS * level as u32;
        let above = !((1u64 << (shift + LEVEL_BITS)) - 1);
        self.elapsed & above | slot << shift
    }

    fn insert(&mut self, links: &mut impl TimerLinks, index: u32) {
        let deadline = links.link(index).deadline().clamp(self.elapsed + 1, TICK_MAX);
        let differs = (deadline ^ self.elapsed) | 1;
        let level = ((63 - differs.leading_zeros()) / LEVEL_BITS) as usize;
        let digit = deadline >> (LEVEL_BITS * level as u32) & (SLOTS as u64 - 1);
        let slot = level * SLOTS + digit as usize;

        let first = self.heads[slot];
        let link = links.link_mut(index);
        link.set_slot(slot as u64);
        link.prev = NIL;
        link.next = first;
        if first != NIL {
            links.link_mut(first).prev = index;
        }
        self.heads[slot] = index;
        self.occupied[level] |= 1 << digit;
    }

    fn unlink(&mut self, links: &mut impl TimerLinks, index: u32, slot: usize) {
        let link = links.link_mut(index);
        debug_assert_eq!(link.slot(), Some(slot));
        let (prev, next) = (link.prev, link.next);
        link.set_slot(UNLINKED);
        (link.prev, link.next) = (NIL, NIL);
        match prev {
            NIL => self.heads[slot] = next,
            prev => links.link_mut(prev).next = next,
        }
        if next != NIL {
            links.link_mut(next).prev = prev;
        }
        if self.heads[slot] == NIL {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Entries(Vec<TimerLink>);

    impl TimerLinks for Entries {
        fn link(&self, index: u32) -> &TimerLink {
            &self.0[index as usize]
        }

        fn link_mut(&mut self, index: u32) -> &mut TimerLink {
            &mut self.0[index as usize]
        }
    }

    fn entries(count: usize) -> Entries {
        Entries((0..count).map(|_| TimerLink::default()).collect())
    }

    #[test]
    fn an_entry_expires_at_its_tick_and_not_before() {
        for deadline in [1, 63, 64, 65, 4095, 4096, 4097, 1 << 20, (1 << 30) + 77, 1 << 36] {
            let (mut wheel, mut links) = (Wheel::new(), entries(1));
            wheel.schedule(&mut links, 0, deadline);
            let mut now = 0;
            while let Some(next) = wheel.next_tick() {
                assert!(next > now && next <= deadline, "sleeps until {next}, due at {deadline}");
                now = next;
                if let Some(index) = wheel.pop(&mut links, now) {
                    assert_eq!((index, now), (0, deadline));
                }
            }
            assert_eq!(now, deadline);
        }
    }

    #[test]
    fn activity_postpones_without_touching_the_wheel() {
        let (mut wheel, mut links) = (Wheel::new(), entries(1));
        wheel.schedule(&mut links, 0, 100);
        for now in (10..1000).step_by(10) {
            assert_eq!(wheel.pop(&mut links, now), None, "at {now}");
            let slot = links.link(0).slot();
            wheel.schedule(&mut links, 0, now + 100);
            assert_eq!(links.link(0).slot(), slot, "not relinked");
        }
        assert_eq!(wheel.pop(&mut links, 1089), None);
        assert_eq!(wheel.pop(&mut links, 1090), Some(0));
    }

    #[test]
    fn a_deadline_in_the_past_expires_at_the_next_tick() {
        let (mut wheel, mut links) = (Wheel::new(), entries(1));
        assert_eq!(wheel.pop(&mut links, 5000), None);
        wheel.schedule(&mut links, 0, 3);
        assert_eq!(wheel.pop(&mut links, 5000), None);
        assert_eq!(wheel.pop(&mut links, 5001), Some(0));
    }

    /// A slot of level 1 starts at 64, and has entries due then and one tick later. Regression: after the first was
    /// returned, the one that had moved down to level 0 hid the remaining one.
    #[test]
    fn cascaded_timer_does_not_hide_one_that_is_due() {
        let (mut wheel, mut links) = (Wheel::new(), entries(3));
        for (index, deadline) in [(0, 64), (1, 64), (2, 65)] {
            wheel.schedule(&mut links, index, deadline);
        }
        let due: Vec<_> = std::iter::from_fn(|| wheel.pop(&mut links, 64)).collect();
        assert_eq!(due, [1, 0]);
        assert_eq!(wheel.pop(&mut links, 65), Some(2));
    }

    #[test]
    fn never_is_never() {
        let (mut wheel, mut links) = (Wheel::new(), entries(2));
        wheel.schedule(&mut links, 0, NEVER);
        assert_eq!(wheel.next_tick(), None);
        wheel.schedule(&mut links, 1, 70);
        wheel.schedule(&mut links, 1, NEVER);
        assert_eq!(wheel.pop(&mut links, TICK_MAX - 1), None);
        assert_eq!(wheel.next_tick(), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Schedule { index: u32, after: u64 },
        Cancel { index: u32 },
        Advance { by: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = || prop_oneof![0u64..5, 0u64..70, 0u64..5000, 0u64..300_000, 0u64..1 << 28];
        prop_oneof![
            4 => (0u32..16, span()).prop_map(|(index, after)| Step::Schedule { index, after }),
            1 => (0u32..16).prop_map(|index| Step::Cancel { index }),
            3 => span().prop_map(|by| Step::Advance { by }),
        ]
    }

    proptest! {
        /// Compares with a sorted map: every entry expires once, in the first turn after its deadline.
        #[test]
        fn wheel_agrees_with_a_sorted_map(steps in prop::collection::vec(step(), 1..200)) {
            let (mut wheel, mut links) = (Wheel::new(), entries(16));
            let mut model = BTreeMap::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Schedule { index, after } => {
                        wheel.schedule(&mut links, index, now + after);
                        // The current tick is over: the next one is the earliest.
                        model.insert(index, (now + after).max(now + 1));
                    }
                    Step::Cancel { index } => {
                        wheel.cancel(&mut links, index);
                        model.remove(&index);
                    }
                    Step::Advance { by } => {
                        now += by;
                        let mut due: Vec<u32> = Vec::new();
                        while let Some(index) = wheel.pop(&mut links, now) {
                            due.push(index);
                        }
                        due.sort_unstable();
                        let expected: Vec<u32> =
                            model.iter().filter(|&(_, &at)| at <= now).map(|(&i, _)| i).collect();
                        model.retain(|_, at| *at > now);
                        prop_assert_eq!(due, expected);
                    }
                }
                if let Some(first) = model.values().min() {
                    prop_assert!(wheel.next_tick().is_some_and(|next| next <= *first));
                }
            }
        }
    }
}
