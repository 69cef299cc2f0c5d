//! Apple Push Notification service: the provider API over HTTP/2.
//!
//! [`Apns`] is a sender with one credential for one environment; [`Credentials`] holds many of them by
//! name, added and rotated while they work. A [`Push`] is validated before it is queued; its [`Outcome`] is
//! Apple's reason for it, or why there is no response.
//!
//! ```no_run
//! use dunlin_push::apns::{Apns, Certificate, Credential, DeviceToken, Environment, Push, Reason};
//! use dunlin_push::{Outcome, SenderConfig};
//!
//! # async fn example(tokens: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
//! let certificate = Certificate::from_p12(&std::fs::read("push.p12")?, "its password")?;
//! let mut origin = Environment::Production.origin();
//! origin.proxy = Some("http://proxy.example:3128".parse()?);
//! let apns = Apns::start(origin, Credential::Certificate(certificate), SenderConfig::default())?;
//! let (results, mut outcomes) = dunlin_push::results();
//! for (tag, token) in tokens.iter().enumerate() {
//!     let push = Push {
//!         collapse_id: Some("score".to_owned()), // the newest alone is shown
//!         ..Push::new(DeviceToken::new(token)?, "com.example.app", r#"{"aps":{"alert":"2:1"}}"#)
//!     };
//!     apns.submit(&push, tag as u64, &results).await?;
//! }
//! drop(results);
//! while let Some((tag, outcome)) = outcomes.recv().await {
//!     match outcome {
//!         Outcome::Rejected(rejected) if Reason::new(&rejected.reason).is_dead_token() => {
//!             println!("drop {}", tokens[tag as usize]);
//!         }
//!         outcome => println!("{}: {outcome}", tokens[tag as usize]),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Outcome`]: crate::Outcome

mod breaker;
mod certificate;
mod channels;
mod clock;
mod credentials;
mod device_token;
mod encrypted_pem;
mod feed;
mod provider_token;
mod push;
mod reason;
mod sender;

pub use certificate::{Certificate, CertificateError, CertificateFault};
pub use channels::{ChannelError, Channels, Storage};
pub use credentials::Credentials;
pub use device_token::{DeviceToken, DeviceTokenError};
pub use encrypted_pem::decrypt_pem;
pub use feed::{DeadToken, Feed};
pub use provider_token::{ProviderKey, ProviderToken};
pub use push::{Push, PushError, PushType, Target};
pub use reason::Reason;
pub use sender::{Apns, ApnsService, Credential, Environment};
