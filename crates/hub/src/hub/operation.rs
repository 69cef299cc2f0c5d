//! Operations on channels, on the requesting worker.

use std::sync::Arc;

use super::Hub;
use super::subscribe::Recovered;
use crate::command::HistoryFilter;
use crate::config::Now;
use crate::error::Error;
use crate::event::{Event, PresenceStats};
use crate::message::{HistoryRequest, HubMessageKind, PublishRequest, ReplyContent, WaiterId};
use crate::options::{ChannelOptions, ChannelRef};
use crate::pending_requests::{Aggregate, Waiter};
use crate::publication::NewPublication;
use crate::shares::Owner;
use crate::tenant::MARK;

impl Hub {
    /// Publishes to a channel; ends with [`Event::Published`].
    pub fn handle_publish(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        publish: NewPublication,
    ) {
        self.now = now;
        let bytes_max = options.publication_bytes_max as usize;
        let checked = if bytes_max > 0 && publish.data.len() > bytes_max {
            Err(Error::PublicationTooLarge)
        } else if options.wildcard {
            Err(Error::Wildcard)
        } else if options.raw && publish.is_more_than_payload() {
            Err(Error::PayloadAlone)
        } else {
            self.check_name(channel)
        };
        if channel.starts_with(MARK) {
            let bytes = publish.data.len() as u64;
            self.count_traffic(channel, |traffic| {
                traffic.publications += 1;
                traffic.published_bytes += bytes;
            });
        }
        let sent = checked.and_then(|()| {
            let (home, channel) = self.home_of(channel);
            let options = Arc::clone(options);
            self.request(home, Waiter::Publish { token, home }, |request| {
                HubMessageKind::Publish(Box::new(PublishRequest {
                    request,
                    channel,
                    options,
                    publish,
                }))
            })
        });
        if let Err(error) = sent {
            self.events.push_back(Event::Published { token, result: Err(error) });
        }
        self.run();
    }

    /// Reads a channel's history for `owner`; ends with [`Event::History`].
    pub fn handle_history(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        filter: HistoryFilter,
        owner: Owner,
    ) {
        self.now = now;
        let checked = match options.keeps_history() {
            _ if options.wildcard => Err(Error::Wildcard),
            true => self.check_name(channel),
            false => Err(Error::HistoryOff),
        };
        let sent = checked.and_then(|()| {
            let (home, channel) = self.home_of(channel);
            let options = Arc::clone(options);
            self.request(home, Waiter::History { token, home }, |request| {
                HubMessageKind::History(Box::new(HistoryRequest {
                    request,
                    channel,
                    options,
                    filter,
                    owner,
                }))
            })
        });
        if let Err(error) = sent {
            self.events.push_back(Event::History { token, result: Err(error) });
        }
        self.run();
    }

    /// Removes a channel's history; its offsets continue. Ends with [`Event::HistoryRemoved`].
    pub fn handle_history_remove(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
    ) {
        self.now = now;
        let checked =
            if options.wildcard { Err(Error::Wildcard) } else { self.check_name(channel) };
        let sent = checked.and_then(|()| {
            let (home, channel) = self.home_of(channel);
            let namespace = Arc::clone(&options.namespace);
            self.request(home, Waiter::HistoryRemove { token, home }, |request| {
                HubMessageKind::HistoryRemove { request, channel, namespace }
            })
        });
        if let Err(error) = sent {
            self.events.push_back(Event::HistoryRemoved { token, result: Err(error) });
        }
        self.run();
    }

    /// Reads the clients in a channel; ends with [`Event::Presence`]. A result of more than about `bytes_max`
    /// bytes is [`Error::LimitExceeded`].
    pub fn handle_presence(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
        bytes_max: usize,
    ) {
        self.now = now;
        if let Err(error) = self.request_presence(token, channel, options, Some(bytes_max)) {
            self.events.push_back(Event::Presence { token, result: Err(error) });
        }
        self.run();
    }

    /// Counts the clients in a channel; ends with [`Event::PresenceStats`].
    pub fn handle_presence_stats(
        &mut self,
        now: Now,
        token: u64,
        ChannelRef { name: channel, options }: ChannelRef<'_>,
    ) {
        self.now = now;
        if let Err(error) = self.request_presence(token, channel, options, None) {
            self.events.push_back(Event::PresenceStats { token, result: Err(error) });
        }
        self.run();
    }

    fn request_presence(
        &mut self,
        token: u64,
        channel: &str,
        options: &ChannelOptions,
        bytes_max: Option<usize>,
    ) -> Result<(), Error> {
        if options.wildcard {
            return Err(Error::Wildcard);
        }
        if !options.presence {
            return Err(Error::PresenceOff);
        }
        self.check_name(channel)?;
        let (home, channel) = self.home_of(channel);
        let stats = bytes_max.is_none();
        self.request(home, Waiter::Presence { token, home, stats }, |request| {
            HubMessageKind::Presence { request, channel, bytes_max }
        })?;
        Ok(())
    }

    /// Handles a reply. A reply to a request that has ended (cancelled, timed out, of a former incarnation)
    /// is ignored.
    pub(super) fn handle_reply(&mut self, from: u8, request: WaiterId, content: ReplyContent) {
        if let Some(gather) = self.requests.gather_mut(request) {
            if !gather.waiting.remove(from) {
                return;
            }
            if let ReplyContent::Failed(error) = content {
                return self.fail_request(request, error);
            }
            gather.result.add(content);
            if gather.waiting.is_empty() {
                self.finish_gather(request);
            }
            return;
        }
        let Some(waiter) = self.requests.take(request) else { return };
        let event = match (waiter, content) {
            (Waiter::Delivery(pending), ReplyContent::Failed(error)) => {
                return self.handle_delivery(pending, Err(error));
            }
            (Waiter::Delivery(pending), content) => {
                return self.handle_delivery(pending, Ok(content));
            }
            (
                Waiter::Subscribe(pending),
                ReplyContent::Subscribed { position, recovered, publications, members, cursor },
            ) => {
                let recovered = Recovered { recovered, publications, members, cursor };
                return self.handle_subscribed(*pending, position, recovered);
            }
            (Waiter::Publish { token, .. }, ReplyContent::Published(published)) => {
                Event::Published { token, result: Ok(published) }
            }
            (Waiter::History { token, .. }, ReplyContent::History(history)) => {
                Event::History { token, result: Ok(history) }
            }
            (Waiter::Cursor { token, .. }, ReplyContent::Cursor(state)) => {
                Event::Cursor { token, result: Ok(state) }
            }
            (Waiter::HistoryRemove { token, .. }, ReplyContent::HistoryRemoved) => {
                Event::HistoryRemoved { token, result: Ok(()) }
            }
            (Waiter::Presence { token, .. }, ReplyContent::Presence(infos)) => {
                Event::Presence { token, result: Ok(infos) }
            }
            (Waiter::Presence { token, .. }, ReplyContent::PresenceStats { clients, users }) => {
                Event::PresenceStats { token, result: Ok(PresenceStats { clients, users }) }
            }
            (waiter, ReplyContent::Failed(error)) => return self.fail(waiter, error),
            (waiter, content) => {
                debug_assert!(false, "{content:?} is no answer to this request");
                return self.fail(waiter, Error::Timeout);
            }
        };
        self.events.push_back(event);
    }

    /// Ends a request without its reply. A subscription that may have reached the home worker is withdrawn
    /// there.
    pub(super) fn fail_request(&mut self, request: WaiterId, error: Error) {
        if let Some(waiter) = self.requests.take(request) {
            self.fail(waiter, error);
        }
    }

    fn fail(&mut self, waiter: Waiter, error: Error) {
        let event = match waiter {
            Waiter::Subscribe(pending) => return self.fail_subscribe(&pending, error),
            Waiter::Delivery(pending) => return self.handle_delivery(pending, Err(error)),
            Waiter::Publish { token, .. } => Event::Published { token, result: Err(error) },
            Waiter::History { token, .. } => Event::History { token, result: Err(error) },
            Waiter::Cursor { token, .. } => Event::Cursor { token, result: Err(error) },
            Waiter::HistoryRemove { token, .. } => {
                Event::HistoryRemoved { token, result: Err(error) }
            }
            Waiter::Presence { token, stats: false, .. } => {
                Event::Presence { token, result: Err(error) }
            }
            Waiter::Presence { token, stats: true, .. } => {
                Event::PresenceStats { token, result: Err(error) }
            }
            Waiter::ScatterGather(gather) => match gather.result {
                Aggregate::Channels(_) => {
                    Event::Channels { token: gather.token, result: Err(error) }
                }
                Aggregate::Info(_) => Event::Info { token: gather.token, result: Err(error) },
                Aggregate::Affected(_) => {
                    Event::Affected { token: gather.token, result: Err(error) }
                }
                Aggregate::Sent(_) => Event::Sent { token: gather.token, result: Err(error) },
            },
        };
        self.events.push_back(event);
    }

    /// A channel's home worker and the channel's name, shared.
    pub(super) fn home_of(&self, channel: &str) -> (u8, Arc<str>) {
        (self.names.home(self.names.hash(channel)), self.shared_name(channel))
    }
}
