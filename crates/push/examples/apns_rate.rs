//! Measures how many pushes a second a server takes: `cargo run --release --example apns_rate ADDRESS ROOTS.pem CONNECTIONS SECONDS
//! WARM_UP DEVICE` sends as many as go and prints a line of JSON: the rate after the warm-up, the median answer, what binds, and how many
//! connections there are. CONNECTIONS is a number, or `auto`. DEVICE is what the device tokens begin with: to `scripts/bench/go-server`
//! it says how long answers take.

use std::error::Error;
use std::time::{Duration, Instant};

use dunlin_push::apns::{Apns, Credential, DeviceToken, ProviderKey, ProviderToken, Push};
use dunlin_push::{Connections, Origin, Outcome, SenderConfig, results};

/// As long as the benchmark's other payloads.
const PAYLOAD_BYTES: usize = 437;
/// Devices, which pushes go to in turn.
const DEVICES: u64 = 4_096;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, roots, connections, seconds, warm_up, device] = &arguments[..] else {
        return Err("write ADDRESS ROOTS.pem CONNECTIONS|auto SECONDS WARM_UP DEVICE".into());
    };
    let mut origin = Origin::new("localhost", 443);
    origin.address = Some(address.clone());
    origin.add_roots(roots.as_ref())?;
    origin.roots_only = true;
    let key = ProviderKey::from_scalar(&[7; 32], "BENCHKEY01", "BENCHTEAM1")?;
    let connections = match connections.as_str() {
        "auto" => Connections::Auto { max: 8 },
        count => Connections::Fixed(count.parse()?),
    };
    let config = SenderConfig {
        connections,
        queue_bytes_max: 8 << 20,
        answer_within: Duration::from_secs(60),
        drain: Duration::ZERO,
        ..SenderConfig::default()
    };
    let apns = Apns::start(origin, Credential::Token(ProviderToken::new(key)), config)?;

    let frame = r#"{"aps":{"alert":""}}"#;
    let payload =
        frame.replace(":\"\"", &format!(":\"{}\"", "x".repeat(PAYLOAD_BYTES - frame.len())));
    let digits = 64 - device.len();
    let tokens = (0..DEVICES)
        .map(|number| DeviceToken::new(&format!("{device}{number:0digits$x}")))
        .collect::<Result<Vec<_>, _>>()?;

    let (results, mut outcomes) = results();
    let warm_up = Duration::from_secs_f64(warm_up.parse()?);
    let length = Duration::from_secs_f64(seconds.parse()?);
    let begin = Instant::now();
    let submitting = {
        let apns = apns.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let token = tokens[(number % DEVICES) as usize].clone();
                let mut push = Push::new(token, "com.example.dunlin", payload.clone());
                push.timeout = Duration::from_secs(600);
                if apns.submit(&push, number, &results).await.is_err() {
                    return;
                }
                if number.is_multiple_of(256) {
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let end = tokio::time::sleep(warm_up + length);
    tokio::pin!(end);
    let (mut accepted, mut failed, mut warm) = (0u64, 0u64, None);
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            Some((_, outcome)) = outcomes.recv() => match outcome {
                Outcome::Accepted(_) => accepted += 1,
                _ => failed += 1,
            },
        }
        if warm.is_none() && begin.elapsed() >= warm_up {
            warm = Some((Instant::now(), accepted, apns.metrics().response_times));
        }
    }
    let (since, before, times) = warm.ok_or("no push was answered within the warm-up")?;
    let rate = (accepted - before) as f64 / since.elapsed().as_secs_f64();
    let metrics = apns.metrics();
    submitting.abort();
    let times = metrics.response_times.since(&times);
    let bound = metrics.connections.iter().flat_map(|connection| &connection.bound_s);
    let binding = bound.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(binding, _)| *binding);
    let line = serde_json::json!({
        "rate": rate,
        "answer_p50_s": times.quantile_ns(0.5).map(|ns| ns as f64 / 1e9),
        "binding": binding,
        "connections": metrics.connections.len(),
        "limit": metrics.connections.iter().map(|connection| connection.in_flight_max).collect::<Vec<_>>(),
        "failed": failed,
    });
    println!("{line}");
    Ok(())
}
