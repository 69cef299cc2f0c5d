//! The time the service takes to answer a push, in addition to the path: drawn from a distribution.

use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BehaviourError;

/// Upper bound of a drawn time before drift: the Pareto distribution has none.
const LONGEST_MS: f64 = 60_000.0;

/// The time the service takes to answer a push, in addition to the path. PING is answered without it.
///
/// Command-line syntax: `FLOOR+DISTRIBUTION`, either of which may be omitted: `5+exponential:25`, `lognormal:8,0.8`,
/// `bimodal:0.05,1,30`, `pareto:5,1.5`, `20`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerTime {
    /// Minimum of each answer in milliseconds.
    pub floor_ms: f64,
    /// Distribution of the time added to the floor.
    pub distribution: Distribution,
    /// Slow periodic change of floor and distribution.
    pub drift: Drift,
    /// Additional delay for one in `every` device tokens, chosen by hash: a slow shard.
    pub slow_shard: PeriodicDelay,
    /// Additional delay for every Nth push, whatever its token.
    pub stall: PeriodicDelay,
    /// Pushes that the service processes at once, over all connections; the others wait in FIFO order. 0: unlimited.
    pub workers: u32,
}

/// A distribution of answer times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Distribution {
    /// Only the floor.
    #[default]
    None,
    /// Two values: fast and slow.
    Bimodal {
        /// Share of fast answers, from 0 to 1.
        fast_share: f64,
        /// Time of a fast answer.
        fast_ms: f64,
        /// Time of a slow answer.
        slow_ms: f64,
    },
    /// Memoryless, like the sojourn time of an M/M/1 queue.
    Exponential {
        /// Mean.
        mean_ms: f64,
    },
    /// The shape of most services.
    Lognormal {
        /// Median.
        median_ms: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// A heavy tail: the slowest 0.1 % take at least `1000^(1/alpha)` times the shortest. Capped at a minute.
    Pareto {
        /// Minimum.
        shortest_ms: f64,
        /// Exponent; at 1 or below the mean is finite only because of the cap.
        alpha: f64,
    },
}

/// A periodic drift of answer times between 1 and `factor` times their value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drift {
    /// Period in seconds; 0: no drift.
    pub period_s: f64,
    /// The factor half a period after the start.
    pub factor: f64,
}

/// An additional delay for one in `every`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeriodicDelay {
    /// One in how many; 0: none.
    pub every: u64,
    /// Additional milliseconds.
    pub ms: f64,
}

impl AnswerTime {
    /// Returns a constant answer time.
    pub fn constant(ms: f64) -> AnswerTime {
        AnswerTime { floor_ms: ms, ..AnswerTime::default() }
    }

    /// Returns whether answers take no time.
    pub(crate) fn is_zero(&self) -> bool {
        *self == AnswerTime::default()
    }

    /// Draws one time. `number` counts the pushes; `subject` is a hash of the device token; `uptime` is the
    /// simulator's.
    pub(crate) fn draw(
        &self,
        number: u64,
        subject: u64,
        uptime: Duration,
        mut uniform: impl FnMut() -> f64,
    ) -> Duration {
        let drawn_ms =
            match self.distribution {
                Distribution::None => 0.0,
                Distribution::Bimodal { fast_share, fast_ms, slow_ms } => {
                    if uniform() < fast_share { fast_ms } else { slow_ms }
                }
                // `1 − uniform` is above zero.
                Distribution::Exponential { mean_ms } => -mean_ms * (1.0 - uniform()).ln(),
                Distribution::Lognormal { median_ms, sigma } => {
                    // Box–Muller transform.
                    let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
                    median_ms * (sigma * radius * (TAU * uniform()).cos()).exp()
                }
                Distribution::Pareto { shortest_ms, alpha } => {
                    shortest_ms * (1.0 - uniform()).powf(-alpha.recip())
                }
            };
        let mut ms = (self.floor_ms + drawn_ms).min(LONGEST_MS);
        if self.drift.period_s > 0.0 {
            let turn = (TAU * uptime.as_secs_f64() / self.drift.period_s).cos();
            ms *= 1.0 + (self.drift.factor - 1.0) * (1.0 - turn) / 2.0;
        }
        if self.slow_shard.every > 0 && subject.is_multiple_of(self.slow_shard.every) {
            ms += self.slow_shard.ms;
        }
        if self.stall.every > 0 && number.is_multiple_of(self.stall.every) {
            ms += self.stall.ms;
        }
        Duration::from_secs_f64(ms / 1e3)
    }

    pub(crate) fn validate(&self) -> Result<(), BehaviourError> {
        let wrong = |text: &str| Err(BehaviourError::new(text));
        let times = |values: &[f64]| values.iter().all(|ms| (0.0..=3.6e6).contains(ms));
        let shape = |value: f64| (0.0..=100.0).contains(&value);
        let drawn = match self.distribution {
            Distribution::None => true,
            Distribution::Bimodal { fast_share, fast_ms, slow_ms } => {
                (0.0..=1.0).contains(&fast_share) && times(&[fast_ms, slow_ms])
            }
            Distribution::Exponential { mean_ms } => times(&[mean_ms]),
            Distribution::Lognormal { median_ms, sigma } => times(&[median_ms]) && shape(sigma),
            Distribution::Pareto { shortest_ms, alpha } => {
                times(&[shortest_ms]) && shape(alpha) && alpha > 0.0
            }
        };
        if !drawn || !times(&[self.floor_ms, self.slow_shard.ms, self.stall.ms]) {
            return wrong(
                "answer_time: milliseconds from 0 to an hour, shares from 0 to 1, sigma and alpha up to 100",
            );
        }
        if !(0.0..=1e6).contains(&self.drift.period_s) || !(0.0..=1e3).contains(&self.drift.factor)
        {
            return wrong("answer_time.drift: a period up to 1,000,000 s and a factor up to 1,000");
        }
        Ok(())
    }
}

const SYNTAX: &str = "write milliseconds, a distribution, or both: 20, exponential:MEAN, lognormal:MEDIAN,SIGMA, \
                      bimodal:SHARE,FAST,SLOW, pareto:SHORTEST,ALPHA, 5+exponential:25";

impl FromStr for AnswerTime {
    type Err = BehaviourError;

    fn from_str(text: &str) -> Result<AnswerTime, BehaviourError> {
        let wrong = || BehaviourError::new(format!("{text:?} is no answer time: {SYNTAX}"));
        let number = |text: &str| text.parse::<f64>().map_err(|_| wrong());
        let mut time = AnswerTime::default();
        for part in text.split('+') {
            let Some((name, values)) = part.split_once(':') else {
                time.floor_ms = number(part)?;
                continue;
            };
            let values: Vec<f64> = values.split(',').map(number).collect::<Result<_, _>>()?;
            time.distribution = match (name, &values[..]) {
                ("exponential", &[mean_ms]) => Distribution::Exponential { mean_ms },
                ("lognormal", &[median_ms, sigma]) => Distribution::Lognormal { median_ms, sigma },
                ("bimodal", &[fast_share, fast_ms, slow_ms]) => {
                    Distribution::Bimodal { fast_share, fast_ms, slow_ms }
                }
                ("pareto", &[shortest_ms, alpha]) => Distribution::Pareto { shortest_ms, alpha },
                _ => return Err(wrong()),
            };
        }
        time.validate()?;
        Ok(time)
    }
}

impl FromStr for Drift {
    type Err = BehaviourError;

    fn from_str(text: &str) -> Result<Drift, BehaviourError> {
        let (period_s, factor) = pair(text, "write PERIOD_S,FACTOR, as in 60,5")?;
        Ok(Drift { period_s, factor })
    }
}

impl FromStr for PeriodicDelay {
    type Err = BehaviourError;

    fn from_str(text: &str) -> Result<PeriodicDelay, BehaviourError> {
        let (every, ms) = pair(text, "write ONE_IN,MS, as in 1000,28000")?;
        if every < 0.0 || every.fract() != 0.0 {
            return Err(BehaviourError::new("ONE_IN is a whole number"));
        }
        Ok(PeriodicDelay { every: every as u64, ms })
    }
}

fn pair(text: &str, syntax: &str) -> Result<(f64, f64), BehaviourError> {
    let parsed = text.split_once(',').and_then(|(first, second)| {
        Some((first.parse::<f64>().ok()?, second.parse::<f64>().ok()?))
    });
    parsed.ok_or_else(|| BehaviourError::new(format!("{text:?}: {syntax}")))
}

impl fmt::Display for AnswerTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.distribution {
            Distribution::None => write!(f, "{} ms", self.floor_ms),
            distribution => {
                if self.floor_ms > 0.0 {
                    write!(f, "{} ms + ", self.floor_ms)?;
                }
                match distribution {
                    Distribution::None => Ok(()),
                    Distribution::Bimodal { fast_share, fast_ms, slow_ms } => {
                        write!(f, "{} % at {fast_ms} ms, rest {slow_ms} ms", fast_share * 100.0)
                    }
                    Distribution::Exponential { mean_ms } => write!(f, "exponential {mean_ms} ms"),
                    Distribution::Lognormal { median_ms, sigma } => {
                        write!(f, "lognormal {median_ms} ms, σ {sigma}")
                    }
                    Distribution::Pareto { shortest_ms, alpha } => {
                        write!(f, "Pareto {shortest_ms} ms, α {alpha}")
                    }
                }
            }
        }?;
        if self.drift.period_s > 0.0 {
            write!(f, ", drifting to {} × in {} s", self.drift.factor, self.drift.period_s / 2.0)?;
        }
        if self.slow_shard.every > 0 {
            write!(f, ", one token in {} + {} ms", self.slow_shard.every, self.slow_shard.ms)?;
        }
        if self.stall.every > 0 {
            write!(f, ", one in {} stalls {} s", self.stall.every, self.stall.ms / 1e3)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the median and the 90th percentile of 20,000 draws.
    fn quantiles_ms(time: &AnswerTime) -> (f64, f64) {
        let mut state = 42u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut draws: Vec<f64> = (1..=20_000u64)
            .map(|n| time.draw(n, n * 7, Duration::ZERO, &mut uniform).as_secs_f64() * 1e3)
            .collect();
        draws.sort_by(f64::total_cmp);
        (draws[10_000], draws[18_000])
    }

    #[test]
    fn draws_follow_the_distribution_that_was_written() {
        for (text, p50, p90) in [
            ("20", 20.0, 20.0),
            ("bimodal:0.05,1,30", 30.0, 30.0),
            ("5+exponential:25", 5.0 + 25.0 * 2f64.ln(), 5.0 + 25.0 * 10f64.ln()),
            ("2+lognormal:8,0.8", 10.0, 2.0 + 8.0 * (0.8 * 1.2816f64).exp()),
            ("pareto:5,1.5", 5.0 * 2f64.powf(1.0 / 1.5), 5.0 * 10f64.powf(1.0 / 1.5)),
        ] {
            let (half, most) = quantiles_ms(&text.parse().unwrap());
            assert!((half / p50 - 1.0).abs() < 0.03, "{text}: {half} of {p50}");
            assert!((most / p90 - 1.0).abs() < 0.05, "{text}: {most} of {p90}");
        }
    }

    #[test]
    fn a_shard_a_stall_and_a_drift_come_on_top() {
        let time = AnswerTime {
            drift: Drift { period_s: 60.0, factor: 5.0 },
            slow_shard: PeriodicDelay { every: 8, ms: 100.0 },
            stall: PeriodicDelay { every: 1_000, ms: 28_000.0 },
            ..AnswerTime::constant(10.0)
        };
        let at = |number, subject, uptime_s| {
            time.draw(number, subject, Duration::from_secs(uptime_s), || 0.5).as_millis()
        };
        assert_eq!((at(1, 1, 0), at(1, 1, 30), at(1, 1, 60)), (10, 50, 10));
        assert_eq!((at(1, 16, 0), at(2_000, 1, 0)), (110, 28_010));
    }

    #[test]
    fn malformed_value_is_named() {
        for text in ["fast", "exponential", "lognormal:8", "bimodal:2,1,30", "pareto:5,0", "-1"] {
            let error = text.parse::<AnswerTime>().unwrap_err().to_string();
            assert!(error.contains("answer"), "{text}: {error}");
        }
        assert!("3".parse::<PeriodicDelay>().unwrap_err().to_string().contains("ONE_IN"));
    }
}
