//! The members of channels at home here.

use std::sync::Arc;

use super::Hub;
use crate::channel_event::ChannelEvent;
use crate::home_channel::HomeMember;
use crate::member_event::MemberEvent;

impl Hub {
    /// Enables or disables the recording of joins and leaves of members, for a store that several nodes share. If it is
    /// enabled, subscribers that list members get those of all nodes: [`Hub::poll_member_list`].
    pub fn record_members(&mut self, recorded: bool) {
        self.members_recorded = recorded;
        if !recorded {
            self.end_remote_members();
        }
    }

    /// Returns the next recorded join or leave. Call until `None` after each [`Hub::poll_event`].
    pub fn poll_member_event(&mut self) -> Option<MemberEvent> {
        self.member_events.pop_front()
    }

    /// Channels at home here with subscribers, and users in them if they are counted, as if they had just come.
    pub fn occupied(&self) -> impl Iterator<Item = ChannelEvent> {
        let homes = self.homes.iter().filter(|(_, home)| !home.interest.is_empty());
        homes.flat_map(|(_, home)| {
            let channel = Arc::clone(&home.name);
            let users = home.members.iter().flat_map(|members| members.users());
            let users = users.map(move |user| {
                let (channel, user) = (Arc::clone(&home.name), user.as_str().into());
                ChannelEvent::Member { channel, user, added: true }
            });
            std::iter::once(ChannelEvent::Occupied { channel, occupied: true }).chain(users)
        })
    }

    /// All members of channels at home here, as joins.
    pub fn members(&self) -> impl Iterator<Item = MemberEvent> {
        self.homes.iter().flat_map(|(_, home)| {
            let members = home.members.iter().flat_map(|members| members.iter());
            members.map(|member| member.event(&home.name, true))
        })
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
