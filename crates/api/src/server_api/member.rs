//! The known members of each request, taken from the types that deserialize it.

use serde::de::value::Error as ValueError;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

use super::body::{
    BoolValue, BroadcastBody, DisconnectBody, DisconnectObject, HistoryBody, InboxCancelBody,
    InboxPublishBody, InfoBody, OverrideBody, PositionBody, PublishBody, RefreshBody, SendBody,
    SubscribeBody, UnsubscribeBody,
};
use super::method::Method;
use super::request::{
    AckRequest, BlockUserRequest, ChannelRequest, ChannelsRequest, ConnectionsRequest,
    InvalidateUserTokensRequest, RevokeTokenRequest, UnblockUserRequest, UnreadRequest,
};

/// Names of members.
pub type Members = &'static [&'static str];

/// Returns the known members of a method's request.
pub(super) fn members(method: Method) -> Members {
    match method {
        Method::Publish => of::<PublishBody<'_>>(),
        Method::Broadcast => of::<BroadcastBody<'_>>(),
        Method::InboxPublish => of::<InboxPublishBody<'_>>(),
        Method::InboxCancel => of::<InboxCancelBody<'_>>(),
        Method::Subscribe => of::<SubscribeBody<'_>>(),
        Method::Unsubscribe => of::<UnsubscribeBody<'_>>(),
        Method::Disconnect => of::<DisconnectBody<'_>>(),
        Method::Refresh => of::<RefreshBody<'_>>(),
        Method::Send => of::<SendBody<'_>>(),
        Method::Presence | Method::PresenceStats | Method::HistoryRemove => {
            of::<ChannelRequest<'_>>()
        }
        Method::History => of::<HistoryBody<'_>>(),
        Method::Ack => of::<AckRequest<'_>>(),
        Method::Unread => of::<UnreadRequest<'_>>(),
        Method::RevokeToken => of::<RevokeTokenRequest<'_>>(),
        Method::InvalidateUserTokens => of::<InvalidateUserTokensRequest<'_>>(),
        Method::BlockUser => of::<BlockUserRequest<'_>>(),
        Method::UnblockUser => of::<UnblockUserRequest<'_>>(),
        Method::Connections => of::<ConnectionsRequest<'_>>(),
        Method::Channels => of::<ChannelsRequest<'_>>(),
        Method::Info => of::<InfoBody>(),
    }
}

/// Returns the known members of the nested object `name`; `None` if it holds the caller's own data.
pub(super) fn members_within(name: &str) -> Option<Members> {
    Some(match name {
        "since" | "recover_since" => of::<PositionBody<'_>>(),
        "disconnect" => of::<DisconnectObject<'_>>(),
        "override" => of::<OverrideBody>(),
        name if of::<OverrideBody>().contains(&name) => of::<BoolValue>(),
        _ => return None,
    })
}

/// Returns the field names that a struct deserializes.
pub fn of<'de, T: Deserialize<'de>>() -> Members {
    let mut members: Members = &[];
    // `Names` records the field names and always fails.
    let _ = T::deserialize(Names(&mut members));
    members
}

/// A deserializer without input that records the field names a struct requests.
struct Names<'a>(&'a mut Members);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: Members,
        _: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = fields;
        Err(ValueError::custom("there is no value"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("there is no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
