//! Who receives the secrets of the settings, and which change would send one to somebody else.

use crate::{
    ApnsConfig, Config, Engine, FcmConfig, Hook, Otlp, Proxy, Route, Upstream, VapidConfig,
};

/// Whether `after` sends a secret that is set, or what is signed with it, where `before` does not send it.
///
/// Who may not read secrets may not have them sent to itself either: to another address, without TLS, or to a peer that
/// another authority vouches for. Secrets that are set are those of `before`, for setting one takes the same permission.
pub fn sends_secret_elsewhere(before: &Config, after: &Config) -> bool {
    to_backends(before, after)
        || otlp(&before.otlp, &after.otlp)
        || after.engines.changes_from(&before.engines).any(|(_, before, after)| {
            after.is_some_and(|after| before.is_none_or(|before| engine(before, after)))
        })
        || after.push.apns.changes_from(&before.push.apns).any(|(_, before, after)| {
            after.is_some_and(|after| before.is_none_or(|before| apns(before, after)))
        })
        || after.push.fcm.changes_from(&before.push.fcm).any(|(_, before, after)| {
            after.is_some_and(|after| before.is_none_or(|before| fcm(before, after)))
        })
        || after.push.vapid.changes_from(&before.push.vapid).any(|(_, before, after)| {
            after.is_some_and(|after| before.is_none_or(|before| vapid(before, after)))
        })
}

/// Proxies send their headers, and hooks what they sign, by themselves or to the members of an upstream.
fn to_backends(before: &Config, after: &Config) -> bool {
    let none = (Proxy::default(), Hook::default());
    let proxies = after.proxies.changes_from(&before.proxies);
    let hooks = after.webhooks.hooks.changes_from(&before.webhooks.hooks);
    let upstreams = after.webhooks.upstreams.changes_from(&before.webhooks.upstreams);
    let mut reaching = upstreams.filter_map(|(name, before, after)| {
        after.is_some_and(|after| reaches_further(before.map(|of| &**of), after)).then_some(name)
    });
    proxies.filter_map(|(_, before, after)| Some((before.map_or(&none.0, |of| of), after?))).any(
        |(before, after)| {
            let way = |of: &Proxy| (of.endpoint.clone(), of.upstream.clone(), of.ca.clone());
            !after.static_headers.is_empty() && way(before) != way(after)
        },
    ) || hooks
        .filter_map(|(_, before, after)| Some((before.map_or(&none.1, |of| of), after?)))
        .any(|(before, after)| signs(after) && before.upstream != after.upstream)
        || reaching.any(|name| {
            let by_proxy = |of: &Proxy| {
                !of.static_headers.is_empty() && of.upstream.as_deref() == Some(&**name)
            };
            after.proxies.values().any(by_proxy)
                || after.webhooks.hooks.values().any(|of| signs(of) && of.upstream == *name)
        })
}

fn signs(hook: &Hook) -> bool {
    hook.secret.is_some() || hook.pusher_app.is_some()
}

fn reaches_further(before: Option<&Upstream>, after: &Upstream) -> bool {
    let Some(before) = before else { return true };
    let is_known = |address: &str| before.members.values().any(|of| *of.address == *address);
    let mut members = after.members.changes_from(&before.members);
    (before.tls, &before.ca) != (after.tls, &after.ca)
        || members.any(|(_, old, new)| {
            new.is_some_and(|new| {
                old.is_none_or(|old| old.address != new.address) && !is_known(&new.address)
            })
        })
}

fn engine(before: &Engine, after: &Engine) -> bool {
    let secrets = [
        &after.password,
        &after.sentinel_password,
        &after.token,
        &after.nkey_seed,
        &after.credentials,
        &after.tls_client_key,
    ];
    let logs_in = secrets.into_iter().any(Option::is_some)
        || after.nkey_seed_file.is_some()
        || after.credentials_file.is_some();
    let by = |of: &Engine| (of.kind, of.topology, of.tls, of.ca.clone(), of.tls_handshake_first);
    logs_in
        && (by(before) != by(after)
            || before.sentinel_primaries != after.sentinel_primaries
            || after.addresses.iter().any(|address| !before.addresses.contains(address)))
}

fn otlp(before: &Otlp, after: &Otlp) -> bool {
    !after.headers.is_empty()
        && !after.endpoint.is_empty()
        && (&before.endpoint, &before.ca) != (&after.endpoint, &after.ca)
}

fn apns(before: &ApnsConfig, after: &ApnsConfig) -> bool {
    (after.key.is_some() || after.certificate.is_some())
        && ((before.environment, before.port) != (after.environment, after.port)
            || is_other_route(&before.route, &after.route))
}

fn fcm(before: &FcmConfig, after: &FcmConfig) -> bool {
    after.service_account.is_some()
        && (before.token_address != after.token_address
            || is_other_route(&before.route, &after.route))
}

fn vapid(before: &VapidConfig, after: &VapidConfig) -> bool {
    after.private_key.is_some()
        && (before.hosts != after.hosts || is_other_route(&before.route, &after.route))
}

/// The proxy is a secret itself.
fn is_other_route(before: &Route, after: &Route) -> bool {
    (&before.address, &before.ca) != (&after.address, &after.ca)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::schema::{self, Kind, SchemaNode};
    use crate::{Member, Secret};

    /// What becomes of each secret of the schema: whether it, or what is signed with it for somebody, leaves this server.
    const SECRETS: [(&str, bool); 27] = [
        ("admin.token", false),
        ("admin.tokens.NAME.token", false),
        ("api.keys.NAME", false),
        ("client.subscription_token.hmac_secret", false),
        ("client.subscription_token.hmac_secret_previous", false),
        ("client.subscription_token.keys.NAME", false),
        ("client.token.hmac_secret", false),
        ("client.token.hmac_secret_previous", false),
        ("client.token.keys.NAME", false),
        // It encrypts what goes to the engine.
        ("cluster.secret", false),
        ("engines.NAME.credentials", true),
        ("engines.NAME.nkey_seed", true),
        ("engines.NAME.password", true),
        ("engines.NAME.sentinel_password", true),
        ("engines.NAME.tls_client_key", true),
        ("engines.NAME.token", true),
        ("federation.key", false),
        ("otlp.headers.NAME", true),
        ("proxies.NAME.static_headers.NAME", true),
        ("push.apns.NAME.certificate", true),
        ("push.apns.NAME.certificate_password", true),
        ("push.apns.NAME.key", true),
        ("push.fcm.NAME.service_account", true),
        ("push.vapid.NAME.private_key", true),
        ("pusher.apps.NAME.secret", true),
        ("tls.certificates.NAME.key", false),
        ("webhooks.hooks.NAME.secret", true),
    ];

    fn secrets(path: &str, node: &SchemaNode, found: &mut Vec<String>) {
        let below =
            |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match &node.kind {
            Kind::Secret => found.push(path.to_owned()),
            Kind::Table(keys) => {
                keys.iter().for_each(|(key, node)| secrets(&below(key), node, found));
            }
            Kind::Map(node) | Kind::List(node) => secrets(&below("NAME"), node, found),
            _ => {}
        }
    }

    #[test]
    fn every_secret_is_known_to_stay_or_to_be_guarded_where_it_goes() {
        let mut found = Vec::new();
        secrets("", schema::root(), &mut found);
        // A tenant's are as those of the whole; a route's proxy is the address itself.
        found.retain(|path| !path.starts_with("tenants.") && !path.ends_with(".route.proxy"));
        found.sort();
        let known: Vec<&str> = SECRETS.iter().map(|(path, _)| *path).collect();
        assert_eq!(found, known, "say of a new secret whether it leaves, and guard its way");
    }

    fn secret() -> Option<Secret> {
        Some(Secret::new("a secret that is long enough"))
    }

    fn config() -> Config {
        let mut config = Config::default();
        let member = Member { address: "10.0.0.7:80".into(), ..Member::default() };
        let mut upstream = Upstream { tls: true, ..Upstream::default() };
        upstream.members.insert("a", member);
        config.webhooks.upstreams.insert("backend", upstream);
        let hook = Hook { upstream: "backend".into(), secret: secret(), ..Hook::default() };
        config.webhooks.hooks.insert("signed", hook);
        let mut proxy = Proxy { endpoint: "https://10.0.0.7/connect".into(), ..Proxy::default() };
        config.proxies.insert("open", proxy.clone());
        proxy.static_headers.insert("Authorization", Secret::new("Bearer of the backend"));
        config.proxies.insert("p", proxy);
        let engine = Engine {
            addresses: ["10.0.0.8:6379".to_owned()].into(),
            password: secret(),
            tls: true,
            ..Engine::default()
        };
        config.engines.insert("redis", engine);
        config.push.apns.insert("app", ApnsConfig { key: secret(), ..ApnsConfig::default() });
        let fcm = FcmConfig { service_account: secret(), ..FcmConfig::default() };
        config.push.fcm.insert("project", fcm);
        let vapid = VapidConfig { private_key: secret(), ..VapidConfig::default() };
        config.push.vapid.insert("web", vapid);
        config
    }

    #[test]
    fn secret_goes_nowhere_else_by_a_change_of_its_way() {
        let before = config();
        let route = || Route { address: Some("10.6.6.6:443".into()), ..Route::default() };
        type Edit = fn(&mut Config);
        let changes: [(&str, Edit); 16] = [
            ("endpoint", |of| {
                with(&mut of.proxies, "p", |p| p.endpoint = "http://10.6.6.6/".into());
            }),
            ("upstream", |of| with(&mut of.proxies, "p", |p| p.upstream = Some("backend".into()))),
            ("ca", |of| with(&mut of.proxies, "p", |p| p.ca = Some("another".into()))),
            ("member", |of| {
                with(&mut of.webhooks.upstreams, "backend", |upstream| {
                    let member = Member { address: "10.6.6.6:80".into(), ..Member::default() };
                    upstream.members.insert("b", member);
                });
            }),
            ("tls", |of| with(&mut of.webhooks.upstreams, "backend", |u| u.tls = false)),
            ("hook", |of| with(&mut of.webhooks.hooks, "signed", |h| h.upstream = "other".into())),
            ("address", |of| {
                with(&mut of.engines, "redis", |e| {
                    e.addresses = ["10.6.6.6:6379".to_owned()].into();
                });
            }),
            ("engine's tls", |of| with(&mut of.engines, "redis", |e| e.tls = false)),
            ("engine's ca", |of| with(&mut of.engines, "redis", |e| e.ca = Some("another".into()))),
            ("primaries", |of| {
                with(&mut of.engines, "redis", |e| e.sentinel_primaries = ["m".to_owned()].into());
            }),
            ("apns", |of| with(&mut of.push.apns, "app", |a| a.port = 2197)),
            ("apns' ca", |of| with(&mut of.push.apns, "app", |a| a.route.ca = Some("c".into()))),
            ("token_address", |of| {
                with(&mut of.push.fcm, "project", |f| f.token_address = Some("10.6.6.6".into()));
            }),
            ("fcm's ca", |of| with(&mut of.push.fcm, "project", |f| f.route.ca = Some("c".into()))),
            ("hosts", |of| with(&mut of.push.vapid, "web", |v| v.hosts = ["e".to_owned()].into())),
            ("vapid's ca", |of| with(&mut of.push.vapid, "web", |v| v.route.ca = Some("c".into()))),
        ];
        for (what, change) in changes {
            let mut after = before.clone();
            change(&mut after);
            assert!(sends_secret_elsewhere(&before, &after), "{what}");
        }
        let mut after = before.clone();
        with(&mut after.push.apns, "app", |of| of.route = route());
        assert!(sends_secret_elsewhere(&before, &after));
    }

    #[test]
    fn change_that_leaves_the_ways_of_secrets_alone_is_free() {
        let before = config();
        let mut after = before.clone();
        with(&mut after.proxies, "p", |of| of.timeout_ms = 77);
        with(&mut after.proxies, "open", |of| of.endpoint = "http://10.0.0.9/".into());
        with(&mut after.webhooks.upstreams, "backend", |of| {
            of.timeout_ms = 77;
            let member = Member { weight: 7, ..Member::clone(&of.members["a"]) };
            of.members.insert("a", member);
        });
        with(&mut after.webhooks.hooks, "signed", |of| of.attempts_max = 7);
        with(&mut after.engines, "redis", |of| of.timeout_ms = 77);
        with(&mut after.push.apns, "app", |of| of.connections_max = 7);
        after.proxies.insert("another", Proxy::default());
        assert!(!sends_secret_elsewhere(&before, &after));
        let mut less = before.clone();
        less.proxies.remove("p");
        assert!(!sends_secret_elsewhere(&before, &less));
    }

    fn with<V: Clone>(map: &mut crate::Map<V>, name: &str, change: impl FnOnce(&mut V)) {
        let mut value = V::clone(map.get_shared(name).map(Arc::as_ref).expect("it is there"));
        change(&mut value);
        map.insert(name, value);
    }
}
