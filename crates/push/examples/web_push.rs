//! Sends a message to a browser: `cargo run --example web_push KEY CONTACT SUBSCRIPTION MESSAGE` prints how it ended. `KEY` is
//! the private key whose public one the page subscribed with, `SUBSCRIPTION` the JSON that the page got.
//! A proxy is taken from `HTTPS_PROXY`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use dunlin_push::web_push::{Options, Push, Subscription, Urgency, Vapid, WebPush, WebPushConfig};
use dunlin_push::{Connect, Dialer, Origin, Outcome};

/// Connections to a browser's push service, by the proxy if there is one.
fn dialer(origin: &str) -> Result<Dialer, Box<dyn Error>> {
    let mut origin = Origin::new(origin.trim_start_matches("https://"), 443);
    origin.proxy = std::env::var("HTTPS_PROXY").ok().map(|proxy| proxy.parse()).transpose()?;
    Ok(Dialer::new(origin)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key, contact, subscription, message] = &arguments[..] else {
        return Err("write KEY CONTACT SUBSCRIPTION MESSAGE".into());
    };
    let subscription = Subscription::from_json(subscription)?;
    let vapid = Vapid::new(key, contact)?;
    let web = WebPush::with_dial(vapid, WebPushConfig::default(), |origin| {
        let dialer = dialer(origin).map_err(|error| error.to_string())?;
        Ok(Box::new(dialer) as Box<dyn Connect>)
    });
    let push = Push {
        subscription: &subscription,
        message: message.as_bytes(),
        options: &Options::new(3_600, Urgency::Normal),
        timeout: Duration::from_secs(5),
        resend_uncertain: false,
    };
    let outcome = web.send(&push).await;
    println!("{outcome}");
    let accepted = matches!(outcome, Outcome::Accepted(_));
    Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
