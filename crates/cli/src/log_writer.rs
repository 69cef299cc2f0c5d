//! Writes the log to standard error from a thread of its own, so that no worker waits for whoever reads it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The most lines that wait. A line is cut at [`LINE_BYTES_MAX`], so that they are bounded in bytes, too.
const WAITING_MAX: usize = 1_024;
/// The longest line.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long the process waits at its end for whoever reads the log.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread's end of the log.
#[derive(Clone)]
pub(crate) struct LogWriter {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    /// Hears when the thread has written all.
    ended: Arc<Mutex<Receiver<()>>>,
}

enum Message {
    Line(Vec<u8>),
    Finish,
}

impl LogWriter {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<LogWriter> {
        LogWriter::to(io::stderr())
    }

    fn to(mut output: impl Write + Send + 'static) -> io::Result<LogWriter> {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let (end, ended) = sync_channel(1);
        let lost = Arc::<AtomicU64>::default();
        let of_thread = Arc::clone(&lost);
        std::thread::Builder::new().name("dunlin-log".into()).spawn(move || {
            while let Ok(Message::Line(line)) = waiting.recv() {
                // Nobody could hear of it.
                let _ = output.write_all(&line);
                match of_thread.swap(0, Ordering::Relaxed) {
                    0 => {}
                    lost => {
                        let _ = writeln!(
                            output,
                            "{lost} lines of the log are lost: it is read too slowly"
                        );
                    }
                }
            }
            let _ = output.flush();
            let _ = end.send(());
        })?;
        Ok(LogWriter { lines, lost, ended: Arc::new(Mutex::new(ended)) })
    }

    /// Writes what waits, and ends the thread.
    pub(crate) fn finish(&self) {
        // A full queue has a reader that does not read.
        if self.lines.try_send(Message::Finish).is_ok() {
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(FINISH_TIMEOUT);
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { to: self, bytes: Vec::new() }
    }
}

/// One line, sent to the thread when it is dropped.
pub(crate) struct Line<'a> {
    to: &'a LogWriter,
    bytes: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let line = inert(std::mem::take(&mut self.bytes));
        if let Err(TrySendError::Full(_)) = self.to.lines.try_send(Message::Line(line)) {
            self.to.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns a line without control characters but its end: those that a value has brought in would begin another line, or speak to the
/// terminal. Colours stay.
fn inert(mut line: Vec<u8>) -> Vec<u8> {
    let ends = line.last() == Some(&b'\n');
    line.truncate(line.len() - usize::from(ends));
    if line.len() > LINE_BYTES_MAX {
        line.truncate(LINE_BYTES_MAX);
        line.extend_from_slice(b"...");
    }
    if line.iter().any(|byte| byte.is_ascii_control() || *byte == 0xc2) {
        let text = String::from_utf8_lossy(&line).into_owned();
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text.as_str();
        while let Some(at) = rest.find(char::is_control) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let colour = colour(from);
            if let Some(colour) = colour {
                out.push_str(colour);
                rest = &from[colour.len()..];
                continue;
            }
            let mut characters = from.chars();
            out.extend(characters.next().into_iter().flat_map(char::escape_default));
            rest = characters.as_str();
        }
        out.push_str(rest);
        line = out.into_bytes();
    }
    line.push(b'\n');
    line
}

/// Returns the sequence that sets a colour, if the text begins with one.
fn colour(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("\u{1b}[")?;
    let length = rest.find(|of: char| !of.is_ascii_digit() && of != ';')?;
    (rest[length..].starts_with('m') && length <= 16).then(|| &text[..length + 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_values_are_inert_and_colours_stay() {
        let line = |text: &str| String::from_utf8(inert(text.as_bytes().to_vec())).unwrap();
        assert_eq!(line("a\nb\n"), "a\\nb\n");
        assert_eq!(
            line("\u{1b}[2m12:00\u{1b}[0m \u{1b}[2J\u{1b}]0;x\u{7}\n"),
            "\u{1b}[2m12:00\u{1b}[0m \\u{1b}[2J\\u{1b}]0;x\\u{7}\n"
        );
        assert_eq!(line("\u{9b}2J ä"), "\\u{9b}2J ä\n");
        assert!(line(&"x".repeat(1 << 20)).len() < LINE_BYTES_MAX + 16);
    }

    /// A writer whose reader has stopped.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_counts_what_is_lost() {
        let (release, stuck) = sync_channel::<()>(0);
        let writer = LogWriter::to(Stuck(stuck)).unwrap();
        for _ in 0..WAITING_MAX + 100 {
            writer.make_writer().write_all(b"line\n").unwrap();
        }
        assert!(writer.lost.load(Ordering::Relaxed) >= 98);
        drop(release);
    }
}
