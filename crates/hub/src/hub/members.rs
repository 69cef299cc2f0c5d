//! The members of channels at home here.

use std::sync::Arc;

use super::Hub;
use crate::config::Now;
use crate::home_channel::HomeMember;
use crate::member_event::MemberEvent;
use crate::publication::ClientInfo;

impl Hub {
    /// Enables or disables the recording of joins and leaves of members.
    pub fn record_members(&mut self, recorded: bool) {
        self.members_recorded = recorded;
    }

    /// Returns the next recorded join or leave. Call until `None` after each [`Hub::poll_event`].
    pub fn poll_member_event(&mut self) -> Option<MemberEvent> {
        self.member_events.pop_front()
    }

    /// All members of channels at home here, as joins.
    pub fn members(&self) -> impl Iterator<Item = MemberEvent> {
        self.homes.iter().flat_map(|(_, home)| {
            let members = home.members.iter().flat_map(|members| members.iter());
            members.map(|member| member.event(&home.name, true))
        })
    }

    /// Announces that a session of another process has joined or left a channel, to its subscribers here, if
    /// the channel is at home here.
    pub fn announce_remote(
        &mut self,
        now: Now,
        channel: &str,
        info: &Arc<ClientInfo>,
        joined: bool,
    ) {
        self.now = now;
        if let Some(at) = self.homes.find(&self.names, channel)
            && !self.homes[at].interest.is_empty()
        {
            self.announce(at, info, joined);
        }
        self.run();
    }

    /// Records that a member is added to or removed from the list.
    pub(super) fn record_member(&mut self, at: u32, member: &HomeMember, joined: bool) {
        if self.members_recorded {
            let home = &self.homes[at];
            let at_edge = home.members.as_ref().is_none_or(|members| members.is_empty());
            let event = MemberEvent { at_edge, ..member.event(&home.name, joined) };
            self.member_events.push_back(event);
        }
    }
}

impl HomeMember {
    fn event(&self, channel: &Arc<str>, joined: bool) -> MemberEvent {
        MemberEvent {
            channel: Arc::clone(channel),
            info: Arc::clone(&self.info),
            joined,
            presence: self.presence,
            join_leave: self.join_leave,
            at_edge: true,
        }
    }
}
