//! One worker's hub.
#![allow(missing_docs, unused_variables, clippy::needless_pass_by_value)]

use std::io::IoSlice;
use std::sync::Arc;

use crate::*;

/// What hubs say to each other.
#[derive(Debug)]
pub struct Message(#[allow(dead_code)] u64);

/// Sessions, channels and outboxes of one worker.
pub struct Hub {
    config: HubConfig,
    encoder: Box<dyn Encode>,
    events: std::collections::VecDeque<Event>,
}

impl Hub {
    pub fn new(config: HubConfig, encoder: Box<dyn Encode>) -> Self {
        Self { config, encoder, events: Default::default() }
    }
    pub fn open_session(&mut self, now: Now, new: NewSession<'_>) -> Result<SessionId, Error> {
        Err(Error::LimitExceeded)
    }
    pub fn close_session(&mut self, now: Now, id: SessionId) {}
    pub fn disconnect_session(&mut self, now: Now, id: SessionId, code: u32, reason: &str) {}
    pub fn session(&self, id: SessionId) -> Option<SessionView<'_>> {
        None
    }
    pub fn subscriptions(&self, id: SessionId) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    pub fn is_subscribed(&self, id: SessionId, channel: &str) -> bool {
        false
    }
    pub fn client_info(&self, id: SessionId, channel: Option<&str>) -> Option<Arc<ClientInfo>> {
        None
    }
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        std::iter::empty()
    }
    pub fn sessions_of(&self, user: &str) -> impl Iterator<Item = SessionId> {
        std::iter::empty()
    }
    #[allow(clippy::too_many_arguments)]
    pub fn handle_subscribe(
        &mut self,
        now: Now,
        token: u64,
        session: SessionId,
        channel: &str,
        options: &Arc<ChannelOptions>,
        subscribe: Subscribe,
    ) {
    }
    pub fn handle_unsubscribe(
        &mut self,
        now: Now,
        session: SessionId,
        channel: &str,
        notify: Option<(u32, &str)>,
    ) -> bool {
        false
    }
    pub fn handle_publish(
        &mut self,
        now: Now,
        token: u64,
        channel: &str,
        options: &Arc<ChannelOptions>,
        publish: Publish,
    ) {
    }
    pub fn handle_history(
        &mut self,
        now: Now,
        token: u64,
        channel: &str,
        options: &Arc<ChannelOptions>,
        filter: HistoryFilter,
    ) {
    }
    pub fn handle_history_remove(&mut self, now: Now, token: u64, channel: &str) {}
    pub fn handle_presence(
        &mut self,
        now: Now,
        token: u64,
        channel: &str,
        options: &Arc<ChannelOptions>,
    ) {
    }
    pub fn handle_presence_stats(
        &mut self,
        now: Now,
        token: u64,
        channel: &str,
        options: &Arc<ChannelOptions>,
    ) {
    }
    pub fn handle_channels(&mut self, now: Now, token: u64, pattern: &str) {}
    pub fn handle_info(&mut self, now: Now, token: u64) {}
    pub fn handle_disconnect_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        disconnect: DisconnectUser,
    ) {
    }
    pub fn handle_unsubscribe_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        channel: &str,
        unsubscribe: UnsubscribeUser,
    ) {
    }
    pub fn handle_subscribe_user(
        &mut self,
        now: Now,
        token: u64,
        user: &str,
        channel: &str,
        options: &Arc<ChannelOptions>,
        subscribe: SubscribeUser,
    ) {
    }
    pub fn handle_message(&mut self, now: Now, from: u8, message: Message) {}
    pub fn handle_worker_restarted(&mut self, now: Now, worker: u8, life: u32) {}
    pub fn handle_timeout(&mut self, now: Now) {}
    pub fn poll_timeout(&self) -> Option<u64> {
        None
    }
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    pub fn poll_transmit(&mut self) -> Option<(u8, Message)> {
        None
    }
    pub fn transmit_refused(&mut self, to: u8, message: Message) {}
    pub fn poll_flush(&mut self) -> Option<Flush> {
        None
    }
    pub fn wants_flush(&self) -> bool {
        false
    }
    pub fn outbox<'a>(&'a self, id: SessionId, slices: &mut [IoSlice<'a>]) -> usize {
        0
    }
    pub fn outbox_bytes(&self, id: SessionId) -> usize {
        0
    }
    pub fn advance(&mut self, id: SessionId, bytes: usize) {}
    pub fn set_blocked(&mut self, id: SessionId, blocked: bool) {}
    pub fn push(&mut self, id: SessionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        false
    }
    pub fn send(&mut self, id: SessionId, push: &Push<'_>) -> bool {
        false
    }
    pub fn release(&mut self, id: SessionId, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        false
    }
    pub fn position(&self, channel: &str) -> Option<StreamPosition> {
        None
    }
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
