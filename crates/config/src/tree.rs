//! A balanced tree whose copies share what is the same in them.
//!
//! Weight-balanced, with the two parameters for which the balance is proven to hold (Hirai and Yamamoto, "Balancing
//! weight-balanced trees", 2011). A change copies the nodes on the way to it, some seventeen among a hundred thousand.
//! What that costs is memory that nobody has looked at for long: each node copied counts its name, its value and one
//! neighbour once more, and again when the copy goes. A tree of wide nodes is lower, but counts as many neighbours on
//! each level as the node is wide; measured, that is more. And two trees are compared along their difference alone: a
//! subtree that both share is skipped by its address, unread.

use std::cmp::Ordering;
use std::sync::Arc;

/// How many times heavier one side of a node may be than the other.
const DELTA: usize = 3;
/// From which ratio of the inner to the outer grandchild on one rotation is not enough.
const GAMMA: usize = 2;

pub(crate) struct Tree<T>(Link<T>);

type Link<T> = Option<Arc<Node<T>>>;

/// A name and its value; 64 bytes with the counts of its [`Arc`].
struct Node<T> {
    name: Arc<str>,
    value: Arc<T>,
    /// Nodes of this subtree, this one included.
    size: usize,
    left: Link<T>,
    right: Link<T>,
}

/// A name and its value in two trees; `None` where it is not.
pub(crate) type Difference<'a, T> = (&'a Arc<str>, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

impl<T> Tree<T> {
    pub(crate) const EMPTY: Tree<T> = Tree(None);

    /// A tree of values in the strictly ascending order of their names.
    pub(crate) fn from_sorted(values: Vec<(Arc<str>, Arc<T>)>) -> Tree<T> {
        debug_assert!(values.is_sorted_by(|(a, _), (b, _)| a < b));
        let count = values.len();
        Tree(build(&mut values.into_iter(), count))
    }

    pub(crate) fn len(&self) -> usize {
        size(&self.0)
    }

    pub(crate) fn is_same(&self, other: &Tree<T>) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<(&Arc<str>, &Arc<T>)> {
        let mut at = &self.0;
        while let Some(node) = at {
            at = match name.cmp(&node.name) {
                Ordering::Less => &node.left,
                Ordering::Greater => &node.right,
                Ordering::Equal => return Some((&node.name, &node.value)),
            };
        }
        None
    }

    /// Sets the value of a name. A name that is there already stays the same piece of memory.
    pub(crate) fn insert(&mut self, name: impl AsRef<str> + Into<Arc<str>>, value: Arc<T>) {
        insert(&mut self.0, name, value);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<T>> {
        // What is not there must not cost a copy of the way to it.
        self.get(name)?;
        remove(&mut self.0, name)
    }

    pub(crate) fn iter(&self) -> Iter<'_, T> {
        let mut iter = Iter { front: Vec::new(), back: Vec::new(), left: self.len() };
        iter.push_front(&self.0);
        iter.push_back(&self.0);
        iter
    }

    /// What is different in `new`, in the order of the names.
    pub(crate) fn diff<'a>(&'a self, new: &'a Tree<T>) -> Diff<'a, T> {
        let whole = |tree: &'a Tree<T>| tree.0.iter().map(Piece::Tree).collect();
        Diff { old: whole(self), new: whole(new) }
    }
}

impl<T> Clone for Tree<T> {
    fn clone(&self) -> Tree<T> {
        Tree(self.0.clone())
    }
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Node<T> {
        Node {
            name: Arc::clone(&self.name),
            value: Arc::clone(&self.value),
            size: self.size,
            left: self.left.clone(),
            right: self.right.clone(),
        }
    }
}

fn size<T>(link: &Link<T>) -> usize {
    link.as_ref().map_or(0, |node| node.size)
}

fn build<T>(sorted: &mut std::vec::IntoIter<(Arc<str>, Arc<T>)>, count: usize) -> Link<T> {
    if count == 0 {
        return None;
    }
    let before = count / 2;
    let left = build(sorted, before);
    let (name, value) = sorted.next()?;
    let right = build(sorted, count - before - 1);
    Some(Arc::new(Node { name, value, size: count, left, right }))
}

/// True when there is one more than before.
fn insert<T>(link: &mut Link<T>, name: impl AsRef<str> + Into<Arc<str>>, value: Arc<T>) -> bool {
    let Some(node) = link else {
        let name = name.into();
        *link = Some(Arc::new(Node { name, value, size: 1, left: None, right: None }));
        return true;
    };
    let node = Arc::make_mut(node);
    let is_new = match name.as_ref().cmp(&node.name) {
        Ordering::Less => insert(&mut node.left, name, value),
        Ordering::Greater => insert(&mut node.right, name, value),
        Ordering::Equal => {
            node.value = value;
            false
        }
    };
    if is_new {
        node.balance();
    }
    is_new
}

fn remove<T>(link: &mut Link<T>, name: &str) -> Option<Arc<T>> {
    let node = Arc::make_mut(link.as_mut()?);
    let removed = match name.cmp(&node.name) {
        Ordering::Less => remove(&mut node.left, name),
        Ordering::Greater => remove(&mut node.right, name),
        Ordering::Equal => {
            let removed = Arc::clone(&node.value);
            // The nearest of the heavier side takes its place.
            let nearest = match size(&node.left) > size(&node.right) {
                true => take_last(&mut node.left),
                false => take_first(&mut node.right),
            };
            let Some((name, value)) = nearest else {
                // Without a heavier side it has none.
                *link = None;
                return Some(removed);
            };
            node.name = name;
            node.value = value;
            Some(removed)
        }
    };
    node.balance();
    removed
}

fn take_first<T>(link: &mut Link<T>) -> Option<(Arc<str>, Arc<T>)> {
    let node = Arc::make_mut(link.as_mut()?);
    if node.left.is_some() {
        let first = take_first(&mut node.left);
        node.balance();
        return first;
    }
    let first = (Arc::clone(&node.name), Arc::clone(&node.value));
    let rest = node.right.take();
    *link = rest;
    Some(first)
}

fn take_last<T>(link: &mut Link<T>) -> Option<(Arc<str>, Arc<T>)> {
    let node = Arc::make_mut(link.as_mut()?);
    if node.right.is_some() {
        let last = take_last(&mut node.right);
        node.balance();
        return last;
    }
    let last = (Arc::clone(&node.name), Arc::clone(&node.value));
    let rest = node.left.take();
    *link = rest;
    Some(last)
}

impl<T> Node<T> {
    /// Puts size and balance right after one came or went below.
    fn balance(&mut self) {
        self.resize();
        let weight = |link: &Link<T>| size(link) + 1;
        let (left, right) = (weight(&self.left), weight(&self.right));
        if right > DELTA * left {
            if let Some(heavy) = &mut self.right
                && weight(&heavy.left) >= GAMMA * weight(&heavy.right)
            {
                Arc::make_mut(heavy).rotate_right();
            }
            self.rotate_left();
        } else if left > DELTA * right {
            if let Some(heavy) = &mut self.left
                && weight(&heavy.right) >= GAMMA * weight(&heavy.left)
            {
                Arc::make_mut(heavy).rotate_left();
            }
            self.rotate_right();
        }
    }

    fn resize(&mut self) {
        self.size = size(&self.left) + size(&self.right) + 1;
    }

    /// The right child takes this place, and this node becomes its left child.
    fn rotate_left(&mut self) {
        let Some(mut risen) = self.right.take() else { return };
        let child = Arc::make_mut(&mut risen);
        self.right = child.left.take();
        self.resize();
        std::mem::swap(self, child);
        self.left = Some(risen);
        self.resize();
    }

    fn rotate_right(&mut self) {
        let Some(mut risen) = self.left.take() else { return };
        let child = Arc::make_mut(&mut risen);
        self.left = child.right.take();
        self.resize();
        std::mem::swap(self, child);
        self.right = Some(risen);
        self.resize();
    }
}

/// All values in the order of their names.
pub(crate) struct Iter<'a, T> {
    /// Nodes whose left side has been visited, the next one last; and the same from the other end.
    front: Vec<&'a Node<T>>,
    back: Vec<&'a Node<T>>,
    left: usize,
}

impl<'a, T> Iter<'a, T> {
    fn push_front(&mut self, mut link: &'a Link<T>) {
        while let Some(node) = link {
            self.front.push(node);
            link = &node.left;
        }
    }

    fn push_back(&mut self, mut link: &'a Link<T>) {
        while let Some(node) = link {
            self.back.push(node);
            link = &node.right;
        }
    }
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = (&'a Arc<str>, &'a Arc<T>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let node = self.front.pop()?;
        self.push_front(&node.right);
        Some((&node.name, &node.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> DoubleEndedIterator for Iter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let node = self.back.pop()?;
        self.push_back(&node.left);
        Some((&node.name, &node.value))
    }
}

/// See [`Tree::diff`].
pub(crate) struct Diff<'a, T> {
    /// What of each tree is still to be compared, the next piece last.
    old: Vec<Piece<'a, T>>,
    new: Vec<Piece<'a, T>>,
}

enum Piece<'a, T> {
    /// A subtree.
    Tree(&'a Arc<Node<T>>),
    /// A node without what is below it.
    One(&'a Node<T>),
}

impl<T> Clone for Piece<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Piece<'_, T> {}

/// A subtree becomes its left side, its node and its right side.
fn open<'a, T>(pieces: &mut Vec<Piece<'a, T>>, node: &'a Arc<Node<T>>) {
    pieces.pop();
    pieces.extend(node.right.as_ref().map(Piece::Tree));
    pieces.push(Piece::One(node));
    pieces.extend(node.left.as_ref().map(Piece::Tree));
}

impl<'a, T: PartialEq> Iterator for Diff<'a, T> {
    type Item = Difference<'a, T>;

    fn next(&mut self) -> Option<Difference<'a, T>> {
        loop {
            match (self.old.last().copied(), self.new.last().copied()) {
                (Some(Piece::Tree(old)), Some(Piece::Tree(new))) => {
                    if Arc::ptr_eq(old, new) {
                        self.old.pop();
                        self.new.pop();
                        continue;
                    }
                    // The larger one is opened first: so a subtree that both share lies on top of both at
                    // some time, wherever a rotation has put it.
                    if old.size >= new.size {
                        open(&mut self.old, old);
                    }
                    if new.size >= old.size {
                        open(&mut self.new, new);
                    }
                }
                (Some(Piece::Tree(old)), _) => open(&mut self.old, old),
                (_, Some(Piece::Tree(new))) => open(&mut self.new, new),
                (Some(Piece::One(old)), Some(Piece::One(new))) => {
                    let order = match Arc::ptr_eq(&old.name, &new.name) {
                        true => Ordering::Equal,
                        false => old.name.cmp(&new.name),
                    };
                    if order.is_le() {
                        self.old.pop();
                    }
                    if order.is_ge() {
                        self.new.pop();
                    }
                    match order {
                        Ordering::Less => return Some((&old.name, Some(&old.value), None)),
                        Ordering::Greater => return Some((&new.name, None, Some(&new.value))),
                        Ordering::Equal => {
                            let (before, after) = (&old.value, &new.value);
                            if !Arc::ptr_eq(before, after) && before != after {
                                return Some((&new.name, Some(before), Some(after)));
                            }
                        }
                    }
                }
                (Some(Piece::One(old)), None) => {
                    self.old.pop();
                    return Some((&old.name, Some(&old.value), None));
                }
                (None, Some(Piece::One(new))) => {
                    self.new.pop();
                    return Some((&new.name, None, Some(&new.value)));
                }
                (None, None) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Every node is as heavy as it says, in balance, and between its neighbours.
    fn check<T>(link: &Link<T>) -> usize {
        let Some(node) = link else { return 0 };
        let (left, right) = (check(&node.left), check(&node.right));
        assert_eq!(node.size, left + right + 1);
        let (left_weight, right_weight) = (left + 1, right + 1);
        assert!(left_weight <= DELTA * right_weight && right_weight <= DELTA * left_weight);
        assert!(node.left.as_ref().is_none_or(|left| left.name < node.name));
        assert!(node.right.as_ref().is_none_or(|right| right.name > node.name));
        node.size
    }

    fn reported<T: Copy>(tree: &Tree<T>) -> Vec<(String, T)> {
        tree.iter().map(|(name, value)| (name.to_string(), **value)).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_map_that_stays_in_balance_and_lists_its_differences(
            steps in proptest::collection::vec((0..60_u8, any::<Option<u8>>()), 0..300),
            copied_at in 0..300_usize,
        ) {
            let mut tree = Tree::EMPTY;
            let mut model = BTreeMap::new();
            let mut copy = (tree.clone(), model.clone());
            for (at, (name, value)) in steps.into_iter().enumerate() {
                if at == copied_at {
                    copy = (tree.clone(), model.clone());
                }
                let name = format!("n{name}");
                match value {
                    Some(value) => {
                        tree.insert(name.as_str(), Arc::new(value));
                        model.insert(name, value);
                    }
                    None => {
                        prop_assert_eq!(tree.remove(&name).map(|v| *v), model.remove(&name));
                    }
                }
                check(&tree.0);
            }
            prop_assert_eq!(reported(&tree), model.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(reported(&copy.0), copy.1.clone().into_iter().collect::<Vec<_>>());
            let backwards: Vec<_> = tree.iter().rev().map(|(name, _)| name.to_string()).collect();
            prop_assert_eq!(backwards, model.keys().rev().cloned().collect::<Vec<_>>());
            for name in model.keys().chain(copy.1.keys()) {
                prop_assert_eq!(tree.get(name).map(|(_, v)| **v), model.get(name).copied());
            }
            let names: std::collections::BTreeSet<_> = model.keys().chain(copy.1.keys()).collect();
            let due: Vec<_> = names
                .into_iter()
                .map(|name| (name.clone(), copy.1.get(name).copied(), model.get(name).copied()))
                .filter(|(_, before, after)| before != after)
                .collect();
            let diff: Vec<_> = copy
                .0
                .diff(&tree)
                .map(|(name, old, new)| (name.to_string(), old.map(|v| **v), new.map(|v| **v)))
                .collect();
            prop_assert_eq!(diff, due);
        }
    }

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts how often one is looked into.
    struct Watched(usize);

    impl PartialEq for Watched {
        fn eq(&self, other: &Watched) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn a_change_copies_its_way_and_a_comparison_looks_at_nothing_else() {
        const NAMES: usize = 100_000;
        let sorted = (0..NAMES).map(|i| (format!("{i:06}").into(), Arc::new(Watched(i)))).collect();
        let old: Tree<Watched> = Tree::from_sorted(sorted);
        check(&old.0);
        let mut new = old.clone();
        for i in [7, 50_000, 99_999] {
            new.insert(format!("{i:06}"), Arc::new(Watched(0)));
        }
        new.insert("000007a", Arc::new(Watched(1)));
        new.remove("070000");
        check(&new.0);
        let own = |link: &Link<Watched>| {
            fn count(link: &Link<Watched>) -> usize {
                link.as_ref().map_or(0, |node| match Arc::strong_count(node) {
                    1 => 1 + count(&node.left) + count(&node.right),
                    _ => 0,
                })
            }
            count(link)
        };
        assert!(own(&new.0) <= 5 * 20, "{} nodes for five changes", own(&new.0));
        let reported: Vec<_> = old.diff(&new).map(|(name, ..)| name.to_string()).collect();
        assert_eq!(reported, ["000007", "000007a", "050000", "070000", "099999"]);
        assert_eq!(COMPARED.get(), 3, "each changed value once, and no other");
    }
}
