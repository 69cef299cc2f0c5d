//! Pushes to devices: `cargo run --example apns sandbox KEY.p8 KEY_ID TEAM_ID TOPIC TOKEN...` prints how each push ended.
//! `sandbox` is for builds from Xcode; `production` for all others. A proxy is taken from `HTTPS_PROXY`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use dunlin_push::apns::{
    Apns, Credential, DeviceToken, Environment, ProviderKey, ProviderToken, Push,
};
use dunlin_push::{Outcome, SenderConfig, results};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [environment, file, key_id, team_id, topic, tokens @ ..] = &arguments[..] else {
        return Err("write sandbox|production KEY.p8 KEY_ID TEAM_ID TOPIC TOKEN...".into());
    };
    let mut origin = match environment.as_str() {
        "sandbox" => Environment::Sandbox.origin(),
        "production" => Environment::Production.origin(),
        _ => return Err("begin with sandbox or production".into()),
    };
    origin.proxy = std::env::var("HTTPS_PROXY").ok().map(|proxy| proxy.parse()).transpose()?;
    let key = ProviderKey::new(&std::fs::read_to_string(file)?, key_id, team_id)?;
    let credential = Credential::Token(ProviderToken::new(key));
    let apns = Apns::start(origin, credential, SenderConfig::default())?;
    // All of them are under way at once; each outcome comes with the tag of its push.
    let (outcomes_in, mut outcomes) = results();
    for (tag, token) in tokens.iter().enumerate() {
        let push = Push {
            timeout: Duration::from_secs(5),
            ..Push::new(DeviceToken::new(token)?, topic, r#"{"aps":{"alert":"Hello"}}"#)
        };
        apns.submit(&push, tag as u64, &outcomes_in).await?;
    }
    drop(outcomes_in);
    let mut all_accepted = true;
    while let Some((tag, outcome)) = outcomes.recv().await {
        println!("{}: {outcome}", tokens[tag as usize]);
        all_accepted &= matches!(outcome, Outcome::Accepted(_));
    }
    Ok(if all_accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
