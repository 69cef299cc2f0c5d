//! Publishes numbered events to many channels: on a schedule, or as fast as they are received.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::receiver::{Receiver, unix_ns};
use dunlin_load::client::Client;
use dunlin_load::{Context, Error, Progress};

/// Channels that events are spread over: each keeps its order, so each has one request in flight at a time.
pub(super) const CHANNELS: u64 = 64;
/// Largest batch that a server accepts.
const BATCH: u64 = 100;
/// Bound of events in flight when publishing flat out: a quarter of a hook's queue.
const ON_THEIR_WAY: u64 = 16_000;
/// The finest step of a schedule.
const TICK: Duration = Duration::from_millis(1);

/// What was published.
#[derive(Debug, Clone, Copy)]
pub(super) struct PublishedCounts {
    pub(super) events: u64,
    pub(super) began_ns: u64,
}

/// A publisher at the server's API.
pub(super) struct Publisher {
    client: Client,
    body: String,
    published: u64,
}

impl Publisher {
    pub(super) fn connect(api: SocketAddr) -> Result<Self, Error> {
        Ok(Self { client: Client::connect(api)?, body: String::new(), published: 0 })
    }

    /// Publishes this many events a second. They carry their scheduled times, except those of the warm-up.
    pub(super) fn by_schedule(
        &mut self,
        rate: u32,
        warm_up: Duration,
        duration: Duration,
    ) -> Result<PublishedCounts, Error> {
        // The default timer slack of 50 µs would add to the generator's delay.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
            .context("cannot set the timer slack")?;
        let (began, began_ns) = (Instant::now(), unix_ns()?);
        let step = TICK.max(Duration::from_secs(1) / rate);
        let mut progress =
            Progress::new("events", u64::from(rate) * (warm_up + duration).as_secs());
        let mut due = Duration::ZERO;
        while due < warm_up + duration {
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            let at_ns = if due < warm_up { 0 } else { began_ns + due.as_nanos() as u64 };
            let wanted = (due + step).as_secs_f64() * f64::from(rate);
            while self.published < wanted.round() as u64 {
                let count = (wanted.round() as u64 - self.published).min(BATCH);
                self.publish(count, at_ns)?;
            }
            due += step;
            progress.set(self.published);
        }
        Ok(PublishedCounts { events: self.published, began_ns })
    }

    /// Publishes as fast as possible, with a bound on events in flight.
    pub(super) fn flat_out(
        &mut self,
        receiver: &mut Receiver,
        duration: Duration,
    ) -> Result<PublishedCounts, Error> {
        let (began, began_ns) = (Instant::now(), unix_ns()?);
        while began.elapsed() < duration {
            while self.published.saturating_sub(receiver.count()?) > ON_THEIR_WAY {
                std::thread::sleep(TICK);
            }
            for _ in 0..10 {
                self.publish(BATCH, unix_ns()?)?;
            }
        }
        Ok(PublishedCounts { events: self.published, began_ns })
    }

    fn publish(&mut self, count: u64, at_ns: u64) -> Result<(), Error> {
        self.body.clear();
        // Writing to a String cannot fail.
        self.body.push_str("{\"commands\":[");
        for index in 0..count {
            self.published += 1;
            let (seq, comma) = (self.published, if index == 0 { "" } else { "," });
            let _ = write!(
                self.body,
                "{comma}{{\"publish\":{{\"channel\":\"noted:{}\",\"data\":{{\"seq\":{seq},\"at\":{at_ns}}}}}}}",
                seq % CHANNELS
            );
        }
        self.body.push_str("]}");
        let body = self.body.as_bytes();
        let (status, _) = self.client.call("POST", "/api/batch", "application/json", body)?;
        self.client.expect_success("POST", "/api/batch", status)?;
        if memchr::memmem::find(self.client.body(), b"\"error\"").is_some() {
            let said =
                String::from_utf8_lossy(self.client.body()).chars().take(300).collect::<String>();
            return Err(Error::new(format!("a publish was refused: {said}")));
        }
        Ok(())
    }
}
