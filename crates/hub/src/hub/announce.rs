//! Join and leave notifications to a channel's subscribers.
//!
//! A few are sent at once. More of them within a short time are collected, and a session that joined and left
//! meanwhile is not announced. The number of notifications therefore grows with the number of changed
//! sessions, not with the number of their changes.

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
/// Notifications sent at once in a channel and a window.
const AT_ONCE: u32 = 32;

/// The channels with recent joins or leaves, by the index of their home.
#[derive(Default)]
pub(super) struct Announcements {
    windows: HashMap<u32, Window, RandomState>,
    /// The end of each window, in order, and the incarnation of its channel.
    ends: VecDeque<(u64, u32, u32)>,
}

struct Window {
    incarnation: u32,
    /// Notifications sent in this window.
    announced: u32,
    changes: HashMap<SessionId, MemberChange, RandomState>,
}

/// A change of a session to announce.
struct MemberChange {
    /// Subscribers have been notified that it is in the channel.
    known: bool,
    joined: bool,
    info: Arc<ClientInfo>,
}

impl Announcements {
    /// Records a join or leave. Returns whether to announce it at once.
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

    /// The sessions of a channel as its subscribers know them: including those whose leave is pending,
    /// excluding those whose join is.
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

    /// A window that has ended: index and incarnation of its channel, and the changes to announce.
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
                // The next window follows, so that further changes are collected.
                self.ends.push_back((now_ms + WINDOW_MS, at, incarnation));
            }
        }
        Some((at, incarnation, changes))
    }
}

/// A join or leave notification.
struct Announcement<'a> {
    info: &'a Arc<ClientInfo>,
    joined: bool,
    /// It begins or ends the presence of its user.
    of_user: bool,
}

impl Hub {
    /// Notifies the subscribers of a channel of a join or leave.
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

    /// Announces collected changes.
    pub(super) fn announce_gathered(&mut self) {
        while let Some((at, incarnation, changes)) = self.announcements.poll(self.now.ms) {
            if self.homes.get(at).is_some_and(|home| home.incarnation == incarnation) {
                self.broadcast_gathered(at, &changes);
            }
        }
    }

    fn broadcast_gathered(&mut self, at: u32, changes: &[MemberChange]) {
        // For each user, by how many sessions the actual number exceeds the known one.
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
                    // One change of a user reports it for all.
                    changes && after && more.remove(&*info.user).is_some()
                }
            };
            self.broadcast_announcement(at, &Announcement { info, joined: *joined, of_user });
        }
    }

    /// The number of the user's sessions in a channel, on all nodes as far as they are known; `None`: users are not counted.
    fn sessions_of_member(&self, at: u32, user: &str) -> Option<u32> {
        match &self.homes[at].members {
            Some(members) => {
                let channel = &self.homes[at].name;
                let elsewhere = self.remote_members.sessions_of(channel, user);
                members.sessions_of(user).map(|sessions| sessions + elsewhere)
            }
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
            user_is_number: false,
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
    fn member_that_joins_and_leaves_in_a_window_is_announced_once_or_not_at_all() {
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
