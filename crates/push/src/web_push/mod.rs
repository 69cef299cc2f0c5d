//! Web Push: messages to browsers (RFC 8030), encrypted for the subscription (RFC 8291) and signed by the application
//! (RFC 8292). Only [`WebPush`] does I/O; the other types encode requests and decode responses.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use dunlin_push::web_push::{Options, Push, Subscription, Urgency, Vapid, WebPush, WebPushConfig};
//! use dunlin_push::Outcome;
//!
//! # async fn example(key: &str, json: &str) -> Result<(), Box<dyn std::error::Error>> {
//! // The key in base64url, as the `web-push` tools write it; whom a push service may write to.
//! let web = WebPush::new(Vapid::new(key, "mailto:ops@example.com")?, WebPushConfig::default());
//! println!("applicationServerKey: {}", web.public_key());
//! // What `PushSubscription.toJSON` gave the page.
//! let subscription = Subscription::from_json(json)?;
//! let push = Push {
//!     subscription: &subscription,
//!     message: b"Hello",
//!     options: &Options::new(3_600, Urgency::Normal),
//!     timeout: Duration::from_secs(30),
//!     resend_uncertain: false,
//! };
//! match web.send(&push).await {
//!     Outcome::Rejected(rejected) if rejected.reason == "Gone" => println!("drop the subscription"),
//!     outcome => println!("{outcome}"),
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
mod encryption;
mod request;
mod sender;
mod subscription;
mod vapid;

pub use answer::{WebPushAnswer, classify};
pub use encryption::{EncryptError, PLAINTEXT_BYTES_MAX, encrypt, encrypt_with};
pub use request::{Options, OptionsError, Urgency, WebPushRequest};
pub use sender::{KNOWN_HOSTS, Push, WebPush, WebPushConfig, WebPushService};
pub use subscription::{Subscription, SubscriptionError};
pub use vapid::{Vapid, VapidError};
