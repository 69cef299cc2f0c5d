//! The webhooks thread: drives the machine of [`dunlin_webhooks`] over sockets.

mod sender;

pub(crate) use self::sender::{FINISH_TIMEOUT, WebhooksThread};
