//! Encrypts a Web Push message: `cargo run --example web_push_request SUBSCRIPTION MESSAGE` prints the request that carries it, for a client of your own.

use std::error::Error;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dunlin_push::web_push::{Options, Subscription, Urgency, Vapid, WebPushRequest};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(subscription), Some(message)) = (arguments.next(), arguments.next()) else {
        return Err("name a subscription in JSON and a message".into());
    };
    let subscription = Subscription::from_json(&subscription)?;
    // A key for this example; an application keeps one for good.
    let mut vapid = Vapid::new(&URL_SAFE_NO_PAD.encode([7; 32]), "mailto:push@example.com")?;
    let options = Options::new(3_600, Urgency::Normal);
    let now_s = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    let request =
        WebPushRequest::new(&subscription, message.as_bytes(), &options, &mut vapid, now_s)?;
    let headers = request.headers.iter().map(|(name, value)| (*name, &**value));
    let headers: serde_json::Map<_, _> =
        headers.map(|(name, value)| (name.to_owned(), value.into())).collect();
    println!(
        "{}",
        serde_json::json!({
            "origin": request.origin,
            "path": request.path,
            "headers": headers,
            "body": URL_SAFE_NO_PAD.encode(request.body),
        })
    );
    Ok(())
}
