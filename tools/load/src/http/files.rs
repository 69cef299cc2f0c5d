//! Writes results as files for other programs: CSV and HdrHistogram's interval log.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use super::report::{HttpReport, TimelineSpan};
use super::tally::Tally;
use crate::{Context, Error};

/// Writes a line for each span of the timeline.
pub(super) fn write_csv(path: &Path, report: &HttpReport) -> Result<(), Error> {
    let mut text = String::from(
        "at_s,answered,requests_per_second,errors,p50_us,p90_us,p99_us,max_us,opened,closed,resent,resident_bytes\n",
    );
    for moment in &report.timeline {
        let TimelineSpan { at_s, span_s, answered, errors, p50_us, p90_us, p99_us, max_us, .. } =
            moment;
        let rate = *answered as f64 / span_s;
        text += &format!(
            "{at_s:.3},{answered},{rate:.1},{errors},{p50_us:.1},{p90_us:.1},{p99_us:.1},{max_us:.1},{},{},{},{}\n",
            moment.opened, moment.closed, moment.resent, moment.resident_bytes
        );
    }
    std::fs::write(path, text).context(format!("cannot write {}", path.display()))
}

/// The latencies of each span, in nanoseconds, in HdrHistogram's log format. Lines are written during the run, so
/// that memory stays bounded.
#[derive(Debug)]
pub(super) struct HdrLog {
    file: BufWriter<File>,
    path: String,
    start: SystemTime,
    begun: bool,
}

impl HdrLog {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let file = File::create(path).context(format!("cannot write {shown}"))?;
        Ok(Self { file: BufWriter::new(file), path: shown, start: SystemTime::now(), begun: false })
    }

    pub(super) fn span(
        &mut self,
        tally: &Tally,
        begin: Duration,
        length: Duration,
    ) -> Result<(), Error> {
        let failed = |path: &str, why: &dyn std::fmt::Debug| {
            Error::new(format!("cannot write {path}: {why:?}"))
        };
        // Only the first span needs a header; the builder's header for the others is cut off. Serialized with
        // compression, because other readers of the format accept nothing else.
        let mut serializer = V2DeflateSerializer::new();
        let mut line = Vec::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.with_start_time(self.start).with_max_value_divisor(1e6);
        let header = {
            let mut writer = builder
                .begin_log_with(&mut line, &mut serializer)
                .map_err(|error| failed(&self.path, &error))?;
            writer
                .write_histogram(&tally.latency, begin, length, None)
                .map_err(|error| failed(&self.path, &error))?;
            !std::mem::replace(&mut self.begun, true)
        };
        let text = String::from_utf8_lossy(&line);
        let legend = "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";
        for kept in text.lines().filter(|line| header || !line.starts_with('#')) {
            let is_data = !kept.starts_with('#') && !kept.starts_with('"');
            if header && is_data && !text.contains("StartTimestamp\"") {
                self.file
                    .write_all(legend.as_bytes())
                    .context(format!("cannot write {}", self.path))?;
            }
            if header || is_data {
                writeln!(self.file, "{kept}").context(format!("cannot write {}", self.path))?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.file.flush().context(format!("cannot write {}", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn the_interval_log_is_read_by_its_own_reader() {
        let path = std::env::temp_dir().join(format!("dunlin-hdr-{}", std::process::id()));
        let mut log = HdrLog::create(&path).unwrap();
        let mut tally = Tally::new();
        tally.latency.record(5_000_000).unwrap();
        for second in 0..3 {
            log.span(&tally, Duration::from_secs(second), Duration::from_secs(1)).unwrap();
        }
        log.finish().unwrap();
        let text = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut counts = Vec::new();
        for entry in IntervalLogIterator::new(&text) {
            if let Ok(LogEntry::Interval(line)) = entry {
                let bytes = base64_of(line.encoded_histogram());
                let histogram: hdrhistogram::Histogram<u64> =
                    Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
                counts.push((line.start_timestamp().as_secs(), histogram.len()));
            }
        }
        assert_eq!(counts, [(0, 1), (1, 1), (2, 1)], "{}", String::from_utf8_lossy(&text));
    }

    /// RFC 4648 §4, for the test alone.
    fn base64_of(text: &str) -> Vec<u8> {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bits, mut held, mut out) = (0u32, 0, Vec::new());
        for byte in text.bytes().filter(|byte| *byte != b'=') {
            let value = alphabet.iter().position(|letter| *letter == byte).unwrap() as u32;
            bits = bits << 6 | value;
            held += 6;
            if held >= 8 {
                held -= 8;
                out.push((bits >> held) as u8);
                bits &= (1 << held) - 1;
            }
        }
        out
    }
}
