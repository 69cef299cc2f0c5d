//! Measures messages: to one client at a time, in two encodings, as deltas, and stored.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::{Cpu, FrontDoor, Round, connected, ended};
use crate::protocol::ProtocolName;
use crate::swarm::Swarm;
use dunlin_load::{Error, Process};

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests to one client at a time, and of batches.
const REQUESTS: usize = 150_000;
const BATCHES: usize = 3_000;
/// Length of the push that Dunlin sends for each of them, with its channel.
const MESSAGE_BYTES: u16 = 74;
/// Number of broadcasts to a channel.
const BROADCASTS: usize = 60;
const DOCUMENTS: usize = 400;
const READERS: usize = 500;
/// Messages stored in each channel, with 77 bytes of data each.
const KEPT: usize = 20;
const KEPT_DATA: &str =
    "{\"text\":\"ordinary words of somebody who says what there is to say, {n}\"}";

/// CPU and time of a number of messages.
struct Sent {
    delivered: u64,
    seconds: f64,
    cpu_us: f64,
    user_us: f64,
    bytes: u64,
}

/// Publishes with the load generator and waits for the arrivals at `swarms`.
fn send(
    options: &FrontDoor,
    server: &Process,
    swarms: &[&Swarm],
    expected: u64,
    request: (&str, &str),
    flags: &[&str],
) -> Result<Sent, Error> {
    let (path, body) = request;
    let counts = |of: fn(&crate::swarm::Counts) -> u64| -> u64 {
        swarms.iter().map(|swarm| of(&swarm.counts())).sum()
    };
    let (publications, bytes) = (
        |all: &crate::swarm::Counts| all.publications,
        |all: &crate::swarm::Counts| all.publication_bytes,
    );
    let (before, bytes_before) = (counts(publications), counts(bytes));
    let (began, cpu_before) = (Instant::now(), Cpu::of(server));
    let url = format!("http://{}{path}", options.address()?);
    ended(options.requests(&url, body, flags)?)?;
    let seconds = began.elapsed().as_secs_f64();
    let until = Instant::now() + DELIVERY_TIMEOUT;
    while counts(publications) < before + expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    let delivered = counts(publications) - before;
    let (cpu_us, user_us) = Cpu::each_us(cpu_before, server, delivered);
    Ok(Sent { delivered, seconds, cpu_us, user_us, bytes: counts(bytes) - bytes_before })
}

/// Measures messages to one client at a time, `batch` per request.
pub(super) fn unicast(options: &FrontDoor, batch: usize) -> Result<Round, Error> {
    let server = options.serve("")?;
    let plan = options.plan(ProtocolName::Centrifuge, "c{n}", options.clients)?;
    let (swarm, failed) = connected(&plan)?;
    let publish = |channel: String| {
        format!("{{\"channel\":\"{channel}\",\"data\":{{\"text\":\"what one is to know\"}}}}")
    };
    let last = options.clients - 1;
    let (path, body, requests) = if batch == 1 {
        ("/api/publish", publish(format!("c{{n%{}}}", options.clients)), REQUESTS)
    } else {
        let mut body = String::from("{\"commands\":[");
        for index in 0..batch {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ =
                write!(body, "{comma}{{\"publish\":{}}}", publish(format!("c{{random:0-{last}}}")));
        }
        body.push_str("]}");
        ("/api/batch", body, BATCHES)
    };
    let (count, expected) = (requests.to_string(), (requests * batch) as u64);
    let flags = ["-c", "64", "-n", &count];
    let sent = send(options, &server, &[&swarm], expected, (path, &body), &flags)?;
    drop((swarm, server));
    let floor = options.floor(MESSAGE_BYTES)?;
    let (swarm, _) = connected(&options.plan(ProtocolName::Websocket, "c", options.clients)?)?;
    let path = format!("/one/{batch}");
    let least = send(options, &floor, &[&swarm], expected, (&path, &body), &flags)?;
    Ok(Round {
        per_s: Some(sent.delivered as f64 / sent.seconds),
        cpu_us: Some(sent.cpu_us),
        user_us: Some(sent.user_us),
        floor_us: Some(least.cpu_us),
        lost: failed + expected.saturating_sub(sent.delivered),
        ..Round::default()
    })
}

/// Measures broadcasts to clients of which half use JSON and half Protobuf. The ratio is CPU with one encoding to that
/// with both.
pub(super) fn encodings(options: &FrontDoor) -> Result<Round, Error> {
    let half = options.clients / 2;
    let body = "{\"channel\":\"c\",\"data\":{\"text\":\"what all in this channel are to know, each once and in order\"}}";
    let count = BROADCASTS.to_string();
    let measure = |second: ProtocolName| -> Result<(Sent, u64), Error> {
        let server = options.serve("")?;
        let (first, failed) = connected(&options.plan(ProtocolName::Centrifuge, "c", half)?)?;
        let mut plan = options.plan(second, "c", half)?;
        plan.sources = plan.sources.map(|network| (u32::from(network) + (1 << 16)).into());
        let (second, more) = connected(&plan)?;
        let expected = (2 * half * BROADCASTS) as u64;
        let flags = ["-c", "1", "-n", &count];
        let sent =
            send(options, &server, &[&first, &second], expected, ("/api/publish", body), &flags)?;
        let lost = failed + more + expected.saturating_sub(sent.delivered);
        Ok((sent, lost))
    };
    let (one, lost) = measure(ProtocolName::Centrifuge)?;
    let (both, more) = measure(ProtocolName::CentrifugeProtobuf)?;
    Ok(Round {
        per_s: Some(both.delivered as f64 / both.seconds),
        cpu_us: Some(both.cpu_us),
        user_us: Some(both.user_us),
        ratio: Some(one.cpu_us / both.cpu_us),
        lost: lost + more,
        ..Round::default()
    })
}

/// Measures deltas. The ratio is bytes of whole documents to those of deltas; the CPU ratio is that of a delta to
/// that of a whole one.
pub(super) fn delta(options: &FrontDoor) -> Result<Round, Error> {
    let mut document = String::from("{");
    for field in 0..20 {
        // One of twenty fields changes.
        let value =
            if field == 7 { "{letters:36}" } else { "stays what it has been all along, so far" };
        let comma = if field == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(document, "{comma}\"field{field}\":\"{value}\"");
    }
    let body = format!("{{\"channel\":\"doc:1\",\"data\":{document}}}}}");
    let settings = "[channel.namespaces.doc]\nhistory_size = 10\nhistory_ttl_ms = 600_000\nrecover = true\n\
                    positioned = true\nallow_subscribe_for_anonymous = true\nallowed_delta_types = [\"fossil\"]\n\
                    delta_publish = true\n";
    let count = DOCUMENTS.to_string();
    let measure = |delta: bool| -> Result<(Sent, u64), Error> {
        let server = options.serve(settings)?;
        let mut plan = options.plan(ProtocolName::Centrifuge, "doc:1", READERS)?;
        plan.protocol.delta = delta;
        let (swarm, failed) = connected(&plan)?;
        let expected = (READERS * DOCUMENTS) as u64;
        let flags = ["-c", "1", "-n", &count];
        let sent = send(options, &server, &[&swarm], expected, ("/api/publish", &body), &flags)?;
        let lost = failed + expected.saturating_sub(sent.delivered);
        Ok((sent, lost))
    };
    let (whole, lost) = measure(false)?;
    let (deltas, more) = measure(true)?;
    let each = |sent: &Sent| sent.bytes as f64 / sent.delivered.max(1) as f64;
    Ok(Round {
        per_s: Some(deltas.delivered as f64 / deltas.seconds),
        cpu_us: Some(deltas.cpu_us),
        user_us: Some(deltas.user_us),
        bytes: Some(each(&deltas)),
        ratio: Some(each(&whole) / each(&deltas)),
        floor_us: None,
        cpu_ratio: Some(deltas.cpu_us / whole.cpu_us),
        lost: lost + more,
    })
}

/// Measures the memory that each stored message adds to the server.
pub(super) fn stored(options: &FrontDoor) -> Result<Round, Error> {
    let settings = format!(
        "[channel.namespaces.kept]\nhistory_size = {}\nhistory_ttl_ms = 3_600_000\n",
        KEPT + 1
    );
    let server = options.serve(&settings)?;
    let channels = options.clients;
    let body = format!("{{\"channel\":\"kept:{{n%{channels}}}\",\"data\":{KEPT_DATA}}}");
    let publish = |times: usize| -> Result<u64, Error> {
        let count = (channels * times).to_string();
        let url = format!("http://{}/api/publish", options.address()?);
        ended(options.requests(&url, &body, &["-c", "64", "-n", &count])?)?;
        std::thread::sleep(Duration::from_millis(500));
        Ok(server.sample().pss_bytes)
    };
    // The first message in each channel creates the channel, whose memory does not count.
    let before = publish(1)?;
    let after = publish(KEPT)?;
    let bytes = after.saturating_sub(before) as f64 / (channels * KEPT) as f64;
    Ok(Round { bytes: Some(bytes), ..Round::default() })
}
