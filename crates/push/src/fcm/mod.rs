//! Firebase Cloud Messaging, HTTP v1 API: credentials, requests and responses. Only [`Fcm`] does I/O.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use dunlin_push::fcm::{Fcm, Push, Recipient, ServiceAccount};
//! use dunlin_push::{Outcome, SenderConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let account = ServiceAccount::from_json(&std::fs::read_to_string("account.json")?)?;
//! let fcm = Fcm::start(account, SenderConfig::default())?;
//! let message = serde_json::json!({ "notification": { "title": "Hello" }, "android": { "priority": "HIGH" } });
//! let message = message.as_object().expect("an object");
//! let to = Recipient::Token("registration token");
//! match fcm.send(&Push::new(to, message, Duration::from_secs(30))).await {
//!     Outcome::Accepted(accepted) => println!("{} within {:?}", accepted.id, accepted.timings.service),
//!     Outcome::Rejected(rejected) if rejected.reason == "UNREGISTERED" => println!("drop the token"),
//!     outcome => println!("{outcome}"),
//! }
//! # Ok(())
//! # }
//! ```

mod access_token;
mod answer;
mod request;
mod sender;
mod service_account;

pub use access_token::{AccessTokens, TokenError, TokenRequest};
pub use answer::{FcmAnswer, classify};
pub use request::{AUTHORITY, FcmRequest, MESSAGE_BYTES_MAX, MessageError, Recipient};
pub use sender::{Fcm, FcmService, Push};
pub use service_account::{ServiceAccount, ServiceAccountError};
