//! One run: starts the threads, watches them and adds up their spans.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use memchr::memmem::Finder;

use super::address::Address;
use super::files::HdrLog;
use super::options::Http;
use super::plan::{Checks, Plan, Reporter, Shared, Span};
use super::report::{HttpReport, Memory, ServerShare, TimelineSpan, quantiles, steps};
use super::request::{RequestOptions, RequestSpec, Requests};
use super::source::Source;
use super::tally::Tally;
use super::view::{RunProgress, View};
use super::worker::Worker;
use crate::clock::Percentiles;
use crate::host::Host;
use crate::{Clock, Context, Error, Process, say};

/// The timeline has about this many spans; a long run has more, of one second each, of which the last [`SPANS_MAX`] are
/// kept. So memory does not grow with the length of a run.
const SPANS: u32 = 100;
const SPAN_MIN: Duration = Duration::from_millis(50);
const SPAN_MAX: Duration = Duration::from_secs(1);
const SPANS_MAX: u32 = 3_600;
/// Assumed requests per second, to estimate the length of a run that is limited by their number only.
const RATE_GUESSED: f64 = 100_000.0;
/// Capacity of the channel of spans to the observer.
const SPANS_WAITING_MAX: usize = 256;
const LOOK_EVERY: Duration = Duration::from_millis(120);

pub(super) fn run(options: &Http) -> Result<HttpReport, Error> {
    crate::system::descriptors_per_thread();
    super::interrupt::listen();
    let plan = Arc::new(plan(options)?);
    let process = options.server_pid.map(Process::running);
    let mut watch = Watch::new(&plan, options, process.as_ref())?;

    let shared = Arc::new(Shared::new(plan.threads));
    let (spans, arrived) = sync_channel::<Span>(SPANS_WAITING_MAX);
    let mut threads: Vec<JoinHandle<Result<(), Error>>> = Vec::new();
    let mut empties: Vec<Sender<Box<Tally>>> = Vec::new();
    for thread in 0..plan.threads {
        let (back, empty) = channel();
        empties.push(back);
        let reporter = Reporter { spans: spans.clone(), empty };
        let (plan, shared) = (Arc::clone(&plan), Arc::clone(&shared));
        let http2 = options.is_http2();
        threads.push(std::thread::spawn(move || {
            crate::system::pin(&plan.cores).map_err(|error| {
                Error::io(format!("cannot run on cores {:?}", plan.cores), error)
            })?;
            if http2 {
                super::h2::run(&plan, thread, &shared, &reporter)
            } else {
                Worker::new(plan, thread, shared, reporter)?.run()
            }
        }));
    }
    drop(spans);

    let mut returned = 0;
    loop {
        match arrived.recv_timeout(LOOK_EVERY) {
            Ok(span) => {
                let tally = watch.add(span)?;
                // The thread may have ended already.
                let _ = empties[returned % empties.len()].send(tally);
                returned += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        watch.look(&shared, process.as_ref());
        if super::interrupt::is_asked() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        if threads.iter().any(JoinHandle::is_finished) {
            // If one thread fails, the run fails.
            let failed = threads.iter().position(JoinHandle::is_finished);
            if let Some(index) = failed
                && threads.len() > 1
            {
                let outcome = threads.swap_remove(index).join();
                let outcome =
                    outcome.map_err(|_| Error::new("a thread of the generator panicked"))?;
                if outcome.is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                    outcome?;
                }
            }
        }
    }
    for thread in threads {
        thread.join().map_err(|_| Error::new("a thread of the generator panicked"))??;
    }
    watch.finish(&shared, process.as_ref(), options)
}

fn plan(options: &Http) -> Result<Plan, Error> {
    let address = Address::parse(&options.url)?;
    let (specs, literal) = specs(options, &address)?;
    let id_header = options.wants_id().then_some(options.id_header.as_str());
    let dress = RequestOptions {
        id_header,
        templates: !options.no_templates && !literal,
        idempotent: options.idempotent,
    };
    let requests = Requests::new(&specs, &address, dress)?;
    let pipelined = options.pipeline != super::options::Depth::Fixed(1);
    if let Some(request) = requests.not_idempotent().filter(|_| pipelined && !options.is_http2()) {
        return Err(Error::new(format!(
            "{} is not pipelined, for a server that closes may have done it and nobody knows: say --pipeline 1, or \
             --idempotent if it may be done twice, or give each an Idempotency-Key header",
            request.method
        )));
    }
    let tls = super::tls::client(options, &address)?;
    let resolved = address.resolve(options.unix_socket.as_deref(), options.connect_timeout)?;
    let sending = options.sending_time();
    let guessed = options.requests.unwrap_or(0) as f64 / options.rate.unwrap_or(RATE_GUESSED);
    let expected = sending.unwrap_or(Duration::from_secs_f64(guessed.clamp(5.0, 1e6)));
    let span = (expected / SPANS).clamp(SPAN_MIN, SPAN_MAX.max(expected / SPANS_MAX));
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
    let ledger = options
        .ledger
        .as_deref()
        .map(|path| fs::File::create(path).context(format!("cannot write {}", path.display())))
        .transpose()?;
    Ok(Plan {
        url: options.url.clone(),
        address,
        resolved,
        tls,
        requests,
        checks: Checks {
            statuses: options.expect_status.clone(),
            body: options.expect_body.as_deref().map(|text| Finder::new(text).into_owned()),
            id: options.check_id.then(|| options.id_header.clone()),
            served: options.ledger.is_some().then(|| options.served_header.clone()),
        },
        connections: options.connections,
        threads: options.threads,
        depth: options.pipeline,
        timeout_ns: ns(options.timeout),
        connect_timeout_ns: ns(options.connect_timeout),
        attempts_max: options.attempts,
        rate: options.rate,
        count: options.requests,
        duration_ns: sending.map(ns),
        warm_up_ns: ns(options.warm_up),
        span_ns: ns(span),
        cores: options.core.clone(),
        clock: Clock::new(),
        ledger: ledger.map(Arc::new),
    })
}

/// Returns the requests, and whether their braces are literal.
fn specs(options: &Http, address: &Address) -> Result<(Vec<RequestSpec>, bool), Error> {
    if let Some(path) = &options.from {
        let source = Source::read(path, address)?;
        if source.elsewhere > 0 {
            say(format!(
                "{}: {} requests to other hosts are left out",
                path.display(),
                source.elsewhere
            ));
        }
        let mut specs = source.specs;
        for spec in &mut specs {
            spec.headers.extend(options.header.iter().cloned());
        }
        return Ok((specs, source.literal));
    }
    let body = match &options.body_file {
        Some(path) => {
            Some(fs::read_to_string(path).context(format!("cannot read {}", path.display()))?)
        }
        None => options.body.clone(),
    };
    let method = match (&options.method, &body) {
        (Some(method), _) => method.clone(),
        (None, Some(_)) => "POST".to_owned(),
        (None, None) => "GET".to_owned(),
    };
    let spec = RequestSpec {
        method,
        target: address.target.clone(),
        headers: options.header.clone(),
        body,
    };
    Ok((vec![spec], false))
}

/// The observer of the threads: adds up their spans and shows progress.
struct Watch {
    plan: Arc<Plan>,
    total: Tally,
    timeline: Vec<TimelineSpan>,
    /// Spans from `first` on that still lack counts of some thread, each with the number of threads that reported.
    waiting: Vec<(Box<Tally>, u32)>,
    first: u64,
    hdr_log: Option<HdrLog>,
    view: View,
    memory: Memory,
    /// CPU time of the generator and of the server when counting began.
    cpu_before: (u64, Option<u64>),
}

impl Watch {
    fn new(plan: &Arc<Plan>, options: &Http, process: Option<&Process>) -> Result<Self, Error> {
        let goal = match (plan.count, plan.duration_ns) {
            (Some(count), _) => format!("{} requests", super::summary::count(count as f64)),
            (None, Some(ns)) => format!("{:.0} s", ns as f64 / 1e9),
            (None, None) => String::new(),
        };
        let title = format!(
            "{}  {} connection{}, {} in flight on each{}",
            plan.url,
            plan.connections,
            if plan.connections == 1 { "" } else { "s" },
            plan.depth,
            plan.rate.map_or(String::new(), |rate| format!(
                ", {} requests a second by the schedule",
                super::summary::count(rate)
            ))
        );
        Ok(Self {
            plan: Arc::clone(plan),
            total: Tally::new(),
            timeline: Vec::new(),
            waiting: Vec::new(),
            first: 0,
            hdr_log: options.hdr_log.as_deref().map(HdrLog::create).transpose()?,
            view: View::new(&title, goal),
            memory: Memory::default(),
            cpu_before: (generator_cpu_ns(), process.map(Process::cpu_ns)),
        })
    }

    /// Adds a span. Returns its tally, emptied.
    fn add(&mut self, span: Span) -> Result<Box<Tally>, Error> {
        let Span { index, mut tally } = span;
        let Some(index) = index else {
            tally.clear();
            return Ok(tally);
        };
        self.total.add(&tally);
        let at = index.saturating_sub(self.first) as usize;
        while self.waiting.len() <= at {
            self.waiting.push((Box::new(Tally::new()), 0));
        }
        let (sum, threads) = &mut self.waiting[at];
        sum.add(&tally);
        *threads += 1;
        // Threads report in order, so a span that a later one overtook is complete.
        let complete = self.waiting.iter().position(|(_, threads)| *threads < self.plan.threads);
        let complete = complete.unwrap_or(self.waiting.len());
        // The last span stays open until the threads end. Threads skip spans in which they slept, so a backlog of 64 is
        // closed.
        let overtaken = self.waiting.len().saturating_sub(64);
        self.close(complete.max(overtaken).min(self.waiting.len().saturating_sub(1)))?;
        tally.clear();
        Ok(tally)
    }

    /// Writes the first `count` of the waiting spans into the timeline.
    fn close(&mut self, count: usize) -> Result<(), Error> {
        for (tally, _) in self.waiting.drain(..count) {
            let span = Duration::from_nanos(self.plan.span_ns);
            let begin = span * self.first as u32;
            self.first += 1;
            let moment = TimelineSpan::of(&tally, (begin + span).as_secs_f64(), span.as_secs_f64());
            self.timeline.push(TimelineSpan { resident_bytes: resident_bytes(), ..moment });
            if let Some(log) = &mut self.hdr_log {
                log.span(&tally, begin, span)?;
            }
        }
        Ok(())
    }

    fn look(&mut self, shared: &Shared, process: Option<&Process>) {
        let now_ns = self.plan.clock.now_ns();
        let count_from_ns = shared.start_ns().map(|start_ns| start_ns + self.plan.warm_up_ns);
        let warming_up = count_from_ns.is_none_or(|from_ns| now_ns < from_ns);
        if warming_up {
            self.cpu_before = (generator_cpu_ns(), process.map(Process::cpu_ns));
        }
        let Some(count_from_ns) = count_from_ns else { return };
        if !warming_up {
            let resident = resident_bytes();
            if self.memory.first_bytes == 0 && !self.total.latency.is_empty() {
                self.memory.first_bytes = resident;
            }
            self.memory.last_bytes = resident;
            self.memory.most_bytes = self.memory.most_bytes.max(resident);
        }
        let seconds = now_ns.saturating_sub(count_from_ns) as f64 / 1e9;
        let sum = |of: fn(&super::plan::Live) -> &std::sync::atomic::AtomicU64| -> u64 {
            shared.live.iter().map(|live| of(live).load(Ordering::Relaxed)).sum()
        };
        let ends = self.total.ends;
        let answered = ends.answered + sum(|live| &live.answered);
        let part = match (self.plan.count, self.plan.duration_ns) {
            (Some(count), _) => answered as f64 / count as f64,
            (None, Some(ns)) => seconds * 1e9 / ns as f64,
            (None, None) => 0.0,
        };
        let way = RunProgress {
            seconds,
            part: part.min(1.0),
            warming_up,
            answered,
            bad: ends.wrong + ends.failed + ends.uncertain + sum(|live| &live.bad),
            open: sum(|live| &live.open),
        };
        self.view.update(way, &self.total);
    }

    fn finish(
        mut self,
        shared: &Shared,
        process: Option<&Process>,
        options: &Http,
    ) -> Result<HttpReport, Error> {
        self.close(self.waiting.len())?;
        if let Some(log) = self.hdr_log.take() {
            log.finish()?;
        }
        let cpu_after = (generator_cpu_ns(), process.map(Process::cpu_ns));
        let (plan, total) = (&self.plan, &self.total);
        let began_ns = shared.start_ns().unwrap_or(0) + plan.warm_up_ns;
        let seconds = (total.last_answer_ns.saturating_sub(began_ns)) as f64 / 1e9;
        end_timeline(&mut self.timeline, plan.span_ns, seconds);
        let before = self.cpu_before;
        let cpu_seconds = cpu_after.0.saturating_sub(before.0) as f64 / 1e9;
        let rate =
            |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let answered = total.ends.answered;
        let span_s = plan.clock.now_ns().saturating_sub(began_ns) as f64 / 1e9;
        let server = cpu_after.1.zip(before.1).map(|(after, before)| {
            let cpu_seconds = after.saturating_sub(before) as f64 / 1e9;
            ServerShare { cpu_seconds, idle_share: 1.0 - cpu_seconds / span_s.max(1e-9) }
        });
        let default_name = || match options.rate {
            Some(rate) => format!("{rate} /s"),
            None => format!("{} × {}", options.connections, options.pipeline),
        };
        Ok(HttpReport {
            benchmark: "http".into(),
            name: options.name.clone().unwrap_or_else(default_name),
            host: Host::now(),
            url: plan.url.clone(),
            protocol: format!(
                "HTTP/{}{}",
                options.http,
                if plan.address.tls { " over TLS" } else { "" }
            ),
            connections: plan.connections,
            pipeline: plan.depth.to_string(),
            depth_most: Some(total.depth_most).filter(|depth| *depth > 0),
            interrupted: super::interrupt::is_asked(),
            threads: plan.threads,
            rate_asked: plan.rate,
            seconds,
            requests_per_second: rate(answered, seconds),
            generator_cpu_seconds: cpu_seconds,
            requests_per_cpu_second: rate(answered, cpu_seconds),
            server,
            ends: total.ends,
            read_bytes: total.read_bytes,
            written_bytes: total.written_bytes,
            statuses: (0..600)
                .filter(|status| total.statuses[usize::from(*status)] > 0)
                .map(|status| (status, total.statuses[usize::from(status)]))
                .collect(),
            errors: total.errors.clone(),
            error_samples: total.samples.iter().map(|(_, sentence)| sentence.clone()).collect(),
            connection_events: total.events,
            latency_us: Percentiles::of(&total.latency),
            first_byte_us: Percentiles::of(&total.first_byte),
            service_us: Percentiles::of(&total.service),
            late_us: plan.rate.map(|_| Percentiles::of(&total.late)),
            histogram: steps(&total.latency),
            first_byte_histogram: steps(&total.first_byte),
            quantiles: quantiles(&total.latency),
            timeline: self.timeline,
            memory: self.memory,
        })
    }
}

/// Drops empty spans after the last answer, and shortens the last span to the time covered by answers.
fn end_timeline(timeline: &mut Vec<TimelineSpan>, span_ns: u64, seconds: f64) {
    let covered = span_ns as f64 / 1e9 * timeline.len().saturating_sub(1) as f64;
    let is_empty = |last: &TimelineSpan| {
        *last
            == TimelineSpan {
                at_s: last.at_s,
                span_s: last.span_s,
                resident_bytes: last.resident_bytes,
                ..TimelineSpan::of(&Tally::new(), 0.0, 0.0)
            }
    };
    while timeline.last().is_some_and(is_empty) {
        timeline.pop();
    }
    if let Some(last) = timeline.last_mut()
        && seconds > covered
        && last.at_s > seconds
    {
        last.span_s = seconds - covered;
        last.at_s = seconds;
    }
}

/// Returns the CPU time of this process, including its ended threads.
fn generator_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
