//! Why a client may do something in a channel, or may not: the story of a decision, by those who decide.

use std::borrow::Cow;

use dunlin_config::PRIVATE_PREFIX;
use dunlin_hub::SubscribeOptions;
use dunlin_hub::tenant::bare;
use dunlin_protocol::centrifuge::{CommandError, ErrorCode};
use serde_json::{Value, json};

use super::key_wait::Unverified;
use super::permission::{Basis, Claim, Permission, Source, expression, is_user_limited, proxy};
use super::sessions::Sessions;
use super::turn::Core;
use crate::auth::Identity;
use crate::message::worker::ExplainQuestion;

/// What a step of a decision comes to.
#[derive(Clone, Copy)]
enum Outcome {
    /// It permits; what follows is not asked.
    Permits,
    /// It leaves the decision to the next.
    Passes,
    /// It refuses.
    Refuses,
}

/// The steps of a decision, in order.
#[derive(Default)]
struct Story(Vec<Value>);

impl Story {
    fn step(&mut self, step: &str, outcome: Outcome, detail: impl Into<String>) {
        let outcome = match outcome {
            Outcome::Permits => "permits",
            Outcome::Passes => "passes",
            Outcome::Refuses => "refuses",
        };
        self.0.push(json!({ "step": step, "outcome": outcome, "detail": detail.into() }));
    }

    /// Ends with an answer: `by` permits it.
    fn permitted(self, by: &str) -> Value {
        json!({ "permitted": true, "by": by, "steps": self.0 })
    }

    fn refused(mut self, step: &str, error: &CommandError) -> Value {
        let (code, message) = match error {
            CommandError::Reply(error) => (error.code, error.message.to_string()),
            CommandError::Disconnect(why) => (u32::from(why.code), why.reason.to_string()),
        };
        self.step(step, Outcome::Refuses, message.as_str());
        json!({ "permitted": false, "code": code, "reason": message, "steps": self.0 })
    }
}

impl Permission {
    /// Returns the permission of this name.
    pub(super) fn named(name: &str) -> Option<Permission> {
        [Permission::Subscribe, Permission::Publish, Permission::History, Permission::Presence]
            .into_iter()
            .find(|permission| permission.name() == name)
    }

    /// Returns the beginning of the keys that grant it.
    fn keys(self) -> &'static str {
        match self {
            Permission::Subscribe => "allow_subscribe",
            Permission::Publish => "allow_publish",
            Permission::History => "allow_history",
            Permission::Presence => "allow_presence",
        }
    }
}

impl Sessions {
    /// Tells how the question of a client that is about to come would be decided. Asks no backend.
    pub(super) fn explain(&self, core: &Core<'_>, question: &ExplainQuestion) -> Value {
        let mut story = Story::default();
        let Some(permission) = Permission::named(&question.action) else {
            return json!({ "error": "action: is subscribe, publish, history or presence" });
        };
        let identity = match self.requester(core, question, &mut story) {
            Ok(identity) => identity,
            Err(error) => return story.refused("token", &error),
        };
        let mut channel = Cow::Borrowed(&*question.channel);
        if let Err(error) = core.qualify(&identity.user, &mut channel) {
            return story.refused("channel", &CommandError::Reply(error));
        }
        let claim = match self.claim_of(core, &identity, &channel) {
            Ok(claim) => claim,
            Err(error) => return story.refused("namespace", &CommandError::Reply(error)),
        };
        story.step(
            "namespace",
            Outcome::Passes,
            match bare(&channel).split_once(':') {
                Some((name, _)) if core.settings.config.channel.namespaces.contains_key(name) => {
                    format!("channel.namespaces.{name}")
                }
                _ => "channel.without_namespace".to_owned(),
            },
        );
        if self.has_authorizer {
            story.step(
                "program",
                Outcome::Passes,
                "the program that embeds the server is not asked here",
            );
        }
        if permission == Permission::Subscribe {
            if identity.subscriptions.contains_key(bare(&channel)) {
                story.step(
                    "connection token",
                    Outcome::Permits,
                    "it names the channel: its client is subscribed from the beginning",
                );
                return story.permitted("connection token");
            }
            if !question.subscription_token.is_empty() {
                let (user, token) = (&identity.user, &question.subscription_token);
                return match self.verify_subscription(core, None, user, &channel, token) {
                    Ok((given, token)) => {
                        let source = Source::Token(&given.options, token);
                        match claim.entitle(source, SubscribeOptions::default()) {
                            Ok(entitlement) => {
                                story.step("subscription token", Outcome::Permits, "it is valid");
                                story.permitted(entitlement.by)
                            }
                            Err(error) => {
                                story.refused("subscription token", &CommandError::Reply(error))
                            }
                        }
                    }
                    Err(Unverified::Refused(error)) => story.refused("subscription token", &error),
                    Err(Unverified::KeyPending) => {
                        story.refused("subscription token", &key_pending())
                    }
                };
            }
        }
        claim.tell(permission, question.subscribed, story)
    }

    /// Returns who asks: by the token, or as the question says.
    fn requester(
        &self,
        core: &Core<'_>,
        question: &ExplainQuestion,
        story: &mut Story,
    ) -> Result<Identity, CommandError> {
        if let Some(claims) = &question.claims {
            let identity = Identity::of_claims(claims)
                .map_err(|error| CommandError::Reply(ErrorCode::BadRequest.with_reason(error)))?;
            story.step(
                "token",
                Outcome::Passes,
                format!("none; taken for user {:?}", identity.user),
            );
            return Ok(identity);
        }
        match self.identify(core, &question.token) {
            Ok(identity) => {
                let detail = match question.token.is_empty() {
                    true => "none; client.anonymous lets clients without one in".to_owned(),
                    false => format!("it is valid, of user {:?}", bare(&identity.user)),
                };
                story.step("token", Outcome::Passes, detail);
                self.check_barred(core, &identity)?;
                Ok(identity)
            }
            Err(Unverified::Refused(error)) => Err(error),
            Err(Unverified::KeyPending) => Err(key_pending()),
        }
    }
}

fn key_pending() -> CommandError {
    let why = "the key of the token is not fetched yet; ask again in a moment";
    CommandError::Reply(ErrorCode::Internal.with_reason(why))
}

impl Claim<'_> {
    /// Tells how [`may`](Self::may) decides, or who decides in its place.
    fn tell(&self, permission: Permission, subscribed: bool, mut story: Story) -> Value {
        let (namespace, channel) = (self.namespace, self.channel);
        let decided = self.may(permission, subscribed);
        let whom = if bare(self.subject.user).is_empty() { "anonymous" } else { "client" };
        let asked = proxy(&namespace.rules, channel, permission).filter(|_| {
            permission != Permission::Subscribe || !bare(channel).starts_with(PRIVATE_PREFIX)
        });
        let is_expressed = self.is_expressed(permission, subscribed);
        let by_rules = match permission {
            Permission::Subscribe if is_user_limited(&namespace.rules, channel) => {
                "the users behind the # of its name".to_owned()
            }
            Permission::Subscribe => format!("{}_for_{whom}", permission.keys()),
            _ => format!("{0}_for_{whom} or {0}_for_subscriber", permission.keys()),
        };
        match (asked, self.permits_by_keys(permission, subscribed)) {
            (Some(proxy), _) => {
                let detail = format!("not asked: the proxy {proxy:?} decides in their place");
                story.step("rules", Outcome::Passes, detail);
            }
            (None, true) => story.step("rules", Outcome::Permits, by_rules),
            (None, false) => story.step("rules", Outcome::Passes, format!("not by {by_rules}")),
        }
        let is_by_rules = matches!(decided, Ok(Basis::Rules));
        if !is_by_rules {
            let capable = self.capable.contains(permission.capability());
            let outcome =
                if capable && asked.is_none() { Outcome::Permits } else { Outcome::Passes };
            let detail = if capable {
                "`caps` of the token has it"
            } else {
                "`caps` of the token has it not"
            };
            story.step("capability", outcome, detail);
        }
        if !matches!(decided, Ok(Basis::Rules | Basis::Capability)) || asked.is_some() {
            let detail = match expression(namespace, channel, permission) {
                None => format!("{} is not set", permission.key()),
                Some(_) if is_expressed => format!("{} is true for this client", permission.key()),
                Some(_) => format!("{} is not true for this client", permission.key()),
            };
            let outcome = if is_expressed { Outcome::Permits } else { Outcome::Passes };
            story.step("expression", outcome, detail);
        }
        match (asked, decided) {
            (Some(proxy), _) if !is_expressed => {
                let detail = format!(
                    "the proxy {proxy:?} decides when the client asks; it is not asked here"
                );
                story.step("proxy", Outcome::Passes, detail);
                json!({ "permitted": null, "by": format!("proxy {proxy}"), "steps": story.0 })
            }
            (_, Ok(basis)) => story.permitted(basis.name()),
            (_, Err(error)) => story.refused("decision", &CommandError::Reply(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_config::{ChannelOptions as Rules, Config, Proxy, Snapshot};

    use super::*;
    use crate::auth::Allow;
    use crate::state::settings::Settings;
    use crate::worker::permission::{Device, Subject};

    fn story(change: impl FnOnce(&mut Rules), capable: Allow, permission: Permission) -> Value {
        let mut rules = Rules::default();
        change(&mut rules);
        let mut config = Config::development();
        config.channel.namespaces.insert("x", rules);
        let endpoint = "http://127.0.0.1:1/subscribe".into();
        config.proxies.insert("auth", Proxy { endpoint, ..Proxy::default() });
        let settings = Settings::new(Arc::new(Snapshot::new(1, config).unwrap()));
        let namespace = settings.namespace("x:a").unwrap();
        let subject = Subject { user: "ada", meta: None, device: Device::default() };
        let claim = Claim { namespace, channel: "x:a", subject, capable };
        let story = claim.tell(permission, false, Story::default());
        // The story ends as the decision does.
        if proxy(&namespace.rules, "x:a", permission).is_none() {
            assert_eq!(story["permitted"], claim.may(permission, false).is_ok(), "{story}");
        }
        story
    }

    #[test]
    fn a_story_names_what_decides_and_ends_as_the_decision_does() {
        let none = Allow::NONE;
        let by_rule = story(|of| of.allow_subscribe_for_client = true, none, Permission::Subscribe);
        assert_eq!(by_rule["by"], "rules");
        let refused = story(|_| {}, none, Permission::Subscribe);
        assert_eq!(refused["code"], 103);
        assert!(
            refused["reason"].as_str().unwrap().contains("allow_subscribe_for_client"),
            "{refused}"
        );
        let capable = story(|_| {}, Allow::SUBSCRIBE, Permission::Subscribe);
        assert_eq!(capable["by"], "capability of the token");
        let expression = Some("user == 'ada'".into());
        let expressed = story(|of| of.publish_cel = expression, none, Permission::Publish);
        assert_eq!(expressed["by"], "expression", "{expressed}");
        let off = story(|_| {}, none, Permission::History);
        assert_eq!(off["code"], 108, "{off}");
        let proxied =
            story(|of| of.subscribe_proxy = Some("auth".into()), none, Permission::Subscribe);
        assert_eq!((&proxied["permitted"], &proxied["by"]), (&Value::Null, &"proxy auth".into()));
    }
}
