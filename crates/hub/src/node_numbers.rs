//! The node numbers in the ids of open sessions.

/// Node numbers in use at once: the current one and those of sessions opened before it.
pub(crate) const NODE_NUMBERS_MAX: usize = 8;

/// A session keeps its id when the node's number changes. Three bits of its flags say under which
/// number it was opened. A number is dropped with its last session.
#[derive(Debug)]
pub(crate) struct NodeNumbers {
    numbers: [u16; NODE_NUMBERS_MAX],
    /// Open sessions of each.
    sessions: [u32; NODE_NUMBERS_MAX],
    present: u8,
}

impl NodeNumbers {
    pub(crate) fn new(number: u16) -> NodeNumbers {
        let mut numbers = [0; NODE_NUMBERS_MAX];
        numbers[0] = number;
        NodeNumbers { numbers, sessions: [0; NODE_NUMBERS_MAX], present: 0 }
    }

    /// The node number at this index.
    pub(crate) fn number(&self, at: u8) -> u16 {
        self.numbers[usize::from(at) % NODE_NUMBERS_MAX]
    }

    /// A session opens. Returns the index of its number.
    pub(crate) fn opened(&mut self) -> u8 {
        self.sessions[usize::from(self.present)] += 1;
        self.present
    }

    /// A session of this number has closed.
    pub(crate) fn closed(&mut self, at: u8) {
        self.sessions[usize::from(at) % NODE_NUMBERS_MAX] -= 1;
    }

    /// Changes the number for sessions opened from now on. False, and nothing changes, while
    /// sessions of [`NODE_NUMBERS_MAX`] other numbers are open.
    pub(crate) fn set(&mut self, number: u16) -> bool {
        let known =
            (0..NODE_NUMBERS_MAX).find(|&at| self.numbers[at] == number && self.is_used(at));
        let free = || (0..NODE_NUMBERS_MAX).find(|&at| !self.is_used(at));
        // The current number is replaced if no session was opened under it.
        let own = || (self.sessions[usize::from(self.present)] == 0).then_some(self.present.into());
        let Some(at) = known.or_else(own).or_else(free) else { return false };
        self.numbers[at] = number;
        self.present = at as u8;
        true
    }

    fn is_used(&self, at: usize) -> bool {
        self.sessions[at] > 0 || at == usize::from(self.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_as_long_as_it_has_sessions_and_the_ninth_is_refused() {
        let mut nodes = NodeNumbers::new(100);
        let mut places = vec![nodes.opened()];
        for number in 101..108 {
            assert!(nodes.set(number));
            places.push(nodes.opened());
        }
        let received: Vec<u16> = places.iter().map(|&at| nodes.number(at)).collect();
        assert_eq!(received, (100..108).collect::<Vec<_>>());
        assert!(!nodes.set(108), "eight have sessions");
        assert!(nodes.set(103), "one that is kept is no ninth");
        let again = nodes.opened();
        assert_eq!((again, nodes.number(again)), (places[3], 103));
        nodes.closed(places[0]);
        assert!(nodes.set(108), "nobody has 100 any more");
        assert_eq!(nodes.number(nodes.present), 108);
        assert!(nodes.set(109) && nodes.set(110) && nodes.set(111), "nobody was opened under them");
        assert_eq!(nodes.number(places[5]), 105);
    }
}
