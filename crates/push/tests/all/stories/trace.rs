//! A push as a span, by a subscriber that writes down what it sees.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dunlin_push::apns::Apns;
use dunlin_push::{NotSent, Outcome, SenderConfig};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::harness::{Act, Script, Server, push};

/// A span as it was when it closed, and what happened in it.
#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    events: Vec<String>,
    closed: bool,
}

#[derive(Clone)]
struct Notebook {
    level: Level,
    spans: Arc<Mutex<Vec<Span>>>,
    entered: Arc<Mutex<Vec<u64>>>,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Notebook {
    fn new(level: Level) -> Notebook {
        Notebook { level, spans: Arc::default(), entered: Arc::default() }
    }

    fn pushes(&self) -> Vec<Span> {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|span| span.name == "push").cloned().collect()
    }
}

impl Subscriber for Notebook {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let contextual = || self.entered.lock().unwrap().last().copied();
        let parent = attributes.parent().map(Id::into_u64).or_else(contextual);
        let name = attributes.metadata().name();
        let mut spans = self.spans.lock().unwrap();
        spans.push(Span { name, parent, fields, ..Span::default() });
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        let mut spans = self.spans.lock().unwrap();
        record.record(&mut Fields(&mut spans[id.into_u64() as usize - 1].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(span) = event.parent() else { return };
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let mut text = fields.remove("message").unwrap_or_default();
        for (name, value) in fields {
            text += &format!(" {name}={value}");
        }
        self.spans.lock().unwrap()[span.into_u64() as usize - 1].events.push(text);
    }

    fn enter(&self, id: &Id) {
        self.entered.lock().unwrap().push(id.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.entered.lock().unwrap().pop();
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans.lock().unwrap()[id.into_u64() as usize - 1].closed = true;
        true
    }
}

fn named(server: &Server) -> Apns {
    let config = SenderConfig {
        name: "push.apns.shop".into(),
        connections: dunlin_push::Connections::Fixed(1),
        ..SenderConfig::default()
    };
    Apns::start_with("push.test".to_owned(), None, server.clone(), config)
}

fn server(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Server {
    let rtt = Duration::from_millis(20);
    Server::new(Script { act: Arc::new(act), rtt, ..Script::default() })
}

#[tokio::test(start_paused = true)]
async fn a_push_is_a_span_from_the_queue_to_its_end_with_all_its_attempts() {
    let notebook = Notebook::new(Level::TRACE);
    let _looking = tracing::subscriber::set_default(notebook.clone());
    let server = server(|number| match number {
        0 => Act::RefuseStream,
        1 => Act::Refuse(503, "ServiceUnavailable"),
        _ => Act::Accept,
    });
    let caller = tracing::trace_span!("caller");
    let outcome = {
        use tracing::Instrument;
        async { named(&server).send(&push(0xabc, 100)).await }.instrument(caller).await
    };
    assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
    let [span] = &notebook.pushes()[..] else { panic!() };
    assert!(span.closed);
    assert_eq!(span.parent, Some(1), "it is the child of its caller's");
    let expected = [
        ("attempts", "3"),
        ("connection", "0"),
        ("credential", "push.apns.shop"),
        ("id", "ID"),
        ("otel.kind", "client"),
        ("otel.status_code", "OK"),
        ("outcome", "accepted"),
        ("platform", "apns"),
        ("server.address", "push.test"),
        ("token", "00000000…"),
    ];
    let mut fields = span.fields.clone();
    assert!(fields.remove("queued_us").unwrap().parse::<u64>().is_ok());
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(fields, expected);
    let events: Vec<&str> =
        span.events.iter().map(|event| event.split(" took_us").next().unwrap()).collect();
    assert_eq!(
        events,
        [
            "sent attempt=1 connection=0 stream=1",
            "returned to the queue why=refused",
            "sent attempt=2 connection=0 stream=3",
            "answered status=503",
            "returned to the queue why=retry",
            "sent attempt=3 connection=0 stream=5",
            "answered status=200",
            "ended",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_push_that_fails_says_why_and_one_that_never_left_has_no_connection() {
    let notebook = Notebook::new(Level::TRACE);
    let _looking = tracing::subscriber::set_default(notebook.clone());
    let server = server(|_| Act::Refuse(410, "Unregistered"));
    let apns = named(&server);
    assert!(matches!(apns.send(&push(1, 100)).await, Outcome::Rejected(_)));
    apns.close();
    let never = apns.send(&push(2, 100)).await;
    assert_eq!(never, Outcome::NotSent(NotSent::Closed));
    let pushes = notebook.pushes();
    assert_eq!(pushes[0].fields["reason"], "Unregistered");
    assert_eq!((&*pushes[0].fields["status"], &*pushes[0].fields["attempts"]), ("410", "1"));
    // It may be refused before it is queued; then there is nothing to trace.
    if let Some(second) = pushes.get(1) {
        assert_eq!(second.fields["outcome"], "not_sent");
        assert!(!second.fields.contains_key("connection"), "{second:?}");
    }
    assert!(pushes.iter().all(|span| span.closed && span.fields["otel.status_code"] == "ERROR"));
}

#[tokio::test(start_paused = true)]
async fn nobody_who_does_not_ask_is_reported() {
    let notebook = Notebook::new(Level::DEBUG);
    let _looking = tracing::subscriber::set_default(notebook.clone());
    let server = server(|_| Act::Accept);
    assert!(matches!(named(&server).send(&push(1, 100)).await, Outcome::Accepted(_)));
    assert!(notebook.pushes().is_empty());
}
