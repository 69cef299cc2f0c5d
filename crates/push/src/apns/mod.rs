//! Apple Push Notification service: the provider API over HTTP/2.
//!
//! [`Apns`] is a sender with one credential for one environment; [`Credentials`] holds many of them by
//! name, added and rotated while they work. A [`Push`] is validated before it is queued; its [`Outcome`] is
//! Apple's reason for it, or why there is no response.
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
