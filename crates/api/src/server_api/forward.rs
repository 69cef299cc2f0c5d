//! Commands written as bodies again, to be forwarded to other nodes.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dunlin_hub::code::reconnects;
use dunlin_hub::{InvalidSessionId, PayloadFormat, SessionId};
use dunlin_protocol::json::Object;
use serde::{Deserialize, Serialize};

use super::request::{
    ConnectionsRequest, DisconnectRequest, Request, SendRequest, SubscribeRequest, Target,
};
use dunlin_access::limits::user_connections::is_somebody;

/// The user that a command is about. A node without sessions of this user answers at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutUser<'a> {
    /// The user as in sessions, never empty.
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    /// Every node also bars the tokens issued to the user until now.
    pub bars: bool,
}

impl Request<'_> {
    /// Returns the body of a command that concerns every node, and the node of its target if it names a single session.
    /// `None` for a command about a channel, which goes to the channel.
    ///
    /// `now_s`: the Unix time in seconds that all nodes take as now.
    pub fn for_cluster(&self, now_s: u64) -> Option<(Vec<u8>, Option<u16>)> {
        let mut body = Vec::new();
        let mut object = Object::begin(&mut body);
        let node = match self {
            Request::Subscribe(of) => of.write(&mut object),
            Request::Send(of) => of.write(&mut object),
            Request::Unsubscribe(of) => {
                let node = target(&mut object, &of.target);
                object.string("channel", &of.channel);
                node
            }
            Request::Disconnect(of) => of.write(&mut object),
            Request::Refresh(of) => {
                let node = target(&mut object, &of.target);
                object.flag("expired", of.expired).integer("expire_at", of.expire_at_s);
                raw(&mut object, "info", of.info.as_ref().map(|json| json.as_bytes()));
                node
            }
            // A malformed session id matches no session on any node.
            Request::Connections(of) => of.write(&mut object).ok()?,
            of => {
                of.write_for_all(&mut object, now_s)?;
                None
            }
        };
        object.end();
        Some((body, node))
    }

    /// Writes a command without a target session. `None` if it does not concern every node.
    fn write_for_all(&self, object: &mut Object<'_>, now_s: u64) -> Option<()> {
        match self {
            Request::RevokeToken(of) => {
                object.string("uid", &of.uid).integer("expire_at", of.expire_at);
            }
            Request::InvalidateUserTokens(of) => {
                let before = if of.issued_before == 0 { now_s + 1 } else { of.issued_before };
                object.string("user", &of.user).integer("issued_before", before);
                object.integer("expire_at", of.expire_at);
            }
            Request::BlockUser(of) => {
                object.string("user", &of.user).integer("expire_at", of.expire_at);
            }
            Request::UnblockUser(of) => {
                object.string("user", &of.user);
            }
            Request::Channels(of) => {
                object.string("pattern", &of.pattern);
                // Written only if set, for nodes that do not know them.
                if of.without_subscribers {
                    object.flag("without_subscribers", true);
                }
                if of.limit > 0 {
                    object.integer("limit", of.limit).string("cursor", &of.cursor);
                }
            }
            Request::Info => {}
            _ => return None,
        }
        Some(())
    }

    /// Returns the user, for a command that only concerns sessions of one user. A node without sessions of the user only
    /// has to bar the user's tokens, if at all.
    pub fn user(&self) -> Option<AboutUser<'_>> {
        let of_target = |target: &Target<'_>| {
            !target.all_users && target.client.is_empty() && target.session.is_empty()
        };
        let (user, bars) = match self {
            Request::Disconnect(of) if of_target(&of.target) => {
                let is_whole = of.target.label_filter.is_none() && of.whitelist.is_empty();
                (&of.target.user, is_whole && !reconnects(u32::from(of.code)))
            }
            Request::Subscribe(of) if of_target(&of.target) => (&of.target.user, false),
            Request::Unsubscribe(of) if of_target(&of.target) => (&of.target.user, false),
            Request::Refresh(of) if of_target(&of.target) => (&of.target.user, false),
            Request::Send(of) if of_target(&of.target) => (&of.target.user, false),
            Request::Connections(of) if of.client.is_empty() => (&of.user, false),
            _ => return None,
        };
        is_somebody(user).then(|| AboutUser { user: Cow::Borrowed(user), bars })
    }
}

impl SubscribeRequest<'_> {
    fn write(&self, object: &mut Object<'_>) -> Option<u16> {
        let node = target(object, &self.target);
        object.string("channel", &self.channel).integer("expire_at", self.expire_at_s);
        raw(object, "info", self.info.as_ref().map(|json| json.as_bytes()));
        raw(object, "data", self.data.as_ref().map(|json| json.as_bytes()));
        if let Some(since) = self.recover_since {
            let mut position = Object::begin(object.key("recover_since"));
            position.integer("offset", since.offset);
            position.string("epoch", &since.epoch.to_string());
            position.end();
        }
        let mut options = Object::begin(object.key("override"));
        for (key, value) in [
            ("presence", self.options.presence),
            ("join_leave", self.options.join_leave),
            ("force_push_join_leave", self.options.force_push_join_leave),
            ("force_positioning", self.options.force_positioning),
            ("force_recovery", self.options.force_recovery),
        ] {
            if let Some(value) = value {
                let mut option = Object::begin(options.key(key));
                option.flag("value", value);
                option.end();
            }
        }
        options.end();
        node
    }
}

impl SendRequest<'_> {
    fn write(&self, object: &mut Object<'_>) -> Option<u16> {
        let node = target(object, &self.target);
        object.string("device", &self.device);
        match self.data.format() {
            PayloadFormat::Json => object.raw("data", self.data.as_bytes()),
            PayloadFormat::Binary => {
                object.string("b64data", &BASE64_STANDARD.encode(self.data.as_bytes()))
            }
        };
        node
    }
}

impl DisconnectRequest<'_> {
    fn write(&self, object: &mut Object<'_>) -> Option<u16> {
        let node = target(object, &self.target);
        let list = object.key("whitelist");
        list.push(b'[');
        for (at, id) in self.whitelist.iter().enumerate() {
            list.extend_from_slice(if at > 0 { b",\"" } else { b"\"" });
            list.extend_from_slice(id.to_string().as_bytes());
            list.push(b'"');
        }
        list.push(b']');
        let mut disconnect = Object::begin(object.key("disconnect"));
        disconnect.integer("code", self.code).string("reason", &self.reason);
        disconnect.end();
        node
    }
}

impl ConnectionsRequest<'_> {
    /// Writes the request. Returns the node of the session if it names one.
    ///
    /// # Errors
    /// The session id is malformed.
    fn write(&self, object: &mut Object<'_>) -> Result<Option<u16>, InvalidSessionId> {
        let session = (!self.client.is_empty()).then(|| self.client.parse()).transpose()?;
        object.string("user", &self.user).string("client", &self.client);
        object.string("address", &self.address).string("channel", &self.channel);
        raw(object, "info", self.info.as_ref().map(|json| json.as_bytes()));
        // Written only if set, for nodes that do not know them.
        if !self.transport.is_empty() {
            object.string("transport", &self.transport);
        }
        if self.age_min_s > 0 {
            object.integer("age_min_s", self.age_min_s);
        }
        if self.outbox_bytes_min > 0 {
            object.integer("outbox_bytes_min", self.outbox_bytes_min);
        }
        if let Some(filter) = &self.label_filter {
            filter.write(object.key("label_filter"));
        }
        object.integer("limit", self.limit).string("cursor", &self.cursor);
        Ok(session.map(SessionId::node))
    }
}

fn raw(object: &mut Object<'_>, key: &str, json: Option<&[u8]>) {
    if let Some(json) = json {
        object.raw(key, json);
    }
}

/// Writes the target of a command. Returns the node of the target session if the target has a valid session id.
fn target(object: &mut Object<'_>, target: &Target<'_>) -> Option<u16> {
    object.string("user", &target.user);
    object.string("client", &target.client);
    object.string("session", &target.session);
    // Written only if set: a node that does not know these fields rejects the command, because without them it would
    // affect other sessions.
    if target.all_users {
        object.flag("all_users", true);
    }
    if let Some(filter) = &target.label_filter {
        filter.write(object.key("label_filter"));
    }
    target.client.parse().ok().map(SessionId::node)
}

#[cfg(test)]
mod tests {
    use dunlin_hub::tenant;

    use super::super::Method;
    use super::*;

    #[test]
    fn a_command_that_was_passed_on_is_the_same_command() {
        let client = SessionId::pack(77, 1, 2, 3, 4);
        let target = format!(r#""user":"ann \"x\"","client":"{client}""#);
        for (method, body) in [
            (
                Method::Subscribe,
                format!(
                    r#"{{{target},"channel":"chat:1","expire_at":4000000000,"info":{{"a":[1]}},"data":"d","recover_since":{{"offset":7,"epoch":"k3"}},"override":{{"presence":{{"value":true}},"force_recovery":{{"value":false}}}}}}"#
                ),
            ),
            (Method::Send, format!(r#"{{{target},"device":"d","data":{{"a":1}}}}"#)),
            (Method::Send, format!(r#"{{{target},"b64data":"AAE="}}"#)),
            (Method::Unsubscribe, format!(r#"{{{target},"channel":"chat:1"}}"#)),
            (
                Method::Disconnect,
                format!(
                    r#"{{{target},"whitelist":["1","9007199254740991"],"disconnect":{{"code":4001,"reason":"so"}}}}"#
                ),
            ),
            (Method::Refresh, format!(r#"{{{target},"expired":true}}"#)),
            (Method::Refresh, format!(r#"{{{target},"expire_at":7,"info":[1]}}"#)),
            (
                Method::Disconnect,
                r#"{"all_users":true,"label_filter":{"op":"not","nodes":[{"key":"a \"b\"","cmp":"in","vals":["","c"]}]}}"#
                    .to_owned(),
            ),
            (
                Method::Unsubscribe,
                format!(
                    r#"{{{target},"channel":"a","label_filter":{{"key":"a","cmp":"gte","val":"-7"}}}}"#
                ),
            ),
            (Method::RevokeToken, r#"{"uid":"j","expire_at":9}"#.to_owned()),
            (Method::InvalidateUserTokens, r#"{"user":"u","issued_before":5}"#.to_owned()),
            (Method::BlockUser, r#"{"user":"u","expire_at":5}"#.to_owned()),
            (Method::UnblockUser, r#"{"user":"u"}"#.to_owned()),
            (
                Method::Connections,
                r#"{"user":"u","address":"10.0.0.1","channel":"a","info":{"a":1},"transport":"sse","age_min_s":60,"outbox_bytes_min":9,"limit":7,"cursor":"3:0.0","label_filter":{"key":"a","cmp":"eq","val":"7"}}"#
                    .to_owned(),
            ),
            (Method::Connections, format!(r#"{{"client":"{client}"}}"#)),
            (Method::Channels, r#"{"pattern":"a*"}"#.to_owned()),
            (
                Method::Channels,
                r#"{"pattern":"a*","limit":5,"cursor":"3:0.0","without_subscribers":true}"#
                    .to_owned(),
            ),
            (Method::Info, String::new()),
        ] {
            let request = Request::parse(method, body.as_bytes()).unwrap();
            let (again, node) = request.for_cluster(100).unwrap();
            assert_eq!(Request::parse(method, &again).unwrap(), request, "{method:?}");
            assert_eq!(node, body.contains("client").then_some(77));
        }
        let now = Request::parse(Method::InvalidateUserTokens, br#"{"user":"u"}"#).unwrap();
        let (body, _) = now.for_cluster(100).unwrap();
        assert!(String::from_utf8_lossy(&body).contains("\"issued_before\":101"));
        // All users of a tenant.
        let mut all = Request::parse(Method::Refresh, br#"{"all_users":true}"#).unwrap();
        let qualified = |name: &mut Cow<'_, str>| {
            *name = Cow::Owned(tenant::qualify("acme", name));
            Ok(())
        };
        all.names(qualified).unwrap();
        let (body, _) = all.for_cluster(100).unwrap();
        assert_eq!(Request::parse(Method::Refresh, &body).unwrap(), all);
        // Unset fields are omitted, so that a node that does not know them accepts all other commands.
        let (body, _) = Request::parse(Method::Refresh, br#"{"user":"u","all_users":true}"#)
            .unwrap()
            .for_cluster(100)
            .unwrap();
        let body = String::from_utf8_lossy(&body);
        assert!(!body.contains("all_users") && !body.contains("label_filter"), "{body}");
        let about = |method, body: &str| {
            let request = Request::parse(method, body.as_bytes()).unwrap();
            request.user().map(|about| (about.user.into_owned(), about.bars))
        };
        let ann = |bars| Some(("ann".to_owned(), bars));
        assert_eq!(about(Method::Disconnect, r#"{"user":"ann"}"#), ann(true));
        for body in [
            r#"{"user":"ann","disconnect":{"code":3000,"reason":"again"}}"#,
            r#"{"user":"ann","whitelist":["1"]}"#,
            r#"{"user":"ann","label_filter":{"key":"a","cmp":"ex"}}"#,
        ] {
            assert_eq!(about(Method::Disconnect, body), ann(false), "{body}");
        }
        assert_eq!(about(Method::Refresh, r#"{"user":"ann"}"#), ann(false));
        assert_eq!(about(Method::Connections, r#"{"user":"ann"}"#), ann(false));
        assert_eq!(about(Method::Connections, "{}"), None);
        assert_eq!(about(Method::Refresh, r#"{"all_users":true}"#), None);
        assert_eq!(about(Method::Refresh, &format!(r#"{{"client":"{client}"}}"#)), None);
        let nobody = Request::parse(Method::Connections, br#"{"client":"x"}"#).unwrap();
        assert_eq!(nobody.for_cluster(0), None);
        let publish = Request::parse(Method::Publish, br#"{"channel":"a","data":1}"#).unwrap();
        assert_eq!(publish.for_cluster(0), None);
    }
}
