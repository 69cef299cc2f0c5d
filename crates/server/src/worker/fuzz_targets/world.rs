//! One worker in this thread, on a clock that moves when it is asked to, and the ways to talk to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::{ChannelOptions, Config, Secret, Snapshot};
use dunlin_net::{EventLoop, LoopConfig};
use serde_json::{Value, json};

use super::client::{BARRIER, Connection, Reply, connect};
use super::{NAMESPACES, Rules};
use crate::message::admin::AdminMessage;
use crate::message::bus::{Endpoint, SmallBus};
use crate::message::control::ControlMessage;
use crate::state::settings::Settings;
use crate::state::{Lifecycle, ServerState};
use crate::worker::Worker;
use crate::worker::listeners::listen;

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(20);
const KEY: &str = "the backend's own key, long enough";
const HOUR_MS: u64 = 3_600_000;

pub(super) struct World<'w> {
    state: Arc<ServerState>,
    event_loop: EventLoop<Worker<'w>>,
    worker: Worker<'w>,
    /// Of the threads that are not here.
    _control: Endpoint<ControlMessage>,
    _admin: Endpoint<AdminMessage>,
    address: SocketAddr,
    backend: TcpStream,
    now_ms: u64,
    revision: u64,
    barrier: u64,
}

/// How a client subscribes.
#[derive(Clone, Copy)]
pub(super) struct Subscribe {
    pub(super) recover: bool,
    pub(super) join_leave: bool,
}

/// Runs `story` in a world of its own.
pub(super) fn with(story: impl FnOnce(World<'_>)) {
    let listeners = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1, 128).expect("a free port");
    let address = listeners[0].local_addr().expect("its address");
    let SmallBus { mut workers, control, admin } = SmallBus::open(1).expect("descriptors");
    let mut endpoint = workers.pop().expect("one of them");
    let settings = settings(1, &[Rules::default(); NAMESPACES.len()]);
    let state = Arc::new(ServerState::new(settings, 1, [7; 16], String::new()));
    state.rollout.wake(0, 0);
    let mut event_loop = EventLoop::new(LoopConfig::default()).expect("descriptors");
    event_loop.context().set_clock(1_000);
    let mut worker =
        Worker::new(0, 0, &state, &mut endpoint, &listeners[0]).expect("a worker like any");
    worker.start(event_loop.context()).expect("a listener like any");
    state.set_lifecycle(Lifecycle::Serving);
    let backend = connect(address);
    let mut world = World {
        state: Arc::clone(&state),
        event_loop,
        worker,
        _control: control,
        _admin: admin,
        address,
        backend,
        now_ms: 1_000,
        revision: 1,
        barrier: 0,
    };
    // Before time passes: a connection that never asks is closed.
    world.publish(BARRIER, 0);
    story(world);
}

fn settings(revision: u64, rules: &[Rules]) -> Settings {
    let mut config = Config::development();
    config.client.anonymous = true;
    config.client.ping_interval_ms = HOUR_MS;
    config.client.token.hmac_secret = Some(Secret::new(KEY));
    config.limits.keep_alive_timeout_ms = HOUR_MS;
    config.limits.client_budget.commands_per_s = 0;
    config.limits.anonymous_budget.commands_per_s = 0;
    config.channel.without_namespace = ChannelOptions {
        allow_subscribe_for_client: true,
        allow_subscribe_for_anonymous: true,
        ..ChannelOptions::default()
    };
    for (name, rules) in NAMESPACES.iter().zip(rules) {
        config.channel.namespaces.insert(*name, options(*rules));
    }
    Settings::new(Arc::new(Snapshot::new(revision, config).expect("valid settings")))
}

fn options(rules: Rules) -> ChannelOptions {
    ChannelOptions {
        history_size: 8,
        history_ttl_ms: HOUR_MS,
        presence: true,
        recover: rules.has(Rules::RECOVER),
        join_leave: rules.has(Rules::JOIN_LEAVE),
        allow_subscribe_for_client: rules.has(Rules::SUBSCRIBE),
        allow_subscribe_for_anonymous: rules.has(Rules::SUBSCRIBE + 1),
        allow_publish_for_client: rules.has(Rules::PUBLISH),
        allow_publish_for_anonymous: rules.has(Rules::PUBLISH + 1),
        allow_publish_for_subscriber: rules.has(Rules::PUBLISH + 2),
        allow_history_for_client: rules.has(Rules::HISTORY),
        allow_history_for_anonymous: rules.has(Rules::HISTORY + 1),
        allow_history_for_subscriber: rules.has(Rules::HISTORY + 2),
        allow_presence_for_client: rules.has(Rules::PRESENCE),
        allow_presence_for_anonymous: rules.has(Rules::PRESENCE + 1),
        allow_presence_for_subscriber: rules.has(Rules::PRESENCE + 2),
        ..ChannelOptions::default()
    }
}

fn token(user: &str) -> String {
    if user.is_empty() {
        return String::new();
    }
    let key = jsonwebtoken::EncodingKey::from_secret(KEY.as_bytes());
    let claims = json!({"sub": user});
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).expect("a token")
}

fn from_the_beginning(recover: bool) -> Value {
    if recover { json!({"recover": true, "epoch": "", "offset": 0}) } else { json!({}) }
}

impl World<'_> {
    fn turn(&mut self) {
        self.event_loop.turn(&mut self.worker, Some(Duration::ZERO)).expect("a turn");
    }

    /// Turns until there is something.
    fn until<T>(&mut self, mut what: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(it) = what(self) {
                return it;
            }
            assert!(Instant::now() < deadline, "the worker answers");
            self.turn();
        }
    }

    pub(super) fn set_rules(&mut self, rules: &[Rules]) {
        self.revision += 1;
        self.state.publish(Arc::new(settings(self.revision, rules)));
        self.turn();
        self.until(|world| (!world.worker.clients.sweeps.is_withdrawing()).then_some(()));
    }

    /// A client that is connected; `subscribe`: to this channel too, with the connect, from the beginning or from now. `None`:
    /// it was refused. With what the subscription brought.
    pub(super) fn connect(
        &mut self,
        user: &str,
        subscribe: Option<(&str, bool)>,
    ) -> Option<(Connection, Option<Reply>)> {
        let mut request = json!({});
        if !user.is_empty() {
            request["token"] = token(user).into();
        }
        let Some((channel, recover)) = subscribe else {
            let first = json!({"id": 1, "connect": request});
            let mut connection = Connection::open(self.address, false, &first);
            self.answer(&mut connection, 1)?;
            let id = connection.command("subscribe", json!({"channel": BARRIER}));
            let reply = self.answer(&mut connection, id)?;
            assert!(reply.is_ok(), "{reply:?}");
            return Some((connection, None));
        };
        request["subs"] = json!({BARRIER: {}, channel: from_the_beginning(recover)});
        let mut connection = Connection::open(self.address, true, &request);
        let Reply(reply) = self.answer(&mut connection, 1)?;
        let subscribed = reply["connect"]["subs"].get(channel)?.clone();
        Some((connection, Some(Reply(subscribed))))
    }

    /// The reply with this id; `None`: the connection has ended before.
    fn answer(&mut self, connection: &mut Connection, id: u64) -> Option<Reply> {
        self.until(|_| {
            let reply = connection.reply(id);
            if connection.is_closed() { Some(None) } else { reply.map(Some) }
        })
    }

    /// The same for a command; `None` for a client that cannot send one.
    fn command(&mut self, to: &mut Connection, method: &str, request: Value) -> Option<Reply> {
        if to.unidirectional {
            return None;
        }
        let id = to.command(method, request);
        self.answer(to, id)
    }

    pub(super) fn subscribe(
        &mut self,
        to: &mut Connection,
        channel: &str,
        subscribe: Subscribe,
    ) -> Option<Reply> {
        let mut request = from_the_beginning(subscribe.recover);
        request["channel"] = channel.into();
        request["join_leave"] = subscribe.join_leave.into();
        self.command(to, "subscribe", request)
    }

    pub(super) fn unsubscribe(&mut self, to: &mut Connection, channel: &str) -> Option<Reply> {
        self.command(to, "unsubscribe", json!({"channel": channel}))
    }

    pub(super) fn publish_as(
        &mut self,
        to: &mut Connection,
        channel: &str,
        number: u64,
    ) -> Option<Reply> {
        self.command(to, "publish", json!({"channel": channel, "data": number}))
    }

    /// `history` or `presence`.
    pub(super) fn ask(
        &mut self,
        to: &mut Connection,
        method: &str,
        channel: &str,
    ) -> Option<Reply> {
        let limit = if method == "history" { json!(100) } else { Value::Null };
        let mut request = json!({"channel": channel});
        if !limit.is_null() {
            request["limit"] = limit;
        }
        self.command(to, method, request)
    }

    /// The answer of a long-poll from the beginning; `None`: it was refused.
    pub(super) fn poll(&mut self, user: &str, channel: &str) -> Option<String> {
        let credentials = match token(user) {
            token if token.is_empty() => token,
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let head = format!("GET /connection/poll?channel={channel}&cursor=0&timeout=0");
        let (status, body) = self.request(&head, &credentials, "");
        assert!(matches!(status, 200 | 403), "{status} {body}");
        (status == 200).then_some(body)
    }

    pub(super) fn publish(&mut self, channel: &str, number: u64) {
        self.call("publish", &json!({"channel": channel, "data": number}));
    }

    /// What the backend reads of a channel.
    pub(super) fn look_at(&mut self, channel: &str) -> String {
        let history = self.call("history", &json!({"channel": channel, "limit": 100}));
        let Value::Object(present) = self.call("presence", &json!({"channel": channel})) else {
            panic!("presence is an object")
        };
        let mut present: Vec<String> = present["result"]["presence"]
            .as_object()
            .into_iter()
            .flat_map(|of| of.keys().cloned())
            .collect();
        present.sort();
        format!("{} {present:?}", history["result"])
    }

    fn call(&mut self, method: &str, request: &Value) -> Value {
        let (status, body) = self.request(&format!("POST /api/{method}"), "", &request.to_string());
        assert!(status == 200 && !body.contains("\"error\""), "{method}: {status} {body}");
        serde_json::from_str(&body).expect("JSON of the server")
    }

    fn request(&mut self, head: &str, headers: &str, body: &str) -> (u16, String) {
        let request = format!(
            "{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.backend.write_all(request.as_bytes()).expect("an idle connection has room");
        let mut answer = Vec::new();
        self.until(|world| {
            let mut piece = [0; 4096];
            match world.backend.read(&mut piece) {
                Ok(0) => panic!("the worker has closed the backend's connection"),
                Ok(read) => answer.extend_from_slice(&piece[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let text = String::from_utf8_lossy(&answer);
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("Content-Length").then(|| value.parse::<usize>().ok())?
            });
            let status = head[9..12].parse().expect("a status");
            (body.len() >= length.unwrap_or(0)).then(|| (status, body.to_owned()))
        })
    }

    /// Turns until whatever was caused has reached its client.
    pub(super) fn settle<'c>(&mut self, clients: impl Iterator<Item = &'c mut Connection>) {
        // Joins and leaves are gathered for a moment.
        self.pass_time(200);
        self.barrier += 1;
        let barrier = self.barrier;
        self.publish(BARRIER, barrier);
        for client in clients {
            self.until(|_| client.has_passed(barrier).then_some(()));
        }
    }

    /// Turns until the worker has no more sessions than there are clients.
    pub(super) fn turn_until_gone(&mut self) {
        let before = self.worker.core.hub.stats().sessions;
        self.until(|world| (world.worker.core.hub.stats().sessions < before).then_some(()));
    }

    pub(super) fn pass_time(&mut self, ms: u64) {
        self.now_ms += ms;
        self.event_loop.context().set_clock(self.now_ms);
        for _ in 0..3 {
            self.turn();
        }
        if ms >= HOUR_MS {
            // A connection that is idle for so long is closed.
            self.backend = connect(self.address);
        }
    }
}
