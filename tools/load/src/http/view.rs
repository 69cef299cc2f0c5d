//! Shows the progress of a run: a few lines redrawn in place on a terminal, otherwise a plain line now and then.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::summary::{count, time};
use super::tally::Tally;
use crate::say;

/// Without a terminal: when the first line is printed, and the interval of later ones.
const LINE_FIRST: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(5);
const DRAW_EVERY: Duration = Duration::from_millis(110);
/// Spans in the sparkline of the rate.
const SPARKS: usize = 40;

/// The progress of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunProgress {
    pub(super) seconds: f64,
    /// Fraction done, 0 to 1.
    pub(super) part: f64,
    pub(super) warming_up: bool,
    pub(super) answered: u64,
    pub(super) bad: u64,
    pub(super) open: u64,
}

#[derive(Debug)]
pub(super) struct View {
    bar: Option<ProgressBar>,
    goal: String,
    rates: VecDeque<f64>,
    last: (Instant, u64),
    said: Instant,
    line_every: Duration,
}

impl View {
    pub(super) fn new(title: &str, goal: String) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(8));
            let style = ProgressStyle::with_template("{prefix:.bold}\n{bar:48.cyan/238} {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("━╸─"));
            bar.set_prefix(title.to_owned());
            bar
        });
        if bar.is_none() {
            say(title);
        }
        let now = Instant::now();
        let rates = VecDeque::new();
        Self { bar, goal, rates, last: (now, 0), said: now, line_every: LINE_FIRST }
    }

    /// Updates the view; called a few times a second. `tally` holds the complete spans.
    pub(super) fn update(&mut self, progress: RunProgress, tally: &Tally) {
        let elapsed = self.last.0.elapsed();
        if elapsed >= Duration::from_millis(200) {
            let rate = progress.answered.saturating_sub(self.last.1) as f64 / elapsed.as_secs_f64();
            self.last = (Instant::now(), progress.answered);
            self.rates.push_back(rate);
            if self.rates.len() > SPARKS {
                self.rates.pop_front();
            }
        }
        let rate = self.rates.back().copied().unwrap_or(0.0);
        let at = |quantile| time(tally.latency.value_at_quantile(quantile) as f64 / 1e3);
        if let Some(bar) = &self.bar {
            if self.said.elapsed() < DRAW_EVERY {
                return;
            }
            self.said = Instant::now();
            bar.set_position((progress.part * 1000.0) as u64);
            let state = if progress.warming_up { "warming up" } else { "" };
            let mut text = format!("{:.1} s of {} {state}\n\n", progress.seconds, self.goal);
            text += &format!("  rate      {:>13} /s   {}\n", count(rate), sparks(&self.rates));
            text += &format!(
                "  answered  {:>13}      {} connections open\n",
                count(progress.answered as f64),
                progress.open
            );
            if tally.latency.is_empty() {
                text += "  latency             –\n";
            } else {
                text += &format!(
                    "  latency   p50 {}   p90 {}   p99 {}   max {}\n",
                    at(0.5),
                    at(0.9),
                    at(0.99),
                    time(tally.latency.max() as f64 / 1e3)
                );
            }
            text += &format!("  errors    {}", errors(progress.bad, tally));
            bar.set_message(text);
        } else if self.said.elapsed() >= self.line_every {
            self.said = Instant::now();
            self.line_every = LINE_EVERY;
            let latency = match tally.latency.is_empty() {
                true => String::new(),
                false => format!(", p50 {}, p99 {}", at(0.5), at(0.99)),
            };
            say(format!(
                "{:.0} s: {} answered, {} /s{latency}, {} connections open, {} errors",
                progress.seconds,
                count(progress.answered as f64),
                count(rate),
                progress.open,
                count(progress.bad as f64),
            ));
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn errors(bad: u64, tally: &Tally) -> String {
    if tally.errors.is_empty() {
        return if bad == 0 { "none".to_owned() } else { count(bad as f64) };
    }
    let mut kinds: Vec<_> = tally.errors.iter().collect();
    kinds.sort_by(|a, b| b.1.cmp(a.1));
    let shown =
        kinds.iter().take(4).map(|(kind, number)| format!("{} × {kind}", count(**number as f64)));
    shown.collect::<Vec<_>>().join("\n            ")
}

/// Renders a one-line plot.
fn sparks(rates: &VecDeque<f64>) -> String {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let step = |rate: &f64| match most > 0.0 {
        true => "▁▂▃▄▅▆▇█".chars().nth(((rate / most) * 7.0).round() as usize).unwrap_or('█'),
        false => ' ',
    };
    rates.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparks_reach_from_nothing_to_the_most() {
        let rates = VecDeque::from([0.0, 50.0, 100.0]);
        assert_eq!(sparks(&rates), "▁▅█");
        assert_eq!(sparks(&VecDeque::from([0.0])), " ");
    }
}
