//! Sends a message to Android devices: `cargo run --example fcm ACCOUNT.json TITLE TOKEN...` prints how each message ended.
//! A proxy is taken from `HTTPS_PROXY`.

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_push::fcm::{AUTHORITY, Fcm, Push, Recipient, ServiceAccount};
use dunlin_push::notification::Notification;
use dunlin_push::{Dialer, Origin, Outcome, SenderConfig};

/// Connections to a service, by the proxy if there is one.
fn dialer(host: &str) -> Result<Dialer, Box<dyn Error>> {
    let mut origin = Origin::new(host, 443);
    origin.proxy = std::env::var("HTTPS_PROXY").ok().map(|proxy| proxy.parse()).transpose()?;
    Ok(Dialer::new(origin)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, title, tokens @ ..] = &arguments[..] else {
        return Err("write ACCOUNT.json TITLE TOKEN...".into());
    };
    let account = ServiceAccount::from_json(&std::fs::read_to_string(file)?)?;
    let (google, token_server) = (dialer(AUTHORITY)?, dialer("oauth2.googleapis.com")?);
    let fcm = Fcm::start_with(account, google, token_server, SenderConfig::default());
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let message = Notification { title: Some(title.clone()), ..Notification::default() }.fcm(now_s);
    let mut all_accepted = true;
    for token in tokens {
        let to = Recipient::Token(token);
        let outcome = fcm.send(&Push::new(to, &message, Duration::from_secs(5))).await;
        println!("{token}: {outcome}");
        all_accepted &= matches!(outcome, Outcome::Accepted(_));
    }
    Ok(if all_accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
