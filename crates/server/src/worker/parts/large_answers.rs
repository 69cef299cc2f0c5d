//! Large answers: pages of history and what long-polls have missed. So many bytes of them are made in a turn of the loop, the
//! rest waits for the next turns, in order. What waits holds publications that are shared, not a copy of them.

use std::collections::VecDeque;

use dunlin_hub::Event;

use super::Pending;

/// Made in one turn, about. One answer is made in each turn, however large.
const BYTES_PER_TURN: usize = 256 << 10;
/// Turns in a row that leave them to wait while messages are sent to many.
const TURNS_SKIPPED_MAX: u8 = 7;
/// Smaller ones are no matter.
const BYTES_MIN: usize = 16 << 10;

/// Answers of one worker that wait for their turn.
#[derive(Default)]
pub(crate) struct LargeAnswers {
    waiting: VecDeque<(Pending, Event)>,
    /// Made in this turn.
    bytes: usize,
    /// Turns without any.
    skipped: u8,
}

impl LargeAnswers {
    /// Gives an answer back if it is to be made now, and keeps it otherwise.
    pub(crate) fn admit(&mut self, pending: Pending, event: Event) -> Option<(Pending, Event)> {
        let bytes = bytes_of(&pending, &event);
        if bytes < BYTES_MIN {
            return Some((pending, event));
        }
        if self.waiting.is_empty() && self.bytes < BYTES_PER_TURN {
            self.bytes += bytes;
            return Some((pending, event));
        }
        self.waiting.push_back((pending, event));
        None
    }

    /// A turn begins. While messages are being sent (`busy`) most turns make none of these answers.
    pub(crate) fn begin_turn(&mut self, busy: bool) {
        if busy && self.skipped < TURNS_SKIPPED_MAX {
            self.skipped += 1;
            self.bytes = BYTES_PER_TURN;
        } else {
            (self.skipped, self.bytes) = (0, 0);
        }
    }

    /// The next one that has waited and is to be made in this turn.
    pub(crate) fn next(&mut self) -> Option<(Pending, Event)> {
        if self.bytes >= BYTES_PER_TURN {
            return None;
        }
        let (pending, event) = self.waiting.pop_front()?;
        self.bytes += bytes_of(&pending, &event);
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some((pending, event))
    }

    /// Nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn bytes_of(pending: &Pending, event: &Event) -> usize {
    let publications = match (pending, event) {
        (_, Event::History { result: Ok(history), .. }) => &history.publications,
        // A client is answered that it is subscribed before what is published next; a poll takes both together.
        (Pending::Poll { .. }, Event::Subscribed { result: Ok(subscribed), .. }) => {
            &subscribed.publications
        }
        _ => return 0,
    };
    publications.iter().map(|of| of.data().len()).sum()
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{History, PublicationParts, SessionId};

    use super::*;

    fn page(id: u32, bytes: usize) -> (Pending, Event) {
        let data = vec![b'x'; bytes].into();
        let publications = vec![PublicationParts { data, ..PublicationParts::default() }.into()];
        let history = History { publications, ..History::default() };
        let session = SessionId::pack(0, 0, 0, 1, 0);
        (Pending::Command { session, id }, Event::History { token: 0, result: Ok(history) })
    }

    fn id(made: Option<(Pending, Event)>) -> Option<u32> {
        made.map(|(pending, _)| match pending {
            Pending::Command { id, .. } => id,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_turn_makes_so_many_bytes_of_answers_and_the_rest_waits_in_order() {
        let mut answers = LargeAnswers::default();
        let mut admit = |at, bytes| {
            let (pending, event) = page(at, bytes);
            id(answers.admit(pending, event))
        };
        assert_eq!(admit(1, BYTES_PER_TURN * 3), Some(1), "one, however large");
        assert_eq!(admit(2, BYTES_MIN), None);
        assert_eq!(admit(3, BYTES_PER_TURN), None);
        assert_eq!(admit(4, BYTES_MIN - 1), Some(4), "small ones do not wait");
        assert_eq!(id(answers.next()), None, "this turn has had enough");
        answers.begin_turn(false);
        let (pending, event) = page(5, BYTES_MIN);
        assert_eq!(id(answers.admit(pending, event)), None, "behind those that wait");
        assert_eq!((id(answers.next()), id(answers.next())), (Some(2), Some(3)));
        assert_eq!(id(answers.next()), None);
        answers.begin_turn(false);
        assert_eq!((id(answers.next()), answers.is_idle()), (Some(5), true));
        let (pending, event) = page(6, BYTES_PER_TURN);
        answers.begin_turn(true);
        assert_eq!(id(answers.admit(pending, event)), None, "messages go first");
        let turns = (1..).find(|_| {
            answers.begin_turn(true);
            answers.next().is_some()
        });
        assert_eq!(turns, Some(usize::from(TURNS_SKIPPED_MAX)), "but it does not wait for ever");
    }
}
