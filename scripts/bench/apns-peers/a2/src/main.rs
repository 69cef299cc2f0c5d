//! Pushes with a2, so many at once, each caller the next one when it has its answer; prints a line of JSON.
//!
//! a2 knows Apple's names alone: `redirect.c` leads them to the address, `webpki-roots` beside this trusts its root.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use a2::request::payload::PayloadLike;
use a2::{
    Client, ClientConfig, DefaultNotificationBuilder, Endpoint, NotificationBuilder,
    NotificationOptions, PushType,
};
use rustix::time::{ClockId, clock_gettime};

type Failure = Box<dyn std::error::Error>;

struct Options {
    in_flight: usize,
    payload: usize,
    duration: Duration,
    warm_up: Duration,
    pushes: u64,
    devices: u64,
}

/// What came of it so far.
#[derive(Default)]
struct Account {
    sent: Cell<u64>,
    answers: RefCell<BTreeMap<u64, u32>>,
    times: RefCell<Vec<f64>>,
    failed: Cell<u64>,
    error: RefCell<Option<String>>,
    warm: Cell<Option<(f64, u64)>>,
}

fn main() -> Result<(), Failure> {
    let mut named = BTreeMap::new();
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        named.insert(name, value);
    }
    let get = |name: &str| named.get(name).ok_or(format!("{name} is missing"));
    let options = Options {
        in_flight: get("--in-flight")?.parse()?,
        payload: get("--payload")?.parse()?,
        duration: Duration::from_secs_f64(get("--seconds")?.parse()?),
        warm_up: Duration::from_secs_f64(get("--warm-up")?.parse()?),
        pushes: get("--pushes")?.parse()?,
        devices: get("--devices")?.parse()?,
    };
    let key = std::fs::File::open(get("--key")?)?;
    let client =
        Client::token(key, "BENCHKEY01", "BENCHTEAM1", ClientConfig::new(Endpoint::Sandbox))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, play(Rc::new(options), client));
    Ok(())
}

async fn play(options: Rc<Options>, client: Client) {
    let account = Rc::new(Account::default());
    let begin = Instant::now();
    let callers: Vec<_> = (0..options.in_flight)
        .map(|_| {
            let (options, client, account) = (options.clone(), client.clone(), account.clone());
            tokio::task::spawn_local(async move { call(&options, &client, &account, begin).await })
        })
        .collect();
    // What is in flight at the end is nobody's answer any more.
    let all = async {
        for caller in callers {
            let _ = caller.await;
        }
    };
    let _ = tokio::time::timeout(options.duration, all).await;
    let seconds = begin.elapsed().as_secs_f64();

    let mut times = account.times.borrow_mut();
    let answered = times.len() as u64;
    let (cpu_before, before) = account.warm.get().unwrap_or((0.0, 0));
    let later = &mut times[before as usize..];
    later.sort_by(f64::total_cmp);
    let quantile = |share: f64| later.get((later.len() as f64 * share) as usize).copied();
    let answers: Vec<(u64, u32)> =
        account.answers.borrow().iter().map(|(&ms, &count)| (ms, count)).collect();
    let said = serde_json::json!({
        "answers": answers,
        "failed": account.failed.get(),
        "error": *account.error.borrow(),
        "seconds": seconds,
        "p50_s": quantile(0.5),
        "p99_s": quantile(0.99),
        "cpu_s": cpu_s() - cpu_before,
        "cpu_ended": answered - before,
    });
    println!("{said}");
}

async fn call(options: &Options, client: &Client, account: &Account, begin: Instant) {
    // a2's own {"aps":{"alert":...}} around it.
    let frame = build("", "").to_json_string().map_or(0, |text| text.len());
    let body = "x".repeat(options.payload.saturating_sub(frame));
    while begin.elapsed() < options.duration && account.sent.get() < options.pushes {
        let number = account.sent.get();
        account.sent.set(number + 1);
        let device = format!("{:039}{:025x}", 1, number % options.devices);
        let sent_at = Instant::now();
        match client.send(build(&body, &device)).await {
            Ok(_) => {
                let at = begin.elapsed();
                *account.answers.borrow_mut().entry(at.as_millis() as u64).or_default() += 1;
                account.times.borrow_mut().push(sent_at.elapsed().as_secs_f64());
                if account.warm.get().is_none() && !options.warm_up.is_zero() && at >= options.warm_up {
                    account.warm.set(Some((cpu_s(), account.times.borrow().len() as u64)));
                }
            }
            Err(error) => {
                account.failed.set(account.failed.get() + 1);
                account.error.borrow_mut().get_or_insert(error.to_string());
                // Whoever fails at once is not to fill the account with it.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn build<'a>(body: &'a str, device: &'a str) -> a2::request::payload::Payload<'a> {
    let options = NotificationOptions {
        apns_topic: Some("com.example.dunlin"),
        apns_push_type: Some(PushType::Alert),
        ..NotificationOptions::default()
    };
    DefaultNotificationBuilder::new().set_body(body).build(device, options)
}

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
