//! Results as a program writes them. A backend writes the same in JSON.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::{ConnectResult, PublishResult, RefreshResult, RpcResult, SubscribeResult};
use crate::api::request::OptionsOverride;
use crate::auth::SubscribeOptions;

/// Text of a value. A value is always JSON.
fn raw(value: impl Into<Value>) -> Option<Box<RawValue>> {
    to_raw_value(&value.into()).ok()
}

impl ConnectResult {
    /// The user of the client; empty: anonymous.
    pub fn user(user: impl Into<String>) -> ConnectResult {
        ConnectResult { user: user.into(), ..ConnectResult::default() }
    }

    /// What others see of the connection, in presence, joins and publications.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> ConnectResult {
        ConnectResult { info: raw(info), ..self }
    }

    /// What the client reads in the reply to its connect.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> ConnectResult {
        ConnectResult { data: raw(data), ..self }
    }

    /// What stays with the connection and is shown to no client, but with each later question.
    #[must_use]
    pub fn meta(self, meta: impl Into<Value>) -> ConnectResult {
        ConnectResult { meta: raw(meta), ..self }
    }

    /// By which the server API tells connections apart (`label_filter`), in the place of those before: at most 32, of 2,048 bytes
    /// together, else the connect is refused.
    #[must_use]
    pub fn labels<N: Into<String>, V: Into<String>>(
        self,
        labels: impl IntoIterator<Item = (N, V)>,
    ) -> ConnectResult {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        ConnectResult { labels: Some(labels.collect()), ..self }
    }

    /// One more channel that the client begins with, on the server's side.
    #[must_use]
    pub fn subscribe(self, channel: impl Into<String>) -> ConnectResult {
        self.subscribe_with(channel, SubscribeResult::default())
    }

    /// The same with what a subscription may have. It does not end by itself: its `expire_at` is not looked at.
    #[must_use]
    pub fn subscribe_with(
        mut self,
        channel: impl Into<String>,
        result: SubscribeResult,
    ) -> ConnectResult {
        self.subs.insert(channel.into(), SubscribeOptions::from(result));
        self
    }

    /// The Unix time in seconds at which it is asked whether the connection goes on.
    #[must_use]
    pub fn expire_at(self, unix_s: u64) -> ConnectResult {
        ConnectResult { expire_at: unix_s, ..self }
    }
}

impl SubscribeResult {
    /// What others see of the subscription beside the connection's own info.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> SubscribeResult {
        SubscribeResult { info: raw(info), ..self }
    }

    /// What the client reads in the reply to its subscribe.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> SubscribeResult {
        SubscribeResult { data: raw(data), ..self }
    }

    /// The Unix time in seconds at which it is asked whether the subscription goes on.
    #[must_use]
    pub fn expire_at(self, unix_s: u64) -> SubscribeResult {
        SubscribeResult { expire_at: unix_s, ..self }
    }

    /// Options that it has otherwise than the channel.
    #[must_use]
    pub fn overrides(self, overrides: OptionsOverride) -> SubscribeResult {
        SubscribeResult { overrides, ..self }
    }
}

impl PublishResult {
    /// This in place of what the client has sent.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> PublishResult {
        PublishResult { data: raw(data), ..self }
    }

    /// Tags of the publication, by their names.
    #[must_use]
    pub fn tags(self, tags: BTreeMap<String, String>) -> PublishResult {
        PublishResult { tags, ..self }
    }

    /// It is delivered and not kept.
    #[must_use]
    pub fn skip_history(self) -> PublishResult {
        PublishResult { skip_history: true, ..self }
    }

    /// A publication with the same key within some minutes is published once.
    #[must_use]
    pub fn idempotency_key(self, key: impl Into<String>) -> PublishResult {
        PublishResult { idempotency_key: key.into(), ..self }
    }
}

impl RpcResult {
    /// What the caller reads.
    pub fn data(data: impl Into<Value>) -> RpcResult {
        RpcResult { data: raw(data), ..RpcResult::default() }
    }
}

impl RefreshResult {
    /// It goes on until this Unix time in seconds.
    pub fn until(unix_s: u64) -> RefreshResult {
        RefreshResult { expire_at: unix_s, ..RefreshResult::default() }
    }

    /// It ends now.
    pub fn expired() -> RefreshResult {
        RefreshResult { expired: true, ..RefreshResult::default() }
    }

    /// What others see of the connection from now on.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> RefreshResult {
        RefreshResult { info: raw(info), ..self }
    }
}
