//! HTTP/2 by the `h2` crate: each connection has as many concurrent streams as the depth.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinSet, LocalSet};

use super::connection::{Core, Resend, connect_advice};
use super::options::Depth;
use super::plan::{Live, Plan, Reporter, Shared};
use super::reader::{NO_ID, OTHER_BODY, OTHER_ID, SEARCHED_BYTES_MAX};
use crate::Error;
use crate::transport::PeerAddr;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Consecutive failed connects after which a slot stops reconnecting.
const FAILURES_MAX: u32 = 8;
const TICK: Duration = Duration::from_millis(10);
const DRAIN: Duration = Duration::from_secs(5);

/// State shared by the tasks of a thread.
struct Streams {
    core: Core,
    in_flight: u64,
    /// Whether an HTTP/2 response has arrived.
    spoken: bool,
    /// Connections that are open.
    open: u64,
    ready: usize,
    /// No connection can be opened or used; the run ends.
    hopeless: bool,
    started: bool,
}

type Cell = Rc<RefCell<Streams>>;

pub(super) fn run(
    plan: &Arc<Plan>,
    thread: u32,
    shared: &Arc<Shared>,
    reporter: &Reporter,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("cannot start a runtime", error))?;
    let connections =
        plan.connections / plan.threads + u32::from(thread < plan.connections % plan.threads);
    let cell = Rc::new(RefCell::new(Streams {
        core: Core::new(Arc::clone(plan), thread),
        in_flight: 0,
        spoken: false,
        open: 0,
        ready: 0,
        hopeless: false,
        started: false,
    }));
    LocalSet::new().block_on(&runtime, async {
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            tasks.spawn_local(connection(Rc::clone(&cell)));
        }
        watch(&cell, connections as usize, &shared.live[thread as usize], shared, reporter).await;
        tasks.abort_all();
    });
    let mut streams = cell.borrow_mut();
    let in_flight = streams.in_flight;
    let core = &mut streams.core;
    let left = core.schedule.left() + core.again.len() as u64 + in_flight;
    core.tally.ends.unanswered += left;
    if left > 0 {
        core.tally.error("not answered when the run ended", left);
    }
    if let Some(ledger) = &mut core.ledger {
        ledger.flush_if(0)?;
    }
    let began_ns = shared.start_ns().unwrap_or(0) + plan.warm_up_ns;
    let span = plan.clock.now_ns().saturating_sub(began_ns) / plan.span_ns;
    reporter.report(Some(span), &mut core.tally);
    Ok(())
}

/// Advances the phases of the run, and reports its spans.
async fn watch(cell: &Cell, connections: usize, live: &Live, shared: &Shared, reporter: &Reporter) {
    let plan = Arc::clone(&cell.borrow().core.plan);
    let mut ticks = tokio::time::interval(TICK);
    let began = std::time::Instant::now();
    let is_over = || {
        let streams = cell.borrow();
        streams.ready >= connections || streams.hopeless
    };
    while !is_over() && began.elapsed() < Duration::from_secs(10) {
        ticks.tick().await;
    }
    shared.ready(plan.clock.now_ns());
    let start_ns = loop {
        if let Some(start_ns) = shared.start_ns() {
            break start_ns;
        }
        ticks.tick().await;
    };
    let count_from_ns = start_ns + plan.warm_up_ns;
    let mut counting = false;
    let mut span = 0;
    let mut drain: Option<std::time::Instant> = None;
    cell.borrow_mut().core.schedule.start(start_ns);
    cell.borrow_mut().started = true;
    loop {
        let now_ns = plan.clock.now_ns();
        {
            let mut streams = cell.borrow_mut();
            let Streams { core, in_flight, open, hopeless, .. } = &mut *streams;
            if !counting && now_ns >= count_from_ns {
                counting = true;
                if plan.warm_up_ns > 0 {
                    reporter.report(None, &mut core.tally);
                }
                core.begin_to_count();
            }
            let until_ns = plan.duration_ns.map(|ns| count_from_ns + ns);
            let over = until_ns.is_some_and(|until_ns| now_ns >= until_ns)
                || shared.stop.load(Ordering::Relaxed);
            if counting && over && drain.is_none() {
                core.schedule.stop(until_ns.unwrap_or(now_ns).min(now_ns));
                drain = Some(std::time::Instant::now());
            }
            let index = now_ns.saturating_sub(count_from_ns) / plan.span_ns;
            if counting && index > span {
                reporter.report(Some(span), &mut core.tally);
                span = index;
            }
            let ends = &core.tally.ends;
            live.answered.store(ends.answered, Ordering::Relaxed);
            live.bad.store(ends.wrong + ends.failed + ends.uncertain, Ordering::Relaxed);
            live.open.store(*open, Ordering::Relaxed);
            let done = !core.has_work() && *in_flight == 0;
            if counting && (done || drain.is_some_and(|since| since.elapsed() > DRAIN)) {
                return;
            }
            if *hopeless {
                return;
            }
        }
        ticks.tick().await;
    }
}

/// Opens one connection, runs a task per stream, and reopens it when it ends.
async fn connection(cell: Cell) {
    let plan = Arc::clone(&cell.borrow().core.plan);
    let mut failures = 0;
    let mut was_ready = false;
    while failures < FAILURES_MAX && !cell.borrow().hopeless {
        let connect = tokio::time::timeout(
            Duration::from_nanos(plan.connect_timeout_ns),
            open(&plan, failures),
        );
        let opened = match connect.await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError {
                kind: "connecting took too long".to_owned(),
                advice: "Is the host up, and does a firewall drop the packets? --connect-timeout allows more.",
                is_final: false,
            }),
        };
        if !std::mem::replace(&mut was_ready, true) {
            cell.borrow_mut().ready += 1;
        }
        match opened {
            Ok(sender) => {
                failures = 0;
                cell.borrow_mut().core.tally.events.opened += 1;
                cell.borrow_mut().open += 1;
                let depth = match plan.depth {
                    Depth::Fixed(depth) => depth,
                    Depth::Auto => 1,
                };
                let mut streams = JoinSet::new();
                for _ in 0..depth {
                    streams.spawn_local(stream(Rc::clone(&cell), sender.clone()));
                }
                while streams.join_next().await.is_some() {}
                let mut streams = cell.borrow_mut();
                streams.open -= 1;
                if !streams.core.has_work() {
                    return;
                }
                streams.core.tally.events.closed_in_flight += 1;
            }
            Err(ConnectError { kind, advice, is_final }) => {
                failures += 1;
                let mut streams = cell.borrow_mut();
                streams.core.not_connected(&kind, advice);
                if is_final && !streams.spoken {
                    streams.hopeless = true;
                    return;
                }
            }
        }
        tokio::time::sleep(RETRY_AFTER * failures).await;
    }
    let mut streams = cell.borrow_mut();
    if streams.in_flight == 0 && streams.core.tally.events.opened == 0 {
        streams.hopeless = true;
    }
}

/// Why a connection could not be opened, with advice.
struct ConnectError {
    kind: String,
    advice: &'static str,
    /// A retry would fail in the same way.
    is_final: bool,
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> Self {
        Self {
            kind: format!("connecting failed: {error}"),
            advice: connect_advice(&error),
            is_final: false,
        }
    }
}

async fn open(plan: &Plan, failures: u32) -> Result<SendRequest<Bytes>, ConnectError> {
    match plan.resolved.of_attempt(failures) {
        PeerAddr::Network(address) => {
            let socket = tokio::net::TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            secure(plan, socket).await
        }
        PeerAddr::Unix(path) => secure(plan, tokio::net::UnixStream::connect(path).await?).await,
    }
}

async fn secure(
    plan: &Plan,
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> Result<SendRequest<Bytes>, ConnectError> {
    let Some(tls) = &plan.tls else { return handshake(socket).await };
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.config));
    let no_http2 = || ConnectError {
        kind: "the server does not speak HTTP/2".to_owned(),
        advice: "--http 1.1 does without.",
        is_final: true,
    };
    let stream = connector.connect(tls.name.clone(), socket).await.map_err(|error| {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        // The alert of a server that shares no ALPN protocol with this client (RFC 7301 §3.2).
        if let Some(rustls::Error::AlertReceived(
            rustls::AlertDescription::NoApplicationProtocol,
        )) = tls
        {
            return no_http2();
        }
        ConnectError {
            kind: format!("TLS: {error}"),
            advice: "Trust the certificate with --ca FILE, name its host with --server-name, or take any with --insecure.",
            is_final: false,
        }
    })?;
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return Err(no_http2());
    }
    handshake(stream).await
}

async fn handshake(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> Result<SendRequest<Bytes>, ConnectError> {
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .enable_push(false)
        .handshake(io)
        .await
        .map_err(|error| ConnectError {
            kind: format!("HTTP/2: {error}"),
            advice: "Does HTTP/2 without TLS listen there? --http 1.1 does without.",
            is_final: false,
        })?;
    tokio::task::spawn_local(async move {
        // Each stream sees the connection's end itself.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Sends one request after the other on a stream, until the connection or the run ends.
async fn stream(cell: Cell, mut sender: SendRequest<Bytes>) {
    let plan = Arc::clone(&cell.borrow().core.plan);
    loop {
        let Some(request) = next(&cell).await else { return };
        let timeout = Duration::from_nanos(plan.timeout_ns);
        let outcome = tokio::time::timeout(timeout, exchange(&cell, &mut sender, request)).await;
        let after = cell.borrow_mut().ended(request, outcome);
        if after == AfterResponse::No
            || (after == AfterResponse::IfReady && sender.clone().ready().await.is_err())
        {
            return;
        }
    }
}

/// Whether another request may be sent on this connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterResponse {
    Yes,
    IfReady,
    No,
}

/// Waits for the next request to be due. Returns `None` if there are no more.
async fn next(cell: &Cell) -> Option<Resend> {
    loop {
        let wait = {
            let mut streams = cell.borrow_mut();
            let Streams { core, in_flight, started, .. } = &mut *streams;
            let now_ns = core.plan.clock.now_ns();
            if *started {
                if let Some(again) = core.again.pop_front() {
                    *in_flight += 1;
                    return Some(again);
                }
                if core.schedule.available(now_ns, 1) > 0 {
                    let tag = core.schedule.take(1);
                    let due_ns = core.schedule.due_ns(tag);
                    if let Some(due_ns) = due_ns {
                        core.tally.late.saturating_record(now_ns.saturating_sub(due_ns));
                    }
                    *in_flight += 1;
                    return Some(Resend { tag, since_ns: due_ns.unwrap_or(now_ns), attempt: 1 });
                }
                if core.schedule.is_over() && *in_flight == 0 {
                    return None;
                }
            }
            let due_ns = core.schedule.next_due_ns().unwrap_or(now_ns + TICK.as_nanos() as u64);
            Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(TICK)
        };
        tokio::time::sleep(wait).await;
    }
}

async fn exchange(
    cell: &Cell,
    sender: &mut SendRequest<Bytes>,
    request: Resend,
) -> Result<(), h2::Error> {
    let mut ready = sender.clone().ready().await?;
    let (head, body) = cell.borrow_mut().request(request.tag);
    let (response, mut upload) = ready.send_request(head, body.is_none())?;
    if let Some(body) = body {
        // h2 buffers what exceeds the stream's window: a megabyte here, as large as the server chooses there.
        upload.send_data(body, true)?;
    }
    let response = response.await?;
    let (head, mut stream) = response.into_parts();
    let first_byte_ns = cell.borrow().core.plan.clock.now_ns();
    let mut body = Vec::new();
    let mut bytes = 0;
    let searched = cell.borrow().core.plan.checks.body.is_some();
    while let Some(data) = stream.data().await {
        let data = data?;
        bytes += data.len();
        if searched {
            let room = SEARCHED_BYTES_MAX.saturating_sub(body.len());
            body.extend_from_slice(&data[..data.len().min(room)]);
        }
        stream.flow_control().release_capacity(data.len())?;
    }
    let mut streams = cell.borrow_mut();
    streams.core.tally.read_bytes += bytes as u64;
    streams.answered(request, first_byte_ns, &head, &body);
    Ok(())
}

impl Streams {
    /// Decides what to do with a request, answered or not.
    fn ended(
        &mut self,
        request: Resend,
        outcome: Result<Result<(), h2::Error>, tokio::time::error::Elapsed>,
    ) -> AfterResponse {
        let Resend { tag, attempt, .. } = request;
        self.in_flight -= 1;
        let core = &mut self.core;
        match outcome {
            Ok(Ok(())) => AfterResponse::Yes,
            // The server's first bytes were no frame: a retry would fail in the same way.
            Ok(Err(error)) if error.is_library() && !self.spoken => {
                let advice = "Does HTTP/2 without TLS listen there? --http 1.1 does without.";
                core.fail(tag, attempt, "the answer is not HTTP/2", advice);
                self.hopeless = true;
                AfterResponse::No
            }
            Ok(Err(error)) => {
                let number = core.schedule.number(tag);
                let idempotent = core.plan.requests.get(number).kind.is_idempotent();
                // RFC 9113 §8.7: a stream that was refused, or that is beyond the last of a GOAWAY, was not processed.
                let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM)
                    || (error.is_go_away() && error.is_remote());
                let kind = format!("HTTP/2: {error}");
                let advice = "Look at the server's log; --attempts allows more, --idempotent sends what is no GET again.";
                match refused || idempotent {
                    true if attempt < core.plan.attempts_max => {
                        core.tally.ends.resent += 1;
                        core.again.push_back(Resend { attempt: attempt + 1, ..request });
                    }
                    true => core.fail(tag, attempt, &kind, advice),
                    false => core.doubt(tag, attempt, &kind, advice),
                }
                if refused { AfterResponse::IfReady } else { AfterResponse::No }
            }
            Err(_) => {
                core.tally.events.timed_out += 1;
                let advice = "Look why the server is silent, or give it more than --timeout.";
                core.fail(tag, attempt, "no answer in time", advice);
                AfterResponse::Yes
            }
        }
    }

    fn request(&mut self, tag: u64) -> (Request<()>, Option<Bytes>) {
        let core = &mut self.core;
        let number = core.schedule.number(tag);
        let plan = Arc::clone(&core.plan);
        let spec = plan.requests.get(number);
        let mut text = |template: &super::template::Template| {
            core.out.clear();
            template.render(number, &mut core.out);
            String::from_utf8_lossy(&core.out).into_owned()
        };
        let mut request = Request::new(());
        *request.version_mut() = Version::HTTP_2;
        *request.method_mut() = Method::from_bytes(spec.method.as_bytes()).unwrap_or_default();
        let mut authority = plan.address.authority.clone();
        let mut headers = Vec::new();
        for (name, value) in &spec.headers {
            let value = text(value);
            match name.as_str() {
                "Host" => authority = value,
                // RFC 9113 §8.2.2: connection-specific header fields are not allowed.
                name if name.eq_ignore_ascii_case("connection") => {}
                name => headers.push((name, value)),
            }
        }
        let scheme = if plan.address.tls { "https" } else { "http" };
        let uri = format!("{scheme}://{authority}{}", text(&spec.target));
        *request.uri_mut() = uri.parse::<Uri>().unwrap_or_default();
        for (name, value) in headers {
            // They were validated with the command line; a rendered value cannot contain a line break.
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value))
            {
                request.headers_mut().append(name, value);
            }
        }
        let body = spec.body.as_ref().map(|template| {
            core.body.clear();
            template.render(number, &mut core.body);
            Bytes::copy_from_slice(&core.body)
        });
        core.tally.written_bytes += body.as_ref().map_or(0, |body| body.len() as u64);
        (request, body)
    }

    fn answered(
        &mut self,
        request: Resend,
        first_byte_ns: u64,
        head: &http::response::Parts,
        body: &[u8],
    ) {
        self.spoken = true;
        let (Resend { tag, since_ns, attempt }, core) = (request, &mut self.core);
        if tag < core.counted_from {
            return;
        }
        let now_ns = core.plan.clock.now_ns();
        let number = core.schedule.number(tag);
        let status = head.status.as_u16();
        let tally = &mut *core.tally;
        tally.ends.answered += 1;
        tally.last_answer_ns = now_ns;
        tally.statuses[usize::from(status) % 600] += 1;
        let latency_ns = now_ns.saturating_sub(since_ns);
        tally.latency.saturating_record(latency_ns);
        tally.first_byte.saturating_record(first_byte_ns.saturating_sub(since_ns));
        // Streams do not wait for each other.
        tally.service.saturating_record(latency_ns);
        let header = |name: &Option<String>| {
            name.as_ref().and_then(|name| head.headers.get(name.as_str())?.to_str().ok())
        };
        let checks = &core.plan.checks;
        let id = header(&checks.id);
        let wrong = if checks.id.is_some() && id.is_none() {
            Some(&NO_ID)
        } else if checks.id.is_some() && id != Some(number.to_string().as_str()) {
            Some(&OTHER_ID)
        } else if checks.body.as_ref().is_some_and(|finder| finder.find(body).is_none()) {
            Some(&OTHER_BODY)
        } else {
            None
        };
        let wrong =
            wrong.map(|wrong| (wrong.kind.to_owned(), wrong.advice.to_owned())).or_else(|| {
                (!checks.is_status_right(status)).then(|| {
                    let advice = format!(
                        "Look at the server's log; --expect-status {status} takes it for right."
                    );
                    (format!("status {status}"), advice)
                })
            });
        if let Some((kind, advice)) = wrong {
            tally.ends.wrong += 1;
            tally.error(&kind, 1);
            let host = &core.plan.address.authority;
            tally.sample(&kind, || format!("request {number} to {host}: {kind}. {advice}"));
        }
        if let Some(ledger) = &mut core.ledger {
            let served = header(&checks.served).unwrap_or_default();
            ledger.note(number, attempt, "answered", status, served.as_bytes());
        }
    }
}
