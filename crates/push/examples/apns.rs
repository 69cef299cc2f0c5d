//! Pushes to devices: `cargo run --example apns KEY.p8 KEY_ID TEAM_ID TOPIC TOKEN...` prints how each push ended.

use std::error::Error;

use dunlin_push::apns::{
    Apns, Credential, DeviceToken, Environment, ProviderKey, ProviderToken, Push,
};
use dunlin_push::{SenderConfig, results};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, key_id, team_id, topic, tokens @ ..] = &arguments[..] else {
        return Err("write KEY.p8 KEY_ID TEAM_ID TOPIC TOKEN...".into());
    };
    let key = ProviderKey::new(&std::fs::read_to_string(file)?, key_id, team_id)?;
    let credential = Credential::Token(ProviderToken::new(key));
    let apns = Apns::start(Environment::Sandbox.origin(), credential, SenderConfig::default())?;
    // All of them are under way at once; each outcome comes with the tag of its push.
    let (outcomes_in, mut outcomes) = results();
    for (tag, token) in tokens.iter().enumerate() {
        let push = Push::new(DeviceToken::new(token)?, topic, r#"{"aps":{"alert":"Hello"}}"#);
        apns.submit(&push, tag as u64, &outcomes_in).await?;
    }
    drop(outcomes_in);
    while let Some((tag, outcome)) = outcomes.recv().await {
        println!("{}: {outcome}", tokens[tag as usize]);
    }
    Ok(())
}
