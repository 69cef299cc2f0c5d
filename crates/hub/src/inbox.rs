//! What of an inbox still counts: of several messages with one id the last, and of those with a time to live the ones that live.

use std::borrow::Borrow;
use std::collections::HashSet;

use crate::publication::Publication;

/// The tag with a message's id. A later message with the same id replaces it.
pub const INBOX_ID: &str = "inbox_id";
/// The tag with a message's time to live in milliseconds, from its publication on.
pub const INBOX_TTL_MS: &str = "inbox_ttl_ms";

fn tag<'a>(publication: &'a Publication, name: &str) -> Option<&'a str> {
    let mut tags = publication.tags().iter();
    tags.find(|(tag, _)| **tag == *name).map(|(_, value)| &**value)
}

/// Leaves what counts of consecutive publications, in order.
pub(crate) fn fold<P: Borrow<Publication>>(publications: &mut Vec<P>, now_unix_ms: u64) {
    let mut ids = HashSet::new();
    let mut counts = vec![false; publications.len()];
    for (of, counts) in publications.iter().zip(&mut counts).rev() {
        let of = of.borrow();
        let is_last = tag(of, INBOX_ID).is_none_or(|id| ids.insert(id));
        let ttl_ms = tag(of, INBOX_TTL_MS).and_then(|ttl_ms| ttl_ms.parse::<u64>().ok());
        *counts = is_last
            && ttl_ms.is_none_or(|ttl_ms| of.time_ms().saturating_add(ttl_ms) > now_unix_ms);
    }
    let mut counts = counts.into_iter();
    publications.retain(|_| counts.next().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publication::PublicationParts;

    fn message(offset: u64, time_ms: u64, tags: &[(&str, &str)]) -> Publication {
        let tags = tags.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        PublicationParts { offset, time_ms, tags, ..PublicationParts::default() }.into()
    }

    #[test]
    fn last_of_an_id_replaces_the_others_and_what_has_expired_is_gone() {
        let mut inbox = vec![
            message(1, 0, &[(INBOX_ID, "a")]),
            message(2, 0, &[]),
            message(3, 0, &[(INBOX_TTL_MS, "100")]),
            message(4, 50, &[(INBOX_TTL_MS, "100")]),
            message(5, 0, &[(INBOX_ID, "a")]),
            message(6, 0, &[(INBOX_ID, "b"), (INBOX_TTL_MS, "never")]),
        ];
        fold(&mut inbox, 100);
        let offsets: Vec<_> = inbox.iter().map(Publication::offset).collect();
        assert_eq!(offsets, [2, 4, 5, 6]);
    }

    #[test]
    fn expired_replacement_does_not_bring_back_what_it_replaced() {
        let mut inbox = vec![
            message(1, 0, &[(INBOX_ID, "a")]),
            message(2, 0, &[(INBOX_ID, "a"), (INBOX_TTL_MS, "10")]),
        ];
        fold(&mut inbox, 100);
        assert!(inbox.is_empty());
    }
}
