//! Constructors of results for programs. A backend sends the same results in JSON.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::{ConnectResult, PublishResult, RefreshResult, RpcResult, SubscribeResult};
use dunlin_access::auth::OptionsOverride;
use dunlin_access::auth::SubscribeOptions;

/// Serializes a value.
fn raw(value: impl Into<Value>) -> Option<Box<RawValue>> {
    to_raw_value(&value.into()).ok()
}

impl ConnectResult {
    /// Admits the client as this user; empty: anonymous.
    pub fn user(user: impl Into<String>) -> ConnectResult {
        ConnectResult { user: user.into(), ..ConnectResult::default() }
    }

    /// Sets the info that others see in presence, joins and publications.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> ConnectResult {
        ConnectResult { info: raw(info), ..self }
    }

    /// Sets the data of the reply to the client's connect.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> ConnectResult {
        ConnectResult { data: raw(data), ..self }
    }

    /// Sets data that is kept with the connection. No client sees it; later requests about the connection contain it.
    #[must_use]
    pub fn meta(self, meta: impl Into<Value>) -> ConnectResult {
        ConnectResult { meta: raw(meta), ..self }
    }

    /// Sets the labels by which the server API selects connections (`label_filter`), replacing earlier ones. At most 32 labels of
    /// 2,048 bytes in total, otherwise the connect is refused.
    #[must_use]
    pub fn labels<N: Into<String>, V: Into<String>>(
        self,
        labels: impl IntoIterator<Item = (N, V)>,
    ) -> ConnectResult {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        ConnectResult { labels: Some(labels.collect()), ..self }
    }

    /// Adds a server-side subscription.
    #[must_use]
    pub fn subscribe(self, channel: impl Into<String>) -> ConnectResult {
        self.subscribe_with(channel, SubscribeResult::default())
    }

    /// Adds a server-side subscription with options. It does not expire: `expire_at` is ignored.
    #[must_use]
    pub fn subscribe_with(
        mut self,
        channel: impl Into<String>,
        result: SubscribeResult,
    ) -> ConnectResult {
        self.subs.insert(channel.into(), SubscribeOptions::from(result));
        self
    }

    /// Sets the Unix time in seconds at which the connection must be refreshed.
    #[must_use]
    pub fn expire_at(self, unix_s: u64) -> ConnectResult {
        ConnectResult { expire_at: unix_s, ..self }
    }
}

impl SubscribeResult {
    /// Sets the info of the subscription that others see in addition to that of the connection.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> SubscribeResult {
        SubscribeResult { info: raw(info), ..self }
    }

    /// Sets the data of the reply to the client's subscribe.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> SubscribeResult {
        SubscribeResult { data: raw(data), ..self }
    }

    /// Sets the Unix time in seconds at which the subscription must be refreshed.
    #[must_use]
    pub fn expire_at(self, unix_s: u64) -> SubscribeResult {
        SubscribeResult { expire_at: unix_s, ..self }
    }

    /// Overrides options of the channel.
    #[must_use]
    pub fn overrides(self, overrides: OptionsOverride) -> SubscribeResult {
        SubscribeResult { overrides, ..self }
    }
}

impl PublishResult {
    /// Replaces the data that the client has sent.
    #[must_use]
    pub fn data(self, data: impl Into<Value>) -> PublishResult {
        PublishResult { data: raw(data), ..self }
    }

    /// Sets the tags of the publication.
    #[must_use]
    pub fn tags(self, tags: BTreeMap<String, String>) -> PublishResult {
        PublishResult { tags, ..self }
    }

    /// Excludes the publication from the history.
    #[must_use]
    pub fn skip_history(self) -> PublishResult {
        PublishResult { skip_history: true, ..self }
    }

    /// Sets the idempotency key: publications with the same key within some minutes are published once.
    #[must_use]
    pub fn idempotency_key(self, key: impl Into<String>) -> PublishResult {
        PublishResult { idempotency_key: key.into(), ..self }
    }
}

impl RpcResult {
    /// Returns this data to the caller.
    pub fn data(data: impl Into<Value>) -> RpcResult {
        RpcResult { data: raw(data), ..RpcResult::default() }
    }
}

impl RefreshResult {
    /// Extends it until this Unix time in seconds.
    pub fn until(unix_s: u64) -> RefreshResult {
        RefreshResult { expire_at: unix_s, ..RefreshResult::default() }
    }

    /// Ends it now.
    pub fn expired() -> RefreshResult {
        RefreshResult { expired: true, ..RefreshResult::default() }
    }

    /// Sets the info of the connection that others see from now on.
    #[must_use]
    pub fn info(self, info: impl Into<Value>) -> RefreshResult {
        RefreshResult { info: raw(info), ..self }
    }
}
