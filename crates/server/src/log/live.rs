//! Live traces: what happens to one user, client, address or channel, as it happens.
//!
//! A worker asks one flag. While it is off nothing else is done; while it is on each event is compared with the traces that are
//! open, and one that fits is appended to the trace as a line of JSON. The admin thread takes the lines and writes them to
//! whoever looks. A trace that is not read fast enough loses lines, and says how many.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dunlin_hub::SessionId;
use serde_json::{Map, Value};

use super::{Entry, Fields, Kind, cut};

/// The most bytes of a trace that wait for its reader.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// The most traces at a time.
pub(crate) const TRACES_MAX: usize = 16;

/// Whom a trace is about. Each part that is set has to fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// With its tenant.
    pub(crate) user: Option<Box<str>>,
    pub(crate) client: Option<SessionId>,
    pub(crate) address: Option<IpAddr>,
    /// With its tenant.
    pub(crate) channel: Option<Box<str>>,
}

impl Subject {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Subject::default()
    }

    fn fits(&self, entry: &Entry<'_>) -> bool {
        self.user.as_deref().is_none_or(|user| user == entry.user)
            && (self.client.is_none() || self.client == entry.client)
            && (self.address.is_none() || self.address == entry.address)
            && self.channel.as_deref().is_none_or(|channel| channel == entry.channel)
    }
}

/// An open trace.
#[derive(Debug)]
pub(crate) struct LiveTrace {
    subject: Subject,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    lost: u64,
}

impl LiveTrace {
    fn append(&self, unix_ms: u64, kind: Kind, entry: &Entry<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.lines.len() >= WAITING_BYTES_MAX {
            waiting.lost += 1;
            return;
        }
        waiting.lines.extend_from_slice(json(unix_ms, kind, entry).to_string().as_bytes());
        waiting.lines.push(b'\n');
    }

    /// Takes what has happened since the last call, as lines of JSON.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { mut lines, lost } = std::mem::take(&mut *waiting);
        if lost > 0 {
            let line = serde_json::json!({ "event": "lost", "more": lost });
            lines.extend_from_slice(format!("{line}\n").as_bytes());
        }
        lines
    }
}

/// The open traces of a process.
#[derive(Debug, Default)]
pub(crate) struct LiveTraces {
    is_on: AtomicBool,
    open: Mutex<Vec<Arc<LiveTrace>>>,
}

impl LiveTraces {
    /// Whether anybody looks.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins a trace. `None`: there are [`TRACES_MAX`] already.
    pub(crate) fn open(&self, subject: Subject) -> Option<Arc<LiveTrace>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= TRACES_MAX {
            return None;
        }
        let trace = Arc::new(LiveTrace { subject, waiting: Mutex::default() });
        open.push(Arc::clone(&trace));
        self.is_on.store(true, Ordering::Relaxed);
        Some(trace)
    }

    /// Ends a trace.
    pub(crate) fn close(&self, trace: &Arc<LiveTrace>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|of| !Arc::ptr_eq(of, trace));
        self.is_on.store(!open.is_empty(), Ordering::Relaxed);
    }

    /// Appends an event to the traces that it fits.
    pub(crate) fn record(&self, unix_ms: u64, kind: Kind, entry: &Entry<'_>) {
        if !self.is_on() {
            return;
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for trace in open.iter().filter(|trace| trace.subject.fits(entry)) {
            trace.append(unix_ms, kind, entry);
        }
    }
}

/// Returns an event as the log's JSON has it.
fn json(unix_ms: u64, kind: Kind, entry: &Entry<'_>) -> Value {
    let Fields { tenant, user, channel, client, .. } = Fields::of(entry);
    let mut line = Map::new();
    line.insert("at_unix_ms".into(), unix_ms.into());
    line.insert("event".into(), kind.name().into());
    line.insert("message".into(), kind.text().into());
    let texts = [
        ("reason", cut(entry.reason)),
        ("user", user),
        ("transport", cut(entry.transport)),
        ("protocol", cut(entry.protocol)),
        ("channel", channel),
        ("namespace", cut(entry.namespace)),
        ("tenant", tenant),
        ("method", cut(entry.method)),
        ("key", cut(entry.key)),
        ("by", cut(entry.by)),
        ("origin", cut(entry.origin)),
        ("path", cut(entry.path)),
        ("listener", cut(entry.listener)),
    ];
    let own = [
        ("client", client.map(|client| client.to_string())),
        ("address", entry.address.map(|address| address.to_string())),
    ];
    let numbers = [
        ("code", entry.code.map(u64::from)),
        ("status", entry.status.map(u64::from)),
        ("bytes", entry.bytes),
        ("duration_ms", entry.duration_ms),
    ];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, Value::from(text?))));
    let own = own.into_iter().filter_map(|(name, text)| Some((name, Value::from(text?))));
    let numbers = numbers.into_iter().filter_map(|(name, of)| Some((name, Value::from(of?))));
    line.extend(numbers.chain(texts).chain(own).map(|(name, value)| (name.to_owned(), value)));
    Value::Object(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_user(user: &str) -> Subject {
        Subject { user: Some(user.into()), ..Subject::default() }
    }

    #[test]
    fn a_trace_has_the_events_of_its_subject_alone_and_none_after_its_end() {
        let traces = LiveTraces::default();
        assert!(!traces.is_on());
        let trace = traces.open(of_user("ann")).unwrap();
        for user in ["ann", "bob", ""] {
            let entry =
                Entry { user, code: Some(103), reason: "no\n\u{1b}[2J", ..Entry::default() };
            traces.record(7, Kind::CommandRefused, &entry);
        }
        let lines = String::from_utf8(trace.take()).unwrap();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.contains(r#""user":"ann""#) && lines.contains(r#""code":103"#), "{lines}");
        assert!(!lines.contains('\u{1b}'), "escapes are inert: {lines}");
        traces.close(&trace);
        assert!(!traces.is_on());
        traces.record(8, Kind::CommandRefused, &Entry { user: "ann", ..Entry::default() });
        assert!(trace.take().is_empty());
    }

    #[test]
    fn a_trace_that_nobody_reads_is_bounded_and_says_how_much_is_lost() {
        let traces = LiveTraces::default();
        let trace = traces.open(of_user("ann")).unwrap();
        let path = "x".repeat(10_000);
        let entry = Entry { user: "ann", path: &path, ..Entry::default() };
        (0..10_000).for_each(|_| traces.record(7, Kind::Command, &entry));
        let lines = trace.take();
        assert!(lines.len() < WAITING_BYTES_MAX + 1_024, "{}", lines.len());
        let text = String::from_utf8(lines).unwrap();
        assert!(text.lines().last().unwrap().contains(r#""event":"lost""#));
        let others: Vec<_> = (1..TRACES_MAX).filter_map(|_| traces.open(of_user("x"))).collect();
        assert_eq!(others.len(), TRACES_MAX - 1);
        assert!(traces.open(of_user("y")).is_none(), "traces are bounded");
    }
}
