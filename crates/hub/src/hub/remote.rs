//! The members of channels at home here that are on other nodes.

use std::sync::Arc;

use super::Hub;
use crate::config::Now;
use crate::error::Error;
use crate::message::{ReplyContent, SubscribeRequest};
use crate::publication::ClientInfo;
use crate::remote_members::{MemberListError, MemberListRequest};

impl Hub {
    /// Returns the next list of members to request from the store that the nodes share. Call until `None` after each
    /// [`Hub::poll_event`], and pass each answer to [`Hub::handle_member_list`].
    pub fn poll_member_list(&mut self) -> Option<MemberListRequest> {
        self.remote_members.poll_request()
    }

    /// Handles the answer to a request: the members on other nodes. Subscriptions that wait for it are answered, and what
    /// has changed for others is announced.
    pub fn handle_member_list(
        &mut self,
        now: Now,
        request: &MemberListRequest,
        list: Result<Vec<Arc<ClientInfo>>, MemberListError>,
    ) {
        self.now = now;
        let channel = &*request.channel;
        match self.remote_members.handle_list(request, list) {
            Ok(changes) => {
                for (info, joined) in changes {
                    self.announce_to_subscribers(channel, &info, joined);
                }
                for (from, asked) in self.remote_members.take_waiting(channel) {
                    self.home_subscribe(from, asked);
                }
            }
            Err(_) => {
                for (from, asked) in self.remote_members.end(Some(channel)) {
                    let content = ReplyContent::Failed(Error::LimitExceeded);
                    self.reply(from, asked.request, content);
                }
            }
        }
        self.run();
    }

    /// Announcements of other nodes may have been lost: the lists of members are requested again.
    pub fn refresh_member_lists(&mut self) {
        self.remote_members.refresh();
    }

    /// Requests failed lists again, and ends to follow channels that nobody needs. Call once a second.
    pub fn look_at_member_lists(&mut self, now: Now) {
        self.now = now;
        let Self { remote_members, homes, names, config, .. } = self;
        let has_members = |channel: &str| {
            homes.find(names, channel).is_some_and(|at| homes[at].members.is_some())
        };
        remote_members.look(now.ms, 2 * config.request_timeout_ms, has_members);
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
        self.note_remote(channel, info, joined);
        self.run();
    }

    /// Records and announces a join or leave elsewhere.
    pub(super) fn note_remote(&mut self, channel: &str, info: &Arc<ClientInfo>, joined: bool) {
        if self.remote_members.note(channel, info, joined) {
            self.announce_to_subscribers(channel, info, joined);
        }
    }

    fn announce_to_subscribers(&mut self, channel: &str, info: &Arc<ClientInfo>, joined: bool) {
        if let Some(at) = self.homes.find(&self.names, channel)
            && !self.homes[at].interest.is_empty()
        {
            self.announce(at, info, joined);
        }
    }

    /// Keeps a subscription that is answered with the members of all nodes, until they are known. Returns it if it can
    /// be answered now.
    pub(super) fn wait_for_members(
        &mut self,
        from: u8,
        asked: SubscribeRequest,
    ) -> Option<SubscribeRequest> {
        let waits = asked.list_members
            && self.members_recorded
            && !self.remote_members.is_known(&asked.channel);
        if waits {
            self.remote_members.wait(from, asked);
            return None;
        }
        Some(asked)
    }

    /// The members are no longer shared between nodes: subscriptions that wait for them are answered.
    pub(super) fn end_remote_members(&mut self) {
        for (from, asked) in self.remote_members.end(None) {
            self.home_subscribe(from, asked);
        }
        self.run();
    }
}
