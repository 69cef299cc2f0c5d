//! One direction of the simulated path: delays bytes and keeps their order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dunlin_wire::backoff::Jitter;

/// Size of the unit of loss.
const SEGMENT_BYTES: usize = 1_460;

/// A delay line. It does not limit throughput or memory; the caller stops pushing when [`Line::bytes`] is too high.
#[derive(Debug)]
pub(crate) struct Line {
    queue: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    delay: Duration,
    loss: f64,
    /// Nothing leaves earlier: the connection is being established, or a lost segment retransmitted.
    not_before: Instant,
    /// Decides which segments are lost.
    random: Jitter,
}

impl Line {
    pub(crate) fn new(now: Instant, seed: u64) -> Line {
        Line {
            queue: VecDeque::new(),
            bytes: 0,
            delay: Duration::ZERO,
            loss: 0.0,
            not_before: now,
            random: Jitter::new(seed),
        }
    }

    /// Changes delay and loss for later pushes.
    pub(crate) fn set(&mut self, delay: Duration, loss: f64) {
        self.delay = delay;
        self.loss = loss;
    }

    /// Delivers nothing before `until`.
    pub(crate) fn hold_until(&mut self, until: Instant) {
        self.not_before = self.not_before.max(until);
    }

    /// Returns whether bytes pushed now would be delivered now.
    pub(crate) fn is_through(&self, now: Instant) -> bool {
        self.delay.is_zero() && self.queue.is_empty() && self.not_before <= now
    }

    /// Returns the bytes in flight.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, now: Instant, mut bytes: Vec<u8>) {
        self.bytes += bytes.len();
        self.not_before = self.not_before.max(now + self.delay);
        while let Some(lost) = self.first_lost(bytes.len()) {
            let behind = bytes.split_off(lost * SEGMENT_BYTES);
            if !bytes.is_empty() {
                self.queue.push_back((self.not_before, bytes));
            }
            // Duplicate acknowledgements take one way, the retransmission the other.
            self.not_before += self.delay * 2;
            if behind.len() <= SEGMENT_BYTES {
                bytes = behind;
                break;
            }
            // The retransmission of the lost segment succeeds; each segment behind it may be lost in turn.
            bytes = behind;
            let rest = bytes.split_off(SEGMENT_BYTES);
            self.queue.push_back((self.not_before, bytes));
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.queue.push_back((self.not_before, bytes));
        }
    }

    /// Returns the next piece that has arrived.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (_, bytes) = self.queue.pop_front_if(|(due, _)| *due <= now)?;
        self.bytes -= bytes.len();
        Some(bytes)
    }

    /// Returns when the next piece arrives.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.queue.front().map(|&(due, _)| due)
    }

    fn first_lost(&mut self, bytes: usize) -> Option<usize> {
        if self.loss <= 0.0 {
            return None;
        }
        (0..bytes.div_ceil(SEGMENT_BYTES)).find(|_| self.lot() < self.loss)
    }

    fn lot(&mut self) -> f64 {
        self.random.below(1 << 53) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Duration = Duration::from_millis(125);

    #[test]
    fn bytes_come_out_after_the_delay_and_in_order() {
        let start = Instant::now();
        let mut line = Line::new(start, 1);
        assert!(line.is_through(start));
        line.set(WAY, 0.0);
        line.push(start, b"first".to_vec());
        line.push(start + WAY / 2, b"second".to_vec());
        assert_eq!(line.pop(start + WAY / 2), None);
        assert_eq!(line.next_due(), Some(start + WAY));
        assert_eq!(line.pop(start + WAY), Some(b"first".to_vec()));
        assert_eq!(line.pop(start + WAY), None);
        // Bytes on a shorter path do not overtake.
        line.set(Duration::ZERO, 0.0);
        line.push(start + WAY, b"third".to_vec());
        assert_eq!(line.pop(start + WAY * 2), Some(b"second".to_vec()));
        assert_eq!(line.pop(start + WAY * 2), Some(b"third".to_vec()));
        assert_eq!(line.bytes(), 0);
    }

    #[test]
    fn a_lost_segment_holds_up_what_is_behind_it_and_nothing_is_lost_for_good() {
        let start = Instant::now();
        let mut line = Line::new(start, 42);
        line.set(WAY, 0.2);
        let sent: Vec<u8> = (0..400_000u32).map(|n| n as u8).collect();
        for piece in sent.chunks(50_000) {
            line.push(start, piece.to_vec());
        }
        let mut received = Vec::new();
        let (mut before, mut steps) = (start, 0);
        while let Some(due) = line.next_due() {
            assert!(due >= before, "pieces are in order");
            steps += usize::from(due > before);
            before = due;
            received.extend(line.pop(due).expect("it is due"));
        }
        assert_eq!(received, sent);
        assert!(steps > 20, "a fifth of 274 segments was lost, {steps} waits");
    }
}
