//! Linked lists of records that hold their links themselves.

use crate::slots::NONE;

/// A record's neighbours in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self { prev: NONE, next: NONE }
    }
}

/// Records with links, by index.
pub(crate) trait Linked {
    /// The links of a record that is in the list or about to be.
    fn links(&mut self, at: u32) -> &mut Links;
}

/// The ends and the length of a list. A record is in at most one list for each of its links.
#[derive(Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The first record: the one that has been in the list for longest.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The first `max` records, in order.
    pub(crate) fn first_some(&self, max: usize, records: &mut impl Linked) -> Vec<u32> {
        let mut some = Vec::new();
        let mut at = self.head;
        while at != NONE && some.len() < max {
            some.push(at);
            at = records.links(at).next;
        }
        some
    }

    /// Appends a record that is in no list with these links.
    pub(crate) fn push(&mut self, at: u32, records: &mut impl Linked) {
        *records.links(at) = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = at,
            tail => records.links(tail).next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    /// Removes a record of this list.
    pub(crate) fn remove(&mut self, at: u32, records: &mut impl Linked) {
        let Links { prev, next } = std::mem::take(records.links(at));
        match prev {
            NONE => self.head = next,
            prev => records.links(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => records.links(next).prev = prev,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Linked for Vec<Links> {
        fn links(&mut self, at: u32) -> &mut Links {
            &mut self[at as usize]
        }
    }

    proptest! {
        #[test]
        fn list_keeps_the_order_of_what_is_in_it(
            toggled in proptest::collection::vec(0..20_u32, 1..200)
        ) {
            let mut records = vec![Links::default(); 20];
            let (mut list, mut model) = (List::default(), Vec::new());
            for at in toggled {
                match model.iter().position(|&of| of == at) {
                    Some(place) => {
                        model.remove(place);
                        list.remove(at, &mut records);
                    }
                    None => {
                        model.push(at);
                        list.push(at, &mut records);
                    }
                }
                prop_assert_eq!(list.first(), model.first().copied());
                prop_assert_eq!(list.len() as usize, model.len());
                prop_assert_eq!(&list.first_some(50, &mut records), &model);
            }
        }
    }
}
