//! Facts of tokens by the slots of their sessions: most sessions have a token, or none has.

use dunlin_hub::SessionId;

use super::TokenFacts;

const CHUNK: usize = 64;

/// Eighteen bytes a session, in chunks that exist while one of their sessions has a token.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    chunks: Vec<Option<Box<Chunk>>>,
}

#[derive(Debug)]
struct Chunk {
    facts: [TokenFacts; CHUNK],
    /// Whose they are, of the successive sessions in the slot.
    generations: [Option<u8>; CHUNK],
}

impl Default for Chunk {
    fn default() -> Self {
        Self { facts: [TokenFacts::default(); CHUNK], generations: [None; CHUNK] }
    }
}

/// The place of a session's facts: its chunk, and where in that.
fn place(session: SessionId) -> (usize, usize) {
    let slot = session.slot() as usize;
    (slot / CHUNK, slot % CHUNK)
}

impl TokenTable {
    pub(super) fn get(&self, session: SessionId) -> Option<TokenFacts> {
        let (chunk, at) = place(session);
        let chunk = self.chunks.get(chunk)?.as_ref()?;
        (chunk.generations[at] == Some(session.generation())).then(|| chunk.facts[at])
    }

    /// Sets or removes a session's facts. Those of a later session in its slot stay.
    pub(super) fn set(&mut self, session: SessionId, facts: Option<TokenFacts>) {
        let (number, at) = place(session);
        let Some(facts) = facts else {
            if self.get(session).is_some()
                && let Some(chunk) = &mut self.chunks[number]
            {
                chunk.generations[at] = None;
                if chunk.generations.iter().all(Option::is_none) {
                    self.chunks[number] = None;
                }
            }
            return;
        };
        if number >= self.chunks.len() {
            self.chunks.resize_with(number + 1, || None);
        }
        let chunk = self.chunks[number].get_or_insert_default();
        (chunk.facts[at], chunk.generations[at]) = (facts, Some(session.generation()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::revocation::TokenId;

    fn session(slot: u32, generation: u8) -> SessionId {
        SessionId::pack(0, 0, 0, slot, generation)
    }

    fn facts(id: u64) -> TokenFacts {
        TokenFacts::new(TokenId(id), None, None)
    }

    #[test]
    fn a_session_has_the_facts_of_its_own_token() {
        let mut table = TokenTable::default();
        table.set(session(700, 1), Some(facts(1)));
        table.set(session(701, 1), Some(facts(2)));
        assert_eq!(table.get(session(700, 1)), Some(facts(1)));
        assert_eq!(table.get(session(700, 2)), None, "another session in the slot");
        assert_eq!(table.get(session(3, 1)), None);
        assert_eq!(table.get(session(90_000, 1)), None);

        table.set(session(700, 2), Some(facts(3)));
        table.set(session(700, 1), None);
        assert_eq!(table.get(session(700, 2)), Some(facts(3)), "a late end of the one before");
        table.set(session(700, 2), None);
        assert_eq!(table.get(session(701, 1)), Some(facts(2)));
        table.set(session(701, 1), None);
        assert!(table.chunks.iter().all(Option::is_none));
    }

    #[test]
    fn a_slot_costs_eighteen_bytes() {
        assert_eq!(size_of::<Chunk>(), 18 * CHUNK);
    }
}
