//! Requests to every worker whose replies are combined: channel lists, counts, and operations on
//! all sessions of a user.

use std::sync::Arc;

use super::Hub;
use super::session::DisconnectCause;
use crate::channel::Channel;
use crate::channel_event::UnsubscribeCause;
use crate::command::{
    DisconnectUser, RefreshUser, SendToUser, SessionFilter, SubscribeOptions, SubscribeUser,
    UnsubscribeUser,
};
use crate::config::Now;
use crate::encode::Outgoing;
use crate::error::Error;
use crate::event::{Event, Info};
use crate::glob;
use crate::message::{
    HubMessageKind, ReplyContent, ScatterRequest, SessionAction, SubscribeRequest, WaiterId,
};
use crate::options::ChannelRef;
use crate::pending_requests::{Aggregate, ScatterGather, Waiter};
use crate::session_id::SessionId;
use crate::tenant;
use crate::worker_set::WorkerSet;

impl Hub {
    /// Lists channels with subscribers; ends with [`Event::Channels`]. `pattern`: `*` matches any characters,
    /// `?` one, `[a-z]`, `{chat,news}:*`; empty: all.
    pub fn handle_channels(&mut self, now: Now, token: u64, pattern: &str) {
        self.now = now;
        let patterns = if pattern.is_empty() { Some(Vec::new()) } else { glob::expand(pattern) };
        let asked = patterns.ok_or(Error::BadRequest).and_then(|patterns| {
            let scatter = ScatterRequest::Channels { patterns };
            self.scatter(token, Aggregate::Channels(Default::default()), None, "", scatter)
        });
        if let Err(error) = asked {
            self.events.push_back(Event::Channels { token, result: Err(error) });
        }
        self.run();
    }

    /// Counts sessions, users, channels and subscriptions; ends with [`Event::Info`].
    pub fn handle_info(&mut self, now: Now, token: u64) {
        self.now = now;
        if let Err(error) =
            self.scatter(token, Aggregate::Info(Info::default()), None, "", ScatterRequest::Info)
        {
            self.events.push_back(Event::Info { token, result: Err(error) });
        }
        self.run();
    }

    /// Disconnects a user's sessions; ends with [`Event::Affected`]. With an empty `user`, a `client` or
    /// `all_users` is required.
    pub fn handle_disconnect_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        disconnect: DisconnectUser,
    ) {
        self.now = now;
        let DisconnectUser { only, except, code, reason } = disconnect;
        let action = SessionAction::Disconnect { except, code, reason: reason.into() };
        self.scatter_to_user(token, user, only, action);
    }

    /// Unsubscribes a user's sessions from a channel, or from all with an empty `channel`; ends with
    /// [`Event::Affected`]. With an empty `user`, a `client` or `all_users` is required.
    pub fn handle_unsubscribe_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        channel: &str,
        unsubscribe: UnsubscribeUser,
    ) {
        self.now = now;
        let UnsubscribeUser { only, code, reason } = unsubscribe;
        let (channel, reason) = (channel.into(), reason.into());
        self.scatter_to_user(
            token,
            user,
            only,
            SessionAction::Unsubscribe { channel, code, reason },
        );
    }

    /// Subscribes a user's sessions to a channel; ends with [`Event::Affected`], counting those that were not
    /// subscribed yet. With an empty `user`, a `client` is required.
    pub fn handle_subscribe_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        subscribe: SubscribeUser,
    ) {
        self.now = now;
        if let Err(error) = self.check_name(channel) {
            self.events.push_back(Event::Affected { token, result: Err(error) });
            return;
        }
        let SubscribeUser { only, subscribe, expire_at_s } = subscribe;
        let action = SessionAction::Subscribe {
            channel: channel.into(),
            options: Arc::clone(options),
            subscribe: SubscribeOptions {
                granted: true,
                announce: true,
                server_side: true,
                ..subscribe
            },
            expire_at_s,
        };
        self.scatter_to_user(token, user, only, action);
    }

    /// Changes the expiry of a user's sessions: [`Event::Refreshed`] for each on its worker; ends with
    /// [`Event::Affected`]. With an empty `user`, a `client` or `all_users` is required.
    pub fn handle_refresh_user(&mut self, now: Now, token: u64, user: &str, refresh: RefreshUser) {
        self.now = now;
        let RefreshUser { only, expire_at_s, conn_info } = refresh;
        self.scatter_to_user(token, user, only, SessionAction::Refresh { expire_at_s, conn_info });
    }

    /// Sends a message to a user's sessions, outside of channels; ends with [`Event::Sent`]. With an empty
    /// `user`, a `client` is required. A long-poll does not receive it.
    pub fn handle_send_to_user(&mut self, now: Now, token: u64, user: &str, send: SendToUser) {
        self.now = now;
        let SendToUser { client, device, data, format } = send;
        let only = SessionFilter::from(client);
        let action = SessionAction::Send { device, data, format };
        let asked = self.scatter_sessions(token, Aggregate::Sent(0), user, (only, action));
        if let Err(error) = asked {
            self.events.push_back(Event::Sent { token, result: Err(error) });
        }
        self.run();
    }

    fn scatter_to_user(
        &mut self,
        token: u64,
        user: &str,
        only: SessionFilter,
        action: SessionAction,
    ) {
        let asked = self.scatter_sessions(token, Aggregate::Affected(0), user, (only, action));
        if let Err(error) = asked {
            self.events.push_back(Event::Affected { token, result: Err(error) });
        }
        self.run();
    }

    fn scatter_sessions(
        &mut self,
        token: u64,
        result: Aggregate,
        user: &str,
        (only, action): (SessionFilter, SessionAction),
    ) -> Result<(), Error> {
        let client = only.client;
        if client.is_none() && !only.all_users && is_nobody(user) {
            return Err(Error::BadRequest);
        }
        // An empty user with `all_users` is sent to all workers.
        let whose = if only.all_users { "" } else { user };
        let (user, action) = (user.into(), Box::new(action));
        let scatter = ScatterRequest::Sessions { user, only, action };
        self.scatter(token, result, client, whose, scatter)
    }

    /// Sends a request to every worker, to the worker of a session id, or to those that may have sessions of
    /// a user.
    fn scatter(
        &mut self,
        token: u64,
        result: Aggregate,
        client: Option<SessionId>,
        user: &str,
        scatter: ScatterRequest,
    ) -> Result<(), Error> {
        let only = client.map(SessionId::worker);
        let mut asked = WorkerSet::default();
        for worker in 0..self.config.workers {
            let is_asked = match only {
                Some(only) => only == worker,
                None => user.is_empty() || self.users.may_be_on(worker, user),
            };
            if is_asked {
                asked.insert(worker);
            }
        }
        let cost = size_of::<HubMessageKind>() + scatter.cost();
        let full = asked.iter().any(|worker| !self.has_room(worker, cost));
        if full || !self.requests.has_room() {
            self.stats.overloaded += 1;
            return Err(Error::Overloaded);
        }
        let gather = ScatterGather { token, waiting: asked, result };
        let deadline_ms = self.now.ms + self.config.request_timeout_ms;
        let request = self.requests.insert(deadline_ms, Waiter::ScatterGather(Box::new(gather)));
        let scatter = Arc::new(scatter);
        if asked.is_empty() {
            // The session is not of this process, or the user has none.
            self.finish_gather(request);
        }
        for worker in asked.iter() {
            self.send_to(
                worker,
                HubMessageKind::Scatter { request, scatter: Arc::clone(&scatter) },
            );
        }
        Ok(())
    }

    pub(super) fn finish_gather(&mut self, request: WaiterId) {
        let Some(Waiter::ScatterGather(gather)) = self.requests.take(request) else { return };
        let token = gather.token;
        self.events.push_back(match gather.result {
            Aggregate::Info(info) => Event::Info { token, result: Ok(info) },
            Aggregate::Affected(sessions) => Event::Affected { token, result: Ok(sessions) },
            Aggregate::Sent(sessions) => Event::Sent { token, result: Ok(sessions) },
            channels => Event::Channels { token, result: Ok(channels.into_channels()) },
        });
    }

    pub(super) fn handle_scatter(&mut self, from: u8, request: WaiterId, scatter: &ScatterRequest) {
        let content = match scatter {
            ScatterRequest::Channels { patterns } => {
                ReplyContent::Channels(self.matching(patterns))
            }
            ScatterRequest::Info => ReplyContent::Info(Info {
                clients: self.sessions.len().into(),
                users: self.users.len().into(),
                channels: self.active_homes,
                subscriptions: self.subscriptions.len().into(),
            }),
            ScatterRequest::Sessions { user, only, action } => {
                let mut affected = 0;
                for slot in self.addressed(user, only) {
                    // An action may have ended another session.
                    if self.sessions[slot].is_live() {
                        affected += self.act(slot, action);
                    }
                }
                ReplyContent::Affected(affected)
            }
        };
        self.reply(from, request, content);
    }

    /// Executes an action on a live session. Returns the number of affected sessions: 1 or 0.
    pub(super) fn act(&mut self, slot: u32, action: &SessionAction) -> u64 {
        let is_affected = match action {
            SessionAction::Disconnect { except, code, reason } => {
                let is_meant = !except.contains(&self.id_of(slot));
                if is_meant {
                    self.disconnect(slot, *code, reason, DisconnectCause::ServerApi);
                }
                is_meant
            }
            SessionAction::Unsubscribe { channel, code, reason } => {
                self.unsubscribe_by_server(slot, channel, *code, reason)
            }
            SessionAction::Subscribe { channel, options, subscribe, expire_at_s } => {
                let id = self.id_of(slot);
                let begun = self.subscribe(None, id, channel, options, subscribe.clone());
                if let (Ok(()), Some(expire_at_s)) = (begun, *expire_at_s) {
                    let channel = Arc::clone(channel);
                    self.events.push_back(Event::Expires { session: id, channel, expire_at_s });
                }
                begun.is_ok()
            }
            SessionAction::Refresh { expire_at_s, conn_info } => {
                if let Some(info) = conn_info {
                    self.replace_conn_info(slot, info.clone());
                }
                let (session, tag) = (self.id_of(slot), self.sessions[slot].tag);
                self.events.push_back(Event::Refreshed { session, tag, expire_at_s: *expire_at_s });
                true
            }
            SessionAction::Send { device, data, format } => {
                let outgoing = Outgoing::Message { data, format: *format };
                self.is_of_device(slot, device) && self.enqueue(slot, &outgoing)
            }
        };
        u64::from(is_affected)
    }

    /// Whether the requests to other workers that an action needs can be sent now.
    pub(super) fn has_room_for(&self, action: &SessionAction) -> bool {
        let SessionAction::Subscribe { channel, .. } = action else { return true };
        let home = self.names.home(self.names.hash(&**channel));
        let cost = size_of::<HubMessageKind>() + size_of::<SubscribeRequest>();
        self.requests.has_room() && self.has_room(home, 2 * cost)
    }

    fn is_of_device(&self, slot: u32, device: &str) -> bool {
        device.is_empty()
            || self.conn_infos.get(&slot).is_some_and(|of| self.encoder.is_of_device(of, device))
    }

    fn unsubscribe_by_server(
        &mut self,
        slot: u32,
        channel: &Arc<str>,
        code: u32,
        reason: &str,
    ) -> bool {
        let only = if channel.is_empty() {
            None
        } else {
            match self.channels.find(&self.names, channel) {
                Some(at) => Some(at),
                None => return false,
            }
        };
        let ended: Vec<u32> = self
            .subscriptions_of(slot)
            .filter(|&at| only.is_none_or(|only| self.subscriptions[at].channel == only))
            .collect();
        for &at in &ended {
            let name = Arc::clone(&self.channels[self.subscriptions[at].channel].name);
            self.end_subscription(at, UnsubscribeCause::Server, code);
            self.enqueue(slot, &Outgoing::Unsubscribe { channel: &name, code, reason });
            if !self.sessions[slot].is_live() {
                break;
            }
        }
        !ended.is_empty()
    }

    /// Live sessions of a user, or the one with the given id if it belongs to the user, or to the tenant if no user is
    /// given, whose labels match.
    fn addressed(&self, user: &str, only: &SessionFilter) -> Vec<u32> {
        let mut slots: Vec<u32> = match only.client {
            Some(client) => self
                .live_slot(client)
                .filter(|&slot| tenant::addresses(user, self.users.name(self.sessions[slot].user)))
                .into_iter()
                .collect(),
            None => self
                .users
                .sessions(&self.sessions, user)
                .filter(|&slot| self.sessions[slot].is_live())
                .collect(),
        };
        slots.retain(|&slot| self.is_selected(slot, only));
        slots
    }

    fn matching(&self, patterns: &[String]) -> Vec<(Arc<str>, u64)> {
        if let [name] = patterns
            && !glob::is_pattern(name)
        {
            let found = self.channels.find(&self.names, name).map(|at| &self.channels[at]);
            let found = found.filter(|channel| !channel.subscribers.is_empty());
            let count = |of: &Channel| (Arc::clone(&of.name), of.subscribers.len() as u64);
            return found.map(count).into_iter().collect();
        }
        self.channels
            .iter()
            .filter(|(_, channel)| !channel.subscribers.is_empty())
            .filter(|(_, channel)| {
                patterns.is_empty()
                    || patterns.iter().any(|pattern| glob::matches(pattern, &channel.name))
            })
            .map(|(_, channel)| (Arc::clone(&channel.name), channel.subscribers.len() as u64))
            .collect()
    }
}

/// Whether a name is empty or only a tenant's prefix.
fn is_nobody(user: &str) -> bool {
    user.is_empty() || tenant::is_anybody(user)
}
