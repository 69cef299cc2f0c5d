//! Bytes that wait, divided by user or address.

use super::FastMap;

/// Bytes in all, and of each flow: a user, or an address of clients without one.
#[derive(Debug, Default)]
pub(crate) struct FlowBytes {
    all: usize,
    of: FastMap<u64, usize>,
}

impl FlowBytes {
    /// Adds bytes of a flow. Returns `false` if more than `bytes_max` would wait in all, or the flow would have more than there is
    /// room for others: one alone may have half of `bytes_max`. The first of a flow waits wherever there is room.
    #[must_use]
    pub(crate) fn add(&mut self, flow: u64, bytes: usize, bytes_max: usize) -> bool {
        let of_flow = self.of.get(&flow).copied().unwrap_or(0);
        let room = bytes_max.saturating_sub(self.all);
        if bytes > room || of_flow > 0 && of_flow + bytes > room {
            return false;
        }
        if bytes > 0 {
            self.all += bytes;
            self.of.insert(flow, of_flow + bytes);
        }
        true
    }

    pub(crate) fn release(&mut self, flow: u64, bytes: usize) {
        self.all -= bytes;
        if let Some(of_flow) = self.of.get_mut(&flow) {
            *of_flow -= bytes;
            if *of_flow == 0 {
                self.of.remove(&flow);
            }
        }
        if self.all == 0 {
            *self = FlowBytes::default();
        }
    }

    /// Returns the bytes of all flows.
    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.all
    }

    #[cfg(test)]
    pub(super) fn flows(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_leaves_as_much_room_for_others_as_it_has() {
        let mut bytes = FlowBytes::default();
        let taken = (0..20).filter(|_| bytes.add(7, 10, 100)).count();
        assert_eq!(taken, 5);
        assert!(bytes.add(8, 40, 100), "the first of another flow");
        assert!(!bytes.add(8, 10, 100) && !bytes.add(9, 20, 100));
        assert!(bytes.add(9, 10, 100));
        bytes.release(7, 50);
        assert!(bytes.add(9, 10, 100));
        bytes.release(8, 40);
        bytes.release(9, 20);
        assert_eq!((bytes.all(), bytes.flows()), (0, 0));
    }
}
