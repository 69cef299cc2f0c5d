//! Plans of calls of the HTTP API: the hub commands of a call, and the response body built from their results.

use std::sync::Arc;

use dunlin_hub::tenant;
use dunlin_protocol::json::Object;
use dunlin_protocol::pusher::{ChannelKind, event, pusher_name, write_user_id};

use super::App;
use super::call::{COUNTED_MAX, PusherError, RequestedInfo};
use crate::server_api::{ApiError, CommandOutcome, CommandResult};

/// A call in progress.
pub struct Plan {
    /// The app that called.
    pub app: Arc<App>,
    /// The shape of its answer.
    pub shape: ResponseShape,
    info: RequestedInfo,
    channels: Vec<ChannelPlan>,
    /// Whether the attributes have been requested; they follow the action of the call.
    is_counting: bool,
    /// When the call was made.
    unix_ms: u64,
}

/// The shape of the response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseShape {
    /// `{"channels":{…}}` if counts were requested, else `{}`.
    Events,
    /// `{"batch":[…]}` if counts were requested, else `{}`.
    Batch,
    /// `{"channels":{…}}` with the attributes of each.
    Channels,
    /// The attributes of one channel.
    Channel,
    /// `{"users":[…]}`.
    Users,
    /// `{}`.
    Done,
}

impl ResponseShape {
    /// Returns the call that is answered in this shape, as one word.
    pub const fn method(self) -> &'static str {
        match self {
            ResponseShape::Events => "events",
            ResponseShape::Batch => "batch_events",
            ResponseShape::Channels => "channels",
            ResponseShape::Channel => "channel",
            ResponseShape::Users => "users",
            ResponseShape::Done => "terminate_connections",
        }
    }
}

struct ChannelPlan {
    name: String,
    info: RequestedInfo,
    users: Option<u64>,
    subscriptions: Option<u64>,
    /// The last event of a cache channel, as JSON.
    cached: Option<Vec<u8>>,
}

/// An attribute of a channel that is asked of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelAttribute {
    /// The number of users.
    Users,
    /// The number of subscriptions.
    Subscriptions,
    /// The last event.
    Cached,
}

/// The next step of a plan.
pub enum PlanStep {
    /// Request the attributes of the plan.
    Count(Plan),
    /// The call is done.
    Respond {
        /// The HTTP status.
        status: u16,
        /// JSON, or a sentence for an error.
        body: Vec<u8>,
    },
}

impl Plan {
    /// Begins a call of an app at this time.
    pub fn new(app: &Arc<App>, shape: ResponseShape, info: RequestedInfo, unix_ms: u64) -> Plan {
        let app = Arc::clone(app);
        Plan { app, shape, info, channels: Vec::new(), is_counting: false, unix_ms }
    }

    /// Adds the attributes of a channel. Only presence channels have user counts, only cache channels a last event.
    pub fn count(&mut self, name: &str, info: RequestedInfo) {
        let users = info.users && ChannelKind::of(name) == ChannelKind::Presence;
        let cache = info.cache && ChannelKind::is_cache(name);
        let info = RequestedInfo { users, cache, ..info };
        let (users, subscriptions, cached) = (None, None, None);
        self.channels.push(ChannelPlan {
            name: name.to_owned(),
            info,
            users,
            subscriptions,
            cached,
        });
    }

    /// Checks that the call requests at most `COUNTED_MAX` attributes.
    pub fn check(&self) -> Result<(), PusherError> {
        match self.attributes().count() <= COUNTED_MAX {
            true => Ok(()),
            false => Err(PusherError {
                status: 400,
                why: format!("info: at most {COUNTED_MAX} attributes; ask for fewer channels"),
            }),
        }
    }

    /// Returns the attributes to request, in the order of their results.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, ChannelAttribute)> {
        self.channels.iter().flat_map(|channel| {
            let RequestedInfo { users, subscriptions, cache } = channel.info;
            let requested = [
                users.then_some(ChannelAttribute::Users),
                subscriptions.then_some(ChannelAttribute::Subscriptions),
                cache.then_some(ChannelAttribute::Cached),
            ];
            requested.into_iter().flatten().map(|attribute| (&*channel.name, attribute))
        })
    }

    /// Returns the next step, given the hub's results in the order of the commands.
    pub fn next(mut self, answers: Vec<CommandResult>) -> PlanStep {
        let mut outcomes = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer {
                Ok(CommandOutcome::Broadcast(parts)) => {
                    if let Some(error) = parts.into_iter().find_map(Result::err) {
                        return failed(&error);
                    }
                }
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return failed(&error),
            }
        }
        if self.is_counting {
            self.take_attributes(&outcomes);
            return self.respond();
        }
        match (self.shape, outcomes.pop()) {
            (ResponseShape::Channels, Some(CommandOutcome::Channels(found))) => {
                let info = RequestedInfo { subscriptions: false, ..self.info };
                for of in &found {
                    let name = pusher_name(tenant::bare(&of.name));
                    self.count(name, info);
                    if let Some(channel) =
                        self.channels.last_mut().filter(|_| self.info.subscriptions)
                    {
                        channel.subscriptions = Some(of.clients);
                    }
                }
                if let Err(refusal) = self.check() {
                    return PlanStep::Respond { status: refusal.status, body: refusal.why.into() };
                }
            }
            (ResponseShape::Users, Some(CommandOutcome::Presence(present))) => {
                let mut users: Vec<_> = present.iter().collect();
                users.sort_by(|a, b| a.user.cmp(&b.user));
                users.dedup_by(|a, b| a.user == b.user);
                let mut body = b"{\"users\":[".to_vec();
                for (at, user) in users.into_iter().enumerate() {
                    if at > 0 {
                        body.push(b',');
                    }
                    let mut object = Object::begin(&mut body);
                    write_user_id(object.key("id"), user);
                    object.end();
                }
                body.extend_from_slice(b"]}");
                return PlanStep::Respond { status: 200, body };
            }
            _ => {}
        }
        self.is_counting = true;
        let is_more = self.attributes().next().is_some();
        if is_more { PlanStep::Count(self) } else { self.respond() }
    }

    fn take_attributes(&mut self, outcomes: &[CommandOutcome]) {
        let mut outcomes = outcomes.iter();
        for channel in &mut self.channels {
            if channel.info.users
                && let Some(CommandOutcome::PresenceStats(stats)) = outcomes.next()
            {
                channel.users = Some(stats.users);
            }
            if channel.info.subscriptions
                && let Some(CommandOutcome::Channels(found)) = outcomes.next()
            {
                channel.subscriptions = Some(found.iter().map(|of| of.clients).sum());
            }
            if channel.info.cache
                && let Some(CommandOutcome::History(history)) = outcomes.next()
                && let Some(publication) = history.publications.last()
            {
                let kept_until_ms = publication.time_ms() + self.app.config.cache_ttl_ms;
                let ttl_s = kept_until_ms.saturating_sub(self.unix_ms).div_ceil(1000);
                event::write_cached(channel.cached.get_or_insert_default(), publication, ttl_s);
            }
        }
    }

    fn respond(&self) -> PlanStep {
        let mut body = Vec::new();
        let mut object = Object::begin(&mut body);
        match self.shape {
            ResponseShape::Events if self.info == RequestedInfo::NONE => {}
            ResponseShape::Events | ResponseShape::Channels => {
                let mut channels = Object::begin(object.key("channels"));
                for channel in &self.channels {
                    channel.write(channels.text_key(&channel.name), self.info);
                }
                channels.end();
            }
            ResponseShape::Batch
                if self.channels.iter().all(|channel| channel.info == RequestedInfo::NONE) => {}
            ResponseShape::Batch => {
                let list = object.key("batch");
                list.push(b'[');
                for (at, channel) in self.channels.iter().enumerate() {
                    if at > 0 {
                        list.push(b',');
                    }
                    channel.write(list, channel.info);
                }
                list.push(b']');
            }
            ResponseShape::Channel => {
                if let Some(channel) = self.channels.first() {
                    let occupied = channel.subscriptions.is_some_and(|count| count > 0);
                    object.raw("occupied", if occupied { b"true" } else { b"false" });
                    channel.write_attributes(&mut object, self.info);
                }
            }
            ResponseShape::Users | ResponseShape::Done => {}
        }
        object.end();
        PlanStep::Respond { status: 200, body }
    }
}

impl ChannelPlan {
    fn write(&self, out: &mut Vec<u8>, info: RequestedInfo) {
        let mut object = Object::begin(out);
        self.write_attributes(&mut object, info);
        object.end();
    }

    fn write_attributes(&self, object: &mut Object<'_>, info: RequestedInfo) {
        if let Some(users) = self.users.filter(|_| info.users) {
            object.integer("user_count", users);
        }
        if let Some(subscriptions) = self.subscriptions.filter(|_| info.subscriptions) {
            object.integer("subscription_count", subscriptions);
        }
        if self.info.cache {
            object.raw("cache", self.cached.as_deref().unwrap_or(b"null"));
        }
    }
}

fn failed(error: &ApiError) -> PlanStep {
    PlanStep::Respond { status: error.transport_status(), body: error.message.as_bytes().to_vec() }
}

#[cfg(test)]
mod tests {
    use dunlin_config::{Map, PusherApp, Secret};
    use dunlin_hub::{
        ChannelSummary, History, PresenceStats, Publication, PublicationParts, StreamPosition,
    };

    use super::super::Apps;
    use super::*;

    fn plan(shape: ResponseShape, info: RequestedInfo) -> Plan {
        let config =
            PusherApp { id: "3".into(), secret: Some(Secret::new("s")), ..PusherApp::default() };
        let apps: Map<PusherApp> = [("shop", config)].into_iter().collect();
        Plan::new(Apps::of(&apps).by_id("3").unwrap(), shape, info, 1_000_000)
    }

    const BOTH: RequestedInfo = RequestedInfo { users: true, subscriptions: true, cache: false };

    fn found(names: &[(&str, u64)]) -> CommandResult {
        let of = |&(name, clients): &(&str, u64)| ChannelSummary { name: name.into(), clients };
        Ok(CommandOutcome::Channels(names.iter().map(of).collect()))
    }

    fn stats(users: u64) -> CommandResult {
        Ok(CommandOutcome::PresenceStats(PresenceStats { clients: 9, users }))
    }

    fn body(next: PlanStep) -> String {
        let PlanStep::Respond { status: 200, body } = next else {
            panic!("there is more to count")
        };
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn an_event_is_published_and_then_counted() {
        let mut plan_of = plan(ResponseShape::Events, BOTH);
        plan_of.count("presence-a", BOTH);
        plan_of.count("b", BOTH);
        let PlanStep::Count(counting) =
            plan_of.next(vec![Ok(CommandOutcome::Broadcast(Vec::new()))])
        else {
            panic!()
        };
        assert_eq!(
            counting.attributes().collect::<Vec<_>>(),
            [
                ("presence-a", ChannelAttribute::Users),
                ("presence-a", ChannelAttribute::Subscriptions),
                ("b", ChannelAttribute::Subscriptions)
            ]
        );
        let answers = vec![stats(2), found(&[("c:presence-a", 3)]), found(&[])];
        assert_eq!(
            body(counting.next(answers)),
            r#"{"channels":{"presence-a":{"user_count":2,"subscription_count":3},"b":{"subscription_count":0}}}"#
        );
        assert_eq!(
            body(
                plan(ResponseShape::Events, RequestedInfo::NONE)
                    .next(vec![Ok(CommandOutcome::Done)])
            ),
            "{}"
        );
    }

    #[test]
    fn channels_are_listed_by_their_names_in_the_app() {
        let channels = found(&[("c:presence-a", 3), ("c:presence-b", 1)]);
        let PlanStep::Count(counting) =
            plan(ResponseShape::Channels, BOTH).next(vec![channels.clone()])
        else {
            panic!()
        };
        assert_eq!(
            body(counting.next(vec![stats(2), stats(1)])),
            r#"{"channels":{"presence-a":{"user_count":2,"subscription_count":3},"presence-b":{"user_count":1,"subscription_count":1}}}"#
        );
        let none = plan(ResponseShape::Channels, RequestedInfo::NONE).next(vec![channels]);
        assert_eq!(body(none), r#"{"channels":{"presence-a":{},"presence-b":{}}}"#);
        let many: Vec<(String, u64)> =
            (0..=COUNTED_MAX).map(|at| (format!("c:presence-{at}"), 1)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(name, count)| (&**name, *count)).collect();
        let refused = plan(ResponseShape::Channels, BOTH).next(vec![found(&many)]);
        assert!(matches!(refused, PlanStep::Respond { status: 400, .. }));
    }

    /// Regression test: `info=cache` was accepted and ignored.
    #[test]
    fn a_cache_channel_shows_its_last_event_and_how_long_it_is_kept() {
        let info = RequestedInfo { cache: true, ..RequestedInfo::NONE };
        let answered = |publications: Vec<Publication>| {
            let mut plan = plan(ResponseShape::Channel, info);
            plan.count("cache-a", RequestedInfo { subscriptions: true, ..info });
            let PlanStep::Count(counting) = plan.next(Vec::new()) else { panic!() };
            let position = StreamPosition::default();
            let history = Ok(CommandOutcome::History(History { publications, position }));
            body(counting.next(vec![found(&[]), history]))
        };
        assert_eq!(answered(Vec::new()), r#"{"occupied":false,"cache":null}"#);
        let last = PublicationParts {
            data: (*br#"{"a":1}"#).into(),
            tags: [("event".into(), "made".into())].into_iter().collect(),
            time_ms: 1_000_000 - 60_000,
            ..PublicationParts::default()
        };
        assert_eq!(
            answered(vec![last.into()]),
            r#"{"occupied":false,"cache":{"event":"made","data":"{\"a\":1}","ttl":1740}}"#
        );
    }

    #[test]
    fn failed_call_is_an_http_error() {
        let error: ApiError = dunlin_hub::Error::Overloaded.into();
        let next = plan(ResponseShape::Done, RequestedInfo::NONE).next(vec![Err(error.clone())]);
        assert!(matches!(next, PlanStep::Respond { status: 500, .. }));
        let parts = vec![Ok(dunlin_hub::Published::default()), Err(error)];
        let next = plan(ResponseShape::Events, RequestedInfo::NONE)
            .next(vec![Ok(CommandOutcome::Broadcast(parts))]);
        assert!(matches!(next, PlanStep::Respond { status: 500, .. }));
    }
}
