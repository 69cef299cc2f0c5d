//! Google's and the browsers' services, played by the `h2` crate's server, and our senders against them.
#![allow(clippy::unwrap_used, reason = "a peer that does not play its part fails the test")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dunlin_push::fcm::{self, Fcm, Recipient, ServiceAccount};
use dunlin_push::web_push::{Options, Push, Subscription, Urgency, Vapid, WebPush, WebPushConfig};
use dunlin_push::{Connect, Connecting, Connections, Io, NotSent, Outcome, SenderConfig, Stage};
use serde_json::{Map, json};

/// What a test waits for at most before it fails. No test passes by waiting.
const TIMEOUT: Duration = Duration::from_secs(20);
const ACCOUNT: &str = include_str!("../data/service-account.json");

/// A request as a service sees it, and its answer.
struct Seen {
    path: String,
    authorization: String,
    headers: http::HeaderMap,
    body: Vec<u8>,
}

type CannedResponse = (u16, &'static [(&'static str, &'static str)], String);

/// A service that answers by a function; each connection is a pipe in memory.
#[derive(Clone)]
struct Play(Arc<dyn Fn(&Seen) -> CannedResponse + Send + Sync>);

impl Play {
    fn new(answer: impl Fn(&Seen) -> CannedResponse + Send + Sync + 'static) -> Play {
        Play(Arc::new(answer))
    }

    async fn serve(self, stream: tokio::io::DuplexStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let play = self.clone();
            tokio::spawn(async move {
                let (head, mut stream) = request.into_parts();
                let mut body = Vec::new();
                while let Some(piece) = stream.data().await {
                    let piece = piece.unwrap();
                    stream.flow_control().release_capacity(piece.len()).unwrap();
                    body.extend_from_slice(&piece);
                }
                let text = |name: &str| {
                    head.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned()
                };
                let seen = Seen {
                    path: head.uri.path_and_query().unwrap().to_string(),
                    authorization: text("authorization"),
                    headers: head.headers.clone(),
                    body,
                };
                let (status, headers, body) = (play.0)(&seen);
                let mut response = http::Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
                stream.send_data(Bytes::from(body), true).unwrap();
            });
        }
    }
}

impl Connect for Play {
    fn connect(&self, _: Stage) -> Connecting<'_> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(self.clone().serve(theirs));
            Ok(Box::new(ours) as Io)
        })
    }
}

fn scenario<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, story).await.expect("in time") })
}

fn config() -> SenderConfig {
    SenderConfig { connections: Connections::Fixed(1), ..SenderConfig::default() }
}

/// A token server that hands out token-1, token-2, ...
fn token_server(asked: &Arc<Mutex<u32>>) -> Play {
    let asked = Arc::clone(asked);
    Play::new(move |seen| {
        assert_eq!(seen.path, "/token");
        let body = String::from_utf8(seen.body.clone()).unwrap();
        assert!(body.starts_with(
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=ey"
        ));
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let n = *asked;
        (
            200,
            &[],
            format!(r#"{{"access_token":"token-{n}","expires_in":3599,"token_type":"Bearer"}}"#),
        )
    })
}

fn message() -> Map<String, serde_json::Value> {
    serde_json::from_value(json!({ "notification": { "title": "Hi" } })).unwrap()
}

#[test]
fn fcm_is_sent_to_with_a_token_fetched_once_and_again_when_it_is_spent() {
    let asked = Arc::new(Mutex::new(0));
    let fcm = Play::new(|seen| {
        assert_eq!(seen.path, "/v1/projects/demo-1/messages:send");
        let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
        let error = |code: u16, status: &str, reason: &str| {
            let kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError";
            let details = json!([{ "@type": kind, "errorCode": reason }]);
            json!({ "error": { "code": code, "status": status, "details": details } }).to_string()
        };
        match (body["message"]["token"].as_str().unwrap(), seen.authorization.as_str()) {
            ("gone", _) => (404, &[], error(404, "NOT_FOUND", "UNREGISTERED")),
            ("foreign", _) => (403, &[], error(403, "PERMISSION_DENIED", "SENDER_ID_MISMATCH")),
            ("late", "Bearer token-1") => (
                401,
                &[],
                json!({ "error": { "code": 401, "status": "UNAUTHENTICATED" } }).to_string(),
            ),
            (token, _) => (
                200,
                &[],
                json!({ "name": format!("projects/demo-1/messages/{token}") }).to_string(),
            ),
        }
    });
    scenario(async {
        let account = ServiceAccount::from_json(ACCOUNT).unwrap();
        let sender = Fcm::start_with(account, fcm, token_server(&asked), config());
        let mut ends = Vec::new();
        for token in ["a", "gone", "foreign", "late", "b"] {
            let outcome =
                sender.send(&fcm::Push::new(Recipient::Token(token), &message(), TIMEOUT)).await;
            ends.push(match outcome {
                Outcome::Accepted(accepted) => accepted.id,
                Outcome::Rejected(rejected) => format!("{} {}", rejected.status, rejected.reason),
                other => other.to_string(),
            });
        }
        let expected = [
            "projects/demo-1/messages/a",
            "404 UNREGISTERED",
            "403 SENDER_ID_MISMATCH",
            "projects/demo-1/messages/late",
            "projects/demo-1/messages/b",
        ];
        assert_eq!(ends, expected);
        assert_eq!(*asked.lock().unwrap(), 2);
        let invalid = sender.send(&fcm::Push::new(Recipient::Token(""), &message(), TIMEOUT)).await;
        assert!(matches!(invalid, Outcome::NotSent(NotSent::Invalid(_))));
    });
}

#[test]
fn a_service_account_that_is_refused_ends_its_messages_with_googles_reason() {
    let tokens = Play::new(|_| {
        let body = r#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#;
        (400, &[], body.to_owned())
    });
    let fcm = Play::new(|_| panic!("nothing is sent without a token"));
    scenario(async {
        let account = ServiceAccount::from_json(ACCOUNT).unwrap();
        let sender = Fcm::start_with(account, fcm, tokens, config());
        let outcome =
            sender.send(&fcm::Push::new(Recipient::Topic("news"), &message(), TIMEOUT)).await;
        let Outcome::NotSent(NotSent::Credential(why)) = outcome else { panic!("{outcome}") };
        assert!(why.contains("invalid_grant"), "{why}");
    });
}

/// A token server that is never reached.
struct Nowhere;

impl Connect for Nowhere {
    fn connect(&self, _: Stage) -> Connecting<'_> {
        Box::pin(async { Err("oauth2.test cannot be looked up".to_owned().into()) })
    }
}

#[test]
fn token_server_that_cannot_be_reached_is_the_reason_and_not_a_slow_queue() {
    let fcm = Play::new(|_| panic!("nothing is sent without a token"));
    scenario(async {
        let account = ServiceAccount::from_json(ACCOUNT).unwrap();
        let sender = Fcm::start_with(account, fcm, Nowhere, config());
        let (to, message) = (Recipient::Token("a"), message());
        let outcome = sender.send(&fcm::Push::new(to, &message, Duration::from_secs(1))).await;
        let Outcome::NotSent(NotSent::Connect(why)) = outcome else { panic!("{outcome}") };
        assert!(why.contains("oauth2.test cannot be looked up"), "{why}");
        assert!(sender.metrics().connect_error.is_some());
    });
}

#[test]
fn token_server_that_is_busy_is_asked_again_when_it_says() {
    let asked = Arc::new(Mutex::new(0));
    let log = Arc::clone(&asked);
    let tokens = Play::new(move |_| {
        let mut asked = log.lock().unwrap();
        *asked += 1;
        match *asked {
            1 => (429, &[("retry-after", "1")], r#"{"error":"rate_limit_exceeded"}"#.to_owned()),
            _ => (200, &[], r#"{"access_token":"token","expires_in":3599}"#.to_owned()),
        }
    });
    let fcm = Play::new(|_| (200, &[], r#"{"name":"1"}"#.to_owned()));
    scenario(async {
        let account = ServiceAccount::from_json(ACCOUNT).unwrap();
        let sender = Fcm::start_with(account, fcm, tokens, config());
        let (to, message) = (Recipient::Token("a"), message());
        let outcome = sender.send(&fcm::Push::new(to, &message, TIMEOUT)).await;
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
        assert_eq!(*asked.lock().unwrap(), 2);
    });
}

/// A service whose first connection ends when it has taken a request.
struct CutFirst(AtomicBool, Play);

impl Connect for CutFirst {
    fn connect(&self, stage: Stage) -> Connecting<'_> {
        if self.0.swap(true, Relaxed) {
            return self.1.connect(stage);
        }
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(theirs).await.unwrap();
                let (request, _respond) = connection.accept().await.unwrap().unwrap();
                let mut body = request.into_body();
                let whole = async { while body.data().await.is_some() {} };
                tokio::select! {
                    () = whole => {}
                    _ = std::future::poll_fn(|cx| connection.poll_closed(cx)) => {}
                }
            });
            Ok(Box::new(ours) as Io)
        })
    }
}

#[test]
fn uncertain_push_is_resent_over_fcm_and_web_push_too() {
    scenario(async {
        for resend_uncertain in [false, true] {
            let is_right = |outcome: &Outcome| match outcome {
                Outcome::Accepted(accepted) => resend_uncertain && accepted.possible_duplicate,
                Outcome::Uncertain(_) => !resend_uncertain,
                _ => false,
            };
            let service =
                || CutFirst(AtomicBool::new(false), Play::new(|_| (201, &[], String::new())));
            let google = CutFirst(
                AtomicBool::new(false),
                Play::new(|_| (200, &[], r#"{"name":"1"}"#.to_owned())),
            );
            let asked = Arc::new(Mutex::new(0));
            let account = ServiceAccount::from_json(ACCOUNT).unwrap();
            let sender = Fcm::start_with(account, google, token_server(&asked), config());
            let (to, message) = (Recipient::Token("a"), message());
            let push = fcm::Push { to, message: &message, timeout: TIMEOUT, resend_uncertain };
            let outcome = sender.send(&push).await;
            assert!(is_right(&outcome), "{outcome}");

            let key = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
            let vapid = Vapid::new(key, "mailto:a@b.example").unwrap();
            let how = WebPushConfig { sender: config(), ..WebPushConfig::default() };
            let sender =
                WebPush::with_dial(
                    vapid,
                    how,
                    move |_| Ok(Box::new(service()) as Box<dyn Connect>),
                );
            let subscription = subscription("https://web.push.apple.com/x");
            let options = Options::new(60, Urgency::High);
            let outcome = sender
                .send(&Push {
                    subscription: &subscription,
                    message: b"hello",
                    options: &options,
                    timeout: TIMEOUT,
                    resend_uncertain,
                })
                .await;
            assert!(is_right(&outcome), "{outcome}");
        }
    });
}

fn subscription(endpoint: &str) -> Subscription {
    let p256dh =
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    Subscription::new(endpoint.to_owned(), p256dh, "BTBZMqHH6r4Tts7J_aSIgg").unwrap()
}

#[test]
fn each_push_service_has_connections_of_its_own_and_strangers_are_not_posted_to() {
    let dialed = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&dialed);
    let service = Play::new(|seen| {
        assert!(seen.authorization.starts_with("vapid t="), "{}", seen.authorization);
        assert_eq!(seen.headers["content-encoding"], "aes128gcm");
        assert_eq!(
            (&seen.headers["ttl"], &seen.headers["urgency"]),
            (&"60".parse().unwrap(), &"high".parse().unwrap())
        );
        assert_eq!(seen.body.len(), 86 + 5 + 1 + 16);
        match seen.path.as_str() {
            "/gone" => (410, &[], String::new()),
            "/bad" => (403, &[], "wrong key".to_owned()),
            _ => (201, &[("location", "https://push.example/m/1")], String::new()),
        }
    });
    let vapid =
        Vapid::new("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw", "mailto:a@b.example").unwrap();
    let config = WebPushConfig { sender: config(), ..WebPushConfig::default() };
    scenario(async {
        let sender = WebPush::with_dial(vapid, config, move |origin| {
            log.lock().unwrap().push(origin.to_owned());
            Ok(Box::new(service.clone()) as Box<dyn Connect>)
        });
        let options = Options::new(60, Urgency::High);
        let send = async |endpoint: &str| {
            let subscription = subscription(endpoint);
            let (message, options) = (&b"hello"[..], &options);
            let (subscription, timeout, resend_uncertain) = (&subscription, TIMEOUT, false);
            let push = Push { subscription, message, options, timeout, resend_uncertain };
            match sender.send(&push).await {
                Outcome::Accepted(accepted) => accepted.id,
                Outcome::Rejected(rejected) => {
                    let said = rejected.advice.map(|said| format!(": {said}")).unwrap_or_default();
                    format!("{} {}{said}", rejected.status, rejected.reason)
                }
                other => other.to_string(),
            }
        };
        let mozilla = "https://updates.push.services.mozilla.com";
        assert_eq!(send(&format!("{mozilla}/ok")).await, "https://push.example/m/1");
        assert_eq!(send(&format!("{mozilla}/gone")).await, "410 Gone");
        assert_eq!(send("https://web.push.apple.com/bad").await, "403 Forbidden: wrong key");
        assert!(send("https://localhost/admin").await.contains("no known push service"));
        assert!(
            send("https://evil.example/.push.apple.com").await.contains("no known push service")
        );
        assert_eq!(*dialed.lock().unwrap(), [mozilla, "https://web.push.apple.com"]);
        assert_eq!(sender.metrics().len(), 2);
    });
}
