//! Programs in Luau: their code, compiled once for all threads, and what is counted of them.

use std::sync::{Arc, Mutex, PoisonError};

use dunlin_metrics::{Collector, DescriptorEncoder, Histogram, LiveSeries, Snapshot, metrics};
use dunlin_program::{Code, FaultKind, Limits, ProgramError};

/// Results of the compiler that are kept: those of the running programs, and of changes that are tried.
const CODES_MAX: usize = 128;

struct Compiled {
    name: Arc<str>,
    source: Arc<str>,
    code: Result<Code, ProgramError>,
}

static COMPILED: Mutex<Vec<Compiled>> = Mutex::new(Vec::new());

/// Returns the code of a program; it is compiled by the first who asks.
///
/// # Errors
/// What is wrong with the source, with its line.
pub(crate) fn compiled(name: &str, source: &Arc<str>) -> Result<Code, ProgramError> {
    let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = all.iter().position(|of| {
        *of.name == *name && (Arc::ptr_eq(&of.source, source) || of.source == *source)
    });
    if let Some(at) = known {
        // The least recently used goes first.
        let of = all.remove(at);
        let code = of.code.clone();
        all.push(of);
        return code;
    }
    let code = Code::compile(name, source, Limits::default());
    if all.len() >= CODES_MAX {
        all.remove(0);
    }
    all.push(Compiled { name: name.into(), source: Arc::clone(source), code: code.clone() });
    code
}

metrics! {
    /// A metric of each program of `programs`.
    ProgramMetric,
    /// The metrics of one program, written by one worker.
    ProgramCounters;
    Memory, Gauge, "program_memory_bytes", "Memory of a program's machine, garbage included.";
    Connections, Gauge, "program_connections", "Connections whose protocol a program speaks.";
    Calls, Counter, "program_calls_total", "Events that a program was asked about, or that its connections had.";
    Waited, Counter, "program_calls_waited_total", "Events that waited for a later turn, since programs had used up their time of the turn.";
    Errors, Counter, "program_errors_total", "Events that failed: the program raised an error.";
    TimedOut, Counter, "program_timed_out_total", "Events that failed: they took longer than a program may.";
    OutOfMemory, Counter, "program_out_of_memory_total", "Events that failed: they needed more memory than a program may have.";
    Malformed, Counter, "program_malformed_total", "Events that failed: the program returned what is no decision, or a result that is not valid.";
    Resting, Counter, "program_resting_total", "Events that failed: the program has failed five times within a minute, and has not started anew yet.";
    Restarts, Counter, "program_restarts_total", "Times that a program was ended because it had failed five times within a minute.";
}

impl ProgramMetric {
    /// The metric that counts a fault.
    pub(crate) fn of(kind: FaultKind) -> ProgramMetric {
        match kind {
            FaultKind::Error => ProgramMetric::Errors,
            FaultKind::Time => ProgramMetric::TimedOut,
            FaultKind::Memory => ProgramMetric::OutOfMemory,
            FaultKind::Output => ProgramMetric::Malformed,
            FaultKind::Resting => ProgramMetric::Resting,
        }
    }
}

/// The stats of one program on one worker.
#[derive(Debug, Default)]
pub(crate) struct ProgramStats {
    pub(crate) counters: ProgramCounters,
    /// How long events took.
    pub(crate) durations: Histogram,
}

/// The stats of all workers, by worker and program.
#[derive(Debug, Default)]
pub(crate) struct ProgramsStats(LiveSeries<ByWorker, ProgramStats>);

/// A worker, and the name of a program.
type ByWorker = (usize, Arc<str>);

impl ProgramsStats {
    /// Begins the stats of a program on a worker, which holds them.
    pub(crate) fn begin(&self, worker: usize, name: &Arc<str>) -> Arc<ProgramStats> {
        self.0.begin((worker, Arc::clone(name)))
    }

    /// Returns the sum of a metric of a program over the workers.
    #[cfg(test)]
    pub(crate) fn sum(&self, program: &str, metric: ProgramMetric) -> u64 {
        let all = self.0.live();
        let of = all.iter().filter(|((_, name), _)| **name == *program);
        of.map(|(_, stats)| stats.counters.get(metric)).sum()
    }
}

impl Collector for ProgramsStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let all = self.0.live();
        if all.is_empty() {
            return Ok(());
        }
        fn labels((worker, name): &ByWorker) -> [(&'static str, String); 2] {
            [("worker", worker.to_string()), ("program", name.to_string())]
        }
        ProgramCounters::encode(
            &mut encoder,
            all.iter().map(|(of, stats)| (labels(of), &stats.counters)),
        )?;
        Snapshot::encode(
            &mut encoder,
            ("program_event_duration_seconds", "How long a program took for an event."),
            10..36,
            all.iter().map(|(of, stats)| (labels(of), stats.durations.snapshot())),
        )
    }
}
