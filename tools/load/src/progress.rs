//! Shows progress on standard error: a bar on a terminal, otherwise a plain line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one step of a run.
#[derive(Debug)]
pub struct Progress {
    what: String,
    total: u64,
    bar: Option<ProgressBar>,
    said: Instant,
    start: Instant,
}

impl Progress {
    /// Starts with nothing of `total` done.
    pub fn new(what: impl Into<String>, total: u64) -> Self {
        let what = what.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let style = ProgressStyle::with_template(
                "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(what.clone());
            bar
        });
        Self { what, total, bar, said: Instant::now(), start: Instant::now() }
    }

    /// Sets how much is done.
    pub fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            eprintln!(
                "{}: {done} of {} after {:.0} s",
                self.what,
                self.total,
                self.start.elapsed().as_secs_f64()
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Prints a line about the run to standard error.
pub fn say(line: impl AsRef<str>) {
    eprintln!("{}", line.as_ref());
}
