//! The matrix of sources, rules and capabilities, against what each says alone.

use std::sync::Arc;

use dunlin_config::{Config, Snapshot};

use super::*;
use crate::auth::revocation::TokenId;

const CAPABILITIES: [Allow; 4] = [Allow::NONE, Allow::SUBSCRIBE, Allow::HISTORY, Allow::PRESENCE];

fn settings(change: impl FnOnce(&mut Rules)) -> Settings {
    let mut rules = Rules {
        history_size: 10,
        history_ttl_ms: 60_000,
        presence: true,
        join_leave: true,
        allow_subscribe_for_client: false,
        allow_subscribe_for_anonymous: false,
        allow_history_for_subscriber: false,
        allow_history_for_client: false,
        allow_history_for_anonymous: false,
        allow_presence_for_subscriber: false,
        allow_presence_for_client: false,
        allow_presence_for_anonymous: false,
        ..Rules::default()
    };
    change(&mut rules);
    let mut config = Config::development();
    config.channel.namespaces.insert("x", rules);
    Settings::new(Arc::new(Snapshot::new(1, config).unwrap()))
}

fn claim(settings: &Settings, capable: Allow) -> Claim<'_> {
    let namespace = settings.namespace("x:a").unwrap();
    Claim {
        namespace,
        channel: "x:a",
        subject: Subject { user: "ada", meta: None, device: Device::default() },
        capable,
    }
}

fn asked() -> SubscribeOptions {
    SubscribeOptions {
        recover: Some(StreamPosition::default()),
        positioned: true,
        recoverable: true,
        join_leave: true,
        ..SubscribeOptions::default()
    }
}

fn of_token(allow: Allow) -> GrantToken {
    let facts = TokenFacts::new(TokenId(1), None, Some(9));
    GrantToken { facts, key: Some(1), allow }
}

#[test]
fn each_source_gives_what_it_may_under_each_rule_and_capability() {
    let given = auth::SubscribeOptions::default();
    let overrides = OptionsOverride::default();
    for bits in 0..16_u8 {
        let [lets_in, history, presence, recovers] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let settings = settings(|rules| {
            rules.allow_subscribe_for_client = lets_in;
            rules.allow_history_for_subscriber = history;
            rules.allow_presence_for_subscriber = presence;
            rules.recover = recovers;
        });
        for (capable, allow) in CAPABILITIES.iter().flat_map(|c| CAPABILITIES.map(|a| (*c, a))) {
            let claim = claim(&settings, capable);
            let facts = TokenFacts::of_proxy(1, None);
            // Each with what the source says beside the rules, and whether the subscription is its own decision.
            for (name, source, says, decides) in [
                ("client", Source::Client, Allow::NONE, false),
                ("fallback", Source::Fallback, Allow::NONE, false),
                ("token", Source::Token(&given, of_token(allow)), allow, true),
                ("connection", Source::Connection(&given), Allow::NONE, true),
                ("decision", Source::Decision(&given, facts), Allow::NONE, true),
                ("api", Source::Api(&overrides), Allow::NONE, true),
                ("app", Source::App, Allow::NONE, true),
            ] {
                let case = format!("{name}, rules {bits:04b}, {capable:?}, {allow:?}");
                let is_capable = capable.contains(Allow::SUBSCRIBE);
                let is_let_in = decides || lets_in || name == "client" && is_capable;
                let entitled = claim.entitle(source, asked());
                assert_eq!(entitled.is_ok(), is_let_in, "{case}");
                let Ok(Entitlement { subscribe, grant, .. }) = entitled else { continue };
                assert_eq!(subscribe.granted, decides || !lets_in && is_capable, "{case}");
                assert_eq!(subscribe.of_connection, name == "connection", "{case}");
                // The backend by the server API, and an app by its signature, are asked for nothing else.
                let is_free = matches!(name, "api" | "app");
                let may = capable.union(says);
                let reads = is_free || history || recovers || may.contains(Allow::HISTORY);
                assert_eq!(subscribe.recoverable, reads, "{case}");
                assert_eq!(subscribe.positioned, reads, "{case}");
                let barred = subscribe.recover == Some(StreamPosition::BARRED);
                assert_eq!(barred, !reads, "{case}");
                let sees = is_free || presence || may.contains(Allow::PRESENCE);
                assert_eq!(subscribe.join_leave, sees, "{case}");
                let is_kept = match name {
                    "client" => !lets_in,
                    "token" => true,
                    "decision" => capable.contains(Allow::PRESENCE),
                    _ => false,
                };
                assert_eq!(grant.is_some(), is_kept, "{case}");
            }
        }
    }
}

#[test]
fn subscription_stands_as_long_as_what_it_rests_on() {
    let given = auth::SubscribeOptions::default();
    let (shut, open) =
        (settings(|_| {}), settings(|rules| rules.allow_subscribe_for_client = true));
    let stands = |settings: &Settings, source: Source<'_>, later: Allow, named: Option<&[&str]>| {
        let first = claim(settings, Allow::SUBSCRIBE.union(Allow::PRESENCE));
        let Entitlement { subscribe, grant, .. } = first.entitle(source, asked()).unwrap();
        let SubscribeOptions { granted, of_connection, .. } = subscribe;
        let basis = SubscriptionBasis { granted, of_connection };
        let named = named.map(|names| -> NamedChannels {
            names.iter().map(|&name| (name.to_owned(), given.clone())).collect()
        });
        let rights = claim(settings, later).standing(basis, grant.as_ref(), named.as_ref());
        let joins = rights.join_leave || rights.join_leave_grant;
        (granted && rights.grant || rights.subscription, joins)
    };
    let all = Allow::SUBSCRIBE.union(Allow::PRESENCE);
    let token = Source::Token(&given, of_token(Allow::PRESENCE));
    for (settings, source, later, named, expected) in [
        (&shut, Source::Client, all, None, (true, true)),
        (&shut, Source::Client, Allow::SUBSCRIBE, None, (true, false)),
        (&shut, Source::Client, Allow::NONE, None, (false, false)),
        (&open, Source::Client, Allow::NONE, None, (true, false)),
        (&shut, token, Allow::NONE, None, (true, true)),
        (&shut, token, Allow::NONE, Some(&[][..]), (true, true)),
        (&shut, Source::Connection(&given), Allow::NONE, Some(&["x:a"][..]), (true, false)),
        (&shut, Source::Connection(&given), all, Some(&["x:a"][..]), (true, true)),
        (&open, Source::Connection(&given), all, Some(&["x:b"][..]), (false, false)),
        (&shut, Source::Connection(&given), Allow::NONE, None, (true, true)),
        (
            &shut,
            Source::Decision(&given, TokenFacts::of_proxy(1, None)),
            Allow::NONE,
            Some(&[][..]),
            (true, false),
        ),
        (&shut, Source::Api(&OptionsOverride::default()), Allow::NONE, Some(&[][..]), (true, true)),
    ] {
        let outcome = stands(settings, source, later, named);
        assert_eq!(outcome, expected, "{later:?}, {named:?}");
    }
}
