//! Firebase Cloud Messaging, HTTP v1 API: who sends, what goes out, what an answer means. All but
//! [`Fcm`] does no I/O.

mod access_token;
mod answer;
mod request;
mod sender;
mod service_account;

pub use access_token::{AccessTokens, TokenError, TokenRequest};
pub use answer::{FcmAnswer, classify};
pub use request::{AUTHORITY, FcmRequest, MESSAGE_BYTES_MAX, MessageError, Recipient};
pub use sender::{Fcm, FcmService};
pub use service_account::{ServiceAccount, ServiceAccountError};
