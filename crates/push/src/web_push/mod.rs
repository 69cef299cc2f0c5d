//! Web Push: messages to browsers (RFC 8030), encrypted for their eyes alone (RFC 8291), signed by the application
//! (RFC 8292). But for [`WebPush`] nothing here does I/O: requests go out as bytes, answers come in as bytes.

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
