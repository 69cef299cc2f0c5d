//! Joins and leaves, as a channel's subscribers are notified of them.
//!
//! A few go out at once. More of them in a short time are gathered, and whoever came and went meanwhile is not announced at
//! all: what a subscriber is sent grows with the number of sessions that changed, not with how often they did.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::Hub;
use crate::message::HubMessageKind;
use crate::publication::ClientInfo;
use crate::session_id::SessionId;

/// Length of a window.
const WINDOW_MS: u64 = 100;
/// Announced at once in a channel and a window.
const AT_ONCE: u32 = 32;

/// The channels in which somebody joined or left of late, by the index of their home.
#[derive(Default)]
pub(super) struct Announcements {
    windows: HashMap<u32, Window, RandomState>,
    /// When each window ends, in that order, and its channel's incarnation.
    ends: VecDeque<(u64, u32, u32)>,
}

struct Window {
    incarnation: u32,
    /// Announced in it so far.
    announced: u32,
    changes: HashMap<SessionId, MemberChange, RandomState>,
}

/// What is to be announced of a session.
struct MemberChange {
    /// It is in the channel, as far as subscribers know.
    known: bool,
    joined: bool,
    info: Arc<ClientInfo>,
}

impl Announcements {
    /// Notes that a session joined or left. True: announce it now.
    fn note(
        &mut self,
        now_ms: u64,
        (at, incarnation): (u32, u32),
        info: &Arc<ClientInfo>,
        joined: bool,
    ) -> bool {
        let window = match self.windows.entry(at) {
            Entry::Occupied(entry) if entry.get().incarnation == incarnation => entry.into_mut(),
            entry => {
                self.ends.push_back((now_ms + WINDOW_MS, at, incarnation));
                let window = Window { incarnation, announced: 0, changes: HashMap::default() };
                entry.insert(window).into_mut()
            }
        };
        if window.announced < AT_ONCE {
            window.announced += 1;
            return true;
        }
        match window.changes.entry(info.client) {
            Entry::Vacant(entry) => {
                entry.insert(MemberChange { known: !joined, joined, info: Arc::clone(info) });
            }
            Entry::Occupied(entry) if entry.get().known == joined => drop(entry.remove()),
            Entry::Occupied(mut entry) => entry.get_mut().joined = joined,
        }
        false
    }

    /// When the next window ends.
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.ends.front().map(|&(end_ms, ..)| end_ms)
    }

    /// Those of a channel's sessions that its subscribers know of: with those whose leave is gathered, and without those whose
    /// join is.
    pub(super) fn known(
        &self,
        (at, incarnation): (u32, u32),
        present: impl Iterator<Item = Arc<ClientInfo>>,
    ) -> impl Iterator<Item = Arc<ClientInfo>> {
        let window = self.windows.get(&at).filter(|window| window.incarnation == incarnation);
        let changes = window.map(|window| &window.changes);
        let change = move |info: &ClientInfo| changes.and_then(|of| of.get(&info.client));
        let left = changes.into_iter().flat_map(HashMap::values).filter(|of| !of.joined);
        present
            .filter(move |info| change(info).is_none_or(|change| !change.joined))
            .chain(left.map(|change| Arc::clone(&change.info)))
    }

    /// A window that has ended, as index and incarnation of its channel, and what is to be announced.
    fn poll(&mut self, now_ms: u64) -> Option<(u32, u32, Vec<MemberChange>)> {
        let &(_, at, incarnation) = self.ends.front().filter(|&&(end_ms, ..)| end_ms <= now_ms)?;
        self.ends.pop_front();
        let mut changes = Vec::new();
        if let Entry::Occupied(mut entry) = self.windows.entry(at)
            && entry.get().incarnation == incarnation
        {
            changes.extend(entry.get_mut().changes.drain().map(|(_, change)| change));
            if changes.is_empty() {
                entry.remove();
            } else {
                // It goes on: the next are gathered from the first on.
                self.ends.push_back((now_ms + WINDOW_MS, at, incarnation));
            }
        }
        Some((at, incarnation, changes))
    }
}

/// A join or a leave, as subscribers are notified of it.
struct Announcement<'a> {
    info: &'a Arc<ClientInfo>,
    joined: bool,
    /// It begins or ends the presence of its user.
    of_user: bool,
}

impl Hub {
    /// A session has joined or left a channel whose subscribers are notified of that.
    pub(super) fn announce(&mut self, at: u32, info: &Arc<ClientInfo>, joined: bool) {
        let channel = (at, self.homes[at].incarnation);
        if self.announcements.note(self.now.ms, channel, info, joined) {
            let of_user = match self.sessions_of_member(at, &info.user) {
                Some(sessions) => sessions == u32::from(joined),
                None => true,
            };
            self.broadcast_announcement(at, &Announcement { info, joined, of_user });
        }
    }

    /// Announces what was gathered until now.
    pub(super) fn announce_gathered(&mut self) {
        while let Some((at, incarnation, changes)) = self.announcements.poll(self.now.ms) {
            if self.homes.get(at).is_some_and(|home| home.incarnation == incarnation) {
                self.broadcast_gathered(at, &changes);
            }
        }
    }

    fn broadcast_gathered(&mut self, at: u32, changes: &[MemberChange]) {
        // By how many sessions more each user is there than is known.
        let mut more: HashMap<&str, i64, RandomState> = HashMap::default();
        for change in changes {
            *more.entry(&change.info.user).or_default() += if change.joined { 1 } else { -1 };
        }
        for MemberChange { joined, info, .. } in changes {
            let of_user = match self.sessions_of_member(at, &info.user) {
                None => true,
                Some(sessions) => {
                    let now = i64::from(sessions);
                    let known = more.get(&*info.user).map(|more| now - more);
                    let (before, after) = if *joined { (0, now > 0) } else { (1, now == 0) };
                    let changes = known.is_some_and(|known| known.min(1) == before);
                    // One of a user's changes says so for all.
                    changes && after && more.remove(&*info.user).is_some()
                }
            };
            self.broadcast_announcement(at, &Announcement { info, joined: *joined, of_user });
        }
    }

    /// How many sessions this user has in a channel; `None`: its users are not counted.
    fn sessions_of_member(&self, at: u32, user: &str) -> Option<u32> {
        match &self.homes[at].members {
            Some(members) => members.sessions_of(user),
            None => None,
        }
    }

    fn broadcast_announcement(&mut self, at: u32, announcement: &Announcement<'_>) {
        let &Announcement { info, joined, of_user } = announcement;
        self.broadcast(at, |channel| match joined {
            true => HubMessageKind::Join { channel, info: Arc::clone(info), of_user },
            false => HubMessageKind::Leave { channel, info: Arc::clone(info), of_user },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(number: u64) -> Arc<ClientInfo> {
        let client = SessionId::from_u64(number).expect("53 bits");
        Arc::new(ClientInfo {
            client,
            foreign_client: None,
            user: "".into(),
            conn_info: None,
            chan_info: None,
        })
    }

    fn gathered(announcements: &mut Announcements, now_ms: u64) -> Vec<(u64, bool)> {
        let polled = std::iter::from_fn(|| announcements.poll(now_ms));
        let mut changes: Vec<_> = polled
            .flat_map(|(.., changes)| changes)
            .map(|change| (change.info.client.to_u64(), change.joined))
            .collect();
        changes.sort_unstable();
        changes
    }

    #[test]
    fn who_comes_and_goes_in_a_window_is_announced_once_or_not_at_all() {
        let mut announcements = Announcements::default();
        let channel = (7, 1);
        for number in 0..u64::from(AT_ONCE) {
            assert!(announcements.note(0, channel, &info(number), true));
        }
        for _ in 0..1_000 {
            assert!(!announcements.note(5, channel, &info(100), true));
            announcements.note(5, channel, &info(100), false);
            announcements.note(5, channel, &info(1), false);
            announcements.note(5, channel, &info(1), true);
        }
        announcements.note(6, channel, &info(101), true);
        announcements.note(6, channel, &info(2), false);
        assert!(announcements.note(6, (8, 2), &info(9), true), "another channel");
        assert_eq!(announcements.due_ms(), Some(WINDOW_MS));
        assert_eq!(gathered(&mut announcements, WINDOW_MS - 1), []);
        assert_eq!(gathered(&mut announcements, WINDOW_MS), [(2, false), (101, true)]);
        assert!(!announcements.note(150, channel, &info(3), false), "it goes on");
        assert_eq!(gathered(&mut announcements, 2 * WINDOW_MS), [(3, false)]);
        assert_eq!(gathered(&mut announcements, 3 * WINDOW_MS), []);
        assert_eq!((announcements.due_ms(), announcements.windows.len()), (None, 0));
        assert!(announcements.note(500, channel, &info(3), true));
    }
}
