//! What values together are refused, and what the error says.

use dunlin_config::{Config, Secret};
use proptest::prelude::*;

fn reported(config: &Config) -> Vec<String> {
    let errors = config.validate().err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

fn open_to_others() -> Config {
    let mut config = Config::default();
    config.server.client_addr = "0.0.0.0:8000".parse().expect("an address");
    config
}

fn secret() -> Secret {
    Secret::new("0123456789abcdef")
}

#[test]
fn an_address_others_can_reach_needs_an_api_key_and_client_authentication() {
    let mut config = open_to_others();
    assert_eq!(
        reported(&config),
        ["server.client_addr: others can reach 0.0.0.0:8000, and there is nothing to keep them \
          out; set an API key (`[api.keys]` with `backend = \"...\"`) and client authentication \
          (`client.token.hmac_secret = \"...\"`), or bind to 127.0.0.1:8000"]
    );
    config.client.token.hmac_secret = Some(secret());
    assert_eq!(
        reported(&config),
        ["server.client_addr: others can reach 0.0.0.0:8000, and there is nothing to keep them \
          out; set an API key (`[api.keys]` with `backend = \"...\"`), or bind to 127.0.0.1:8000"]
    );
    config.api.keys.insert("backend", secret());
    assert_eq!(config.validate(), Ok(()));
    config.client.token.hmac_secret = None;
    config.client.anonymous = true;
    assert_eq!(reported(&config).len(), 1, "letting everyone in is not client authentication");
}

#[test]
fn what_counts_as_this_machine_alone() {
    for (addr, loopback) in [
        ("127.0.0.1:80", true),
        ("127.9.8.7:80", true),
        ("[::1]:80", true),
        ("[::ffff:127.0.0.1]:80", true),
        ("[::]:80", false),
        ("10.0.0.1:80", false),
        ("[::ffff:10.0.0.1]:80", false),
    ] {
        let mut config = Config::default();
        config.server.client_addr = addr.parse().unwrap();
        assert_eq!(config.validate().is_ok(), loopback, "{addr}");
    }
}

#[test]
fn development_mode_is_for_this_machine_alone() {
    let mut config = Config::development();
    assert_eq!(config.validate(), Ok(()));
    assert_eq!(config.warnings(), []);
    let options = config.channel.options("any:thing").unwrap();
    assert_eq!((options.history_size, options.history_ttl_ms), (100, 300_000));
    assert!(options.recover && options.presence);

    config.server.client_addr = "192.168.1.2:8000".parse().unwrap();
    let reported = reported(&config);
    assert_eq!(reported.len(), 2);
    assert!(reported[1].starts_with("api.without_key: anyone who reaches 192.168.1.2:8000 could"));
}

#[test]
fn the_admin_port_needs_a_token_where_others_can_reach_it() {
    let mut config = Config::default();
    config.server.admin_addr = "0.0.0.0:8001".parse().unwrap();
    assert_eq!(
        reported(&config),
        ["server.admin_addr: others can reach 0.0.0.0:8001, and there is nothing to keep them \
          out; set `admin.token`, or bind to 127.0.0.1:8001"]
    );
    config.admin.token = Some(secret());
    assert_eq!(config.validate(), Ok(()));
    config.server.client_addr = "127.0.0.1:8001".parse().unwrap();
    let wrong = "server.admin_addr: it is 0.0.0.0:8001, and `server.client_addr` is 127.0.0.1:8001";
    assert!(reported(&config)[0].starts_with(wrong), "the kernel gives out a port once");
    config.server.client_addr = "127.0.0.1:8000".parse().unwrap();
    assert_eq!(config.validate(), Ok(()));
    config.server.admin_addr = config.server.client_addr;
    assert!(reported(&config)[0].contains("as is `server.client_addr`"));
}

#[test]
fn a_short_key_and_a_shared_key_are_refused() {
    let mut config = Config::default();
    config.client.token.hmac_secret = Some(Secret::new("secret"));
    config.api.keys.insert("billing", secret());
    config.api.keys.insert("chat", secret());
    assert_eq!(
        reported(&config),
        [
            "client.token.hmac_secret: it is shorter than 16 bytes; make one with \
             `openssl rand -hex 32`",
            "api.keys.chat: it is the same key as \"billing\", and logs could not distinguish them; \
             give each caller its own",
        ]
    );
}

#[test]
fn a_short_key_is_taken_where_it_is_asked_for_and_nobody_else_reaches_the_server() {
    let mut config = Config::default();
    config.client.token.hmac_secret = Some(Secret::new("secret"));
    config.client.token.short_hmac_secret = true;
    assert_eq!(config.validate(), Ok(()));
    config.api.keys.insert("backend", secret());
    config.server.client_addr = "0.0.0.0:8000".parse().unwrap();
    assert_eq!(
        reported(&config),
        [
            "client.token.short_hmac_secret: anyone who reaches 0.0.0.0:8000 could find the key of a \
          token; set it to false, or bind to 127.0.0.1"
        ]
    );
}

#[test]
fn a_cluster_meets_in_an_engine_that_there_is() {
    let mut config = Config::default();
    config.cluster.engine = Some("main".into());
    assert_eq!(
        reported(&config),
        ["cluster.engine: there is no engine \"main\"; name one of `engines`, or add it there"]
    );
    config.engines.insert("main", dunlin_config::Engine::default());
    assert_eq!(config.validate(), Ok(()));
}

/// The hub gives an operation of an engine up after `timeout_ms`; by then the replicas have answered.
#[test]
fn replicas_have_less_time_than_their_server() {
    let mut config = Config::default();
    let engine = dunlin_config::Engine {
        wait_replicas: 1,
        wait_timeout_ms: 1_001,
        ..dunlin_config::Engine::default()
    };
    config.engines.insert("main", engine.clone());
    assert_eq!(
        reported(&config),
        ["engines.main.wait_timeout_ms: the replicas have more than half of the time that the \
             server has; lower it, or raise `timeout_ms`"]
    );
    let engine = dunlin_config::Engine { wait_timeout_ms: 1_000, ..engine };
    config.engines.insert("main", engine.clone());
    assert_eq!(config.validate(), Ok(()));
    let other = dunlin_config::Engine { wait_replicas: 2, wait_timeout_ms: 100, ..engine.clone() };
    assert!(engine.is_same_place(&other), "connections go on");
    let beyond = Config::from_toml("[engines.main]\nwait_replicas = 17\n").unwrap_err();
    assert!(beyond.iter().any(|error| error.to_string().contains("16")), "{beyond:?}");
}

/// A replica is believed if it says of which generation its data are.
#[test]
fn replicas_are_read_from_where_they_can_be_believed() {
    let mut config =
        Config::from_toml("[engines.main]\nread_from = \"replica_preferred\"\n").unwrap();
    assert_eq!(config.validate(), Ok(()));
    let engine = config.engines.get("main").unwrap().clone();
    assert!(engine.is_same_place(&dunlin_config::Engine::default()), "connections go on");
    let beside_centrifugo = dunlin_config::Engine {
        layout: dunlin_config::EngineLayout::Centrifugo,
        prefix: "centrifugo".into(),
        ..engine.clone()
    };
    config.engines.insert("main", beside_centrifugo);
    assert_eq!(
        reported(&config),
        [
            "engines.main.read_from: a replica in Centrifugo's layout does not say which data it has; \
             remove it until the fleet has moved"
        ]
    );
    let nats = dunlin_config::Engine {
        kind: dunlin_config::EngineKind::Nats,
        addresses: ["10.0.0.7:4222".to_owned()].into(),
        ..engine
    };
    config.engines.insert("main", nats);
    assert_eq!(
        reported(&config),
        ["engines.main.read_from: it is for Redis alone; remove it: each server of NATS answers \
             reads of what it has"]
    );
}

/// What NATS cannot do is refused with its fix, and so is what only NATS can.
#[test]
fn an_engine_on_nats_keeps_what_its_stream_keeps() {
    let mut config = Config::default();
    let engine = dunlin_config::Engine {
        kind: dunlin_config::EngineKind::Nats,
        addresses: ["10.0.0.7:4222".to_owned()].into(),
        ..dunlin_config::Engine::default()
    };
    config.engines.insert("main", engine.clone());
    let options = &mut config.channel.without_namespace;
    options.engine = Some("main".into());
    (options.history_size, options.history_ttl_ms) = (1_000, 60_000);
    assert_eq!(config.validate(), Ok(()));

    config.channel.without_namespace.history_size = 1_001;
    let small = dunlin_config::Engine { stream_max_age_ms: 59_999, ..engine.clone() };
    config.engines.insert("main", small);
    assert_eq!(
        reported(&config),
        [
            "channel.without_namespace.history_size: its engine keeps 1000 messages of a channel; \
             raise `stream_channel_messages_max` of the engine, or keep less",
            "channel.without_namespace.history_ttl_ms: its engine keeps messages for 59999 ms; \
             raise `stream_max_age_ms` of the engine, or keep them for less",
        ]
    );
    config.cluster.engine = None;
    config.channel.without_namespace.history_size = 10;
    let without = dunlin_config::Engine { jetstream: false, ..engine.clone() };
    config.engines.insert("main", without);
    config.cluster.engine = Some("main".into());
    assert_eq!(
        reported(&config),
        [
            "cluster.engine: nodes meet in JetStream, which it has not; set `jetstream = true` of it, \
             or name another",
            "channel.without_namespace.history_size: its engine keeps no histories; set \
             `jetstream = true` of the engine, or keep nothing"
        ]
    );
    let wrong = dunlin_config::Engine {
        addresses: dunlin_config::Engine::default().addresses,
        database: 1,
        prefix: "a.b".into(),
        ..engine
    };
    config.engines.insert("main", wrong);
    assert_eq!(
        reported(&config),
        [
            "engines.main.database: NATS has none; remove it, or set another `prefix`",
            "engines.main.addresses: it is where Redis listens; name servers of NATS: \
             [\"10.0.0.7:4222\"]",
            "engines.main.prefix: a stream of NATS cannot be called so; write letters, digits, \
             `_` and `-`",
        ]
    );
}

/// One login, with its fix where there are two; what belongs to TLS needs it, and is for NATS.
#[test]
fn an_engine_on_nats_has_one_login() {
    let secret = || Some(Secret::new("of some length"));
    let plain = dunlin_config::Engine {
        kind: dunlin_config::EngineKind::Nats,
        addresses: ["10.0.0.7:4222".to_owned()].into(),
        ..dunlin_config::Engine::default()
    };
    let check = |engine: dunlin_config::Engine| {
        let mut config = Config::default();
        config.engines.insert("main", engine);
        match config.validate() {
            Ok(()) => Vec::new(),
            Err(_) => reported(&config),
        }
    };
    let nkey = dunlin_config::Engine { nkey_seed: secret(), ..plain.clone() };
    let creds = dunlin_config::Engine {
        credentials_file: Some("/etc/dunlin/main.creds".into()),
        tls: true,
        tls_handshake_first: true,
        tls_client_cert: Some("PEM".into()),
        tls_client_key: secret(),
        ..plain.clone()
    };
    for good in [&plain, &nkey, &creds] {
        assert_eq!(check(good.clone()), Vec::<String>::new());
    }
    let both = dunlin_config::Engine { token: secret(), ..nkey };
    assert_eq!(check(both), ["engines.main.nkey_seed: there is `token`, too; set one of them"]);
    let user =
        dunlin_config::Engine { user: Some("u".into()), password: secret(), ..creds.clone() };
    assert_eq!(
        check(user),
        ["engines.main.credentials_file: there is `user`, too; set one of them"]
    );
    let without = dunlin_config::Engine { tls: false, tls_client_key: None, ..creds.clone() };
    let needs = "the servers are not spoken to by TLS; set `tls = true`, or remove it";
    assert_eq!(
        check(without),
        [
            format!("engines.main.tls_handshake_first: {needs}"),
            format!("engines.main.tls_client_cert: {needs}"),
            "engines.main.tls_client_cert: there is no `tls_client_key`; set `tls_client_key`, or \
             remove it"
                .to_owned(),
        ]
    );
    let redis = dunlin_config::Engine { kind: dunlin_config::EngineKind::Redis, ..creds };
    let only = "it is for NATS alone; remove it, or set `type = \"nats\"`";
    assert_eq!(
        check(redis),
        [
            "engines.main.credentials_file: Redis has none; set `password`, or `type = \"nats\"`"
                .to_owned(),
            format!("engines.main.tls_handshake_first: {only}"),
        ]
    );
    let shown = |tls, key| dunlin_config::Engine {
        tls,
        tls_client_cert: Some("PEM".into()),
        tls_client_key: key,
        ..dunlin_config::Engine::default()
    };
    assert_eq!(check(shown(true, secret())), Vec::<String>::new());
    assert_eq!(
        check(shown(false, None)),
        [
            format!("engines.main.tls_client_cert: {needs}"),
            "engines.main.tls_client_cert: there is no `tls_client_key`; set `tls_client_key`, or \
             remove it"
                .to_owned(),
        ]
    );
}

#[test]
fn centrifugos_layout_is_of_redis_and_has_centrifugos_prefix() {
    use dunlin_config::{Engine, EngineKind, EngineLayout};
    let mut config = Config::default();
    let engine = Engine { layout: EngineLayout::Centrifugo, ..Engine::default() };
    config.engines.insert("main", engine.clone());
    assert_eq!(
        reported(&config),
        ["engines.main.prefix: nodes of Centrifugo have another; write what \
             `engine.redis.prefix` of Centrifugo says: \"centrifugo\" if it is not set"]
    );
    let engine = Engine { prefix: "centrifugo".into(), ..engine };
    config.engines.insert("main", engine.clone());
    assert_eq!(config.validate(), Ok(()));
    let engine =
        Engine { kind: EngineKind::Nats, addresses: ["n:4222".to_owned()].into(), ..engine };
    config.engines.insert("main", engine);
    assert_eq!(
        reported(&config),
        ["engines.main.layout: NATS has none; remove it: nodes of Centrifugo and of Dunlin \
             share channels in Redis alone"]
    );
}

#[test]
fn history_is_kept_whole_or_not_at_all() {
    let mut config = Config::default();
    config.channel.without_namespace.history_size = 10;
    config.channel.without_namespace.recover = true;
    assert_eq!(
        reported(&config),
        [
            "channel.without_namespace.history_size: nothing is kept, as the other of \
             `history_size` and `history_ttl_ms` is 0; set `history_ttl_ms` too",
            "channel.without_namespace.recover: it needs history; set `history_size` and \
             `history_ttl_ms`",
        ]
    );
    config.channel.without_namespace.history_ttl_ms = 2 * 86_400_000;
    assert!(reported(&config)[0].starts_with("channel.without_namespace.history_meta_ttl_ms: "));
}

#[test]
fn an_origin_is_a_scheme_and_a_host() {
    let fix = |origin: &str| {
        let mut config = Config::default();
        config.client.allowed_origins = [origin.to_owned()].into();
        reported(&config)
            .first()
            .and_then(|reported| reported.split_once("; ").map(|(_, fix)| fix.to_owned()))
    };
    for origin in ["*", "https://a.example", "http://localhost:3000", "https://*.example.com"] {
        assert_eq!(fix(origin), None, "{origin}");
    }
    assert_eq!(fix("example.com").unwrap(), "write its scheme too: \"https://example.com\"");
    assert_eq!(
        fix("https://a.example/").unwrap(),
        "an origin has no path, write \"https://a.example\""
    );
    assert_eq!(
        fix("https://A.example").unwrap(),
        "browsers send it in lower case: \"https://a.example\""
    );
    assert!(fix("https://a.*.example").is_some());
    // What a browser never sends would keep its page out, and nobody would know why.
    assert_eq!(
        fix("https://a.example:443").unwrap(),
        "browsers leave this port out: write \"https://a.example\""
    );
    assert_eq!(
        fix("http://*.example.com:80").unwrap(),
        "browsers leave this port out: write \"http://*.example.com\""
    );
    assert_eq!(fix("https://a.example:99999").unwrap(), "its port is no number from 1 to 65535");
    for origin in ["https://a.example:8443", "http://[::1]", "http://[::1]:3000", "app://a.b"] {
        assert_eq!(fix(origin), None, "{origin}");
    }
}

#[test]
fn what_could_never_match_is_refused() {
    let mut config = Config::default();
    config.admin.token = Some(Secret::new("0123456789abcdef\n"));
    config.client.token.hmac_secret = Some(Secret::new("0123456789abcdef"));
    config.client.token.audience = Some(String::new());
    let hosts =
        ["push.example.com", ".example.com", "https://push.example.com", "Push.example.com"];
    let vapid = dunlin_config::VapidConfig {
        private_key: Some(Secret::new("a key")),
        subject: "mailto:ops@example.com".into(),
        hosts: hosts.map(str::to_owned).into(),
        ..Default::default()
    };
    config.push.vapid.insert("site", vapid);
    let upstream = dunlin_config::Upstream::default();
    config.webhooks.upstreams.insert("backend", upstream);
    for (name, path) in [("a", "/events?of=dunlin"), ("b", "/ereignisse/größe"), ("c", "/a#b")] {
        let hook = dunlin_config::Hook {
            upstream: "backend".into(),
            path: path.into(),
            events: [dunlin_config::HookEventKind::Publish].into(),
            ..Default::default()
        };
        config.webhooks.hooks.insert(name, hook);
    }
    let errors = config.validate().unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.to_string()).collect();
    assert_eq!(
        paths,
        [
            "client.token.audience",
            "admin.token",
            "push.vapid.site.hosts.2",
            "push.vapid.site.hosts.3",
            "webhooks.hooks.b.path",
            "webhooks.hooks.c.path"
        ]
    );
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let mut config = Config::default();
    config.limits.bus_slots = 1_000;
    config.limits.outbox_bytes_max = config.limits.publication_bytes_max;
    config.client.pong_timeout_ms = config.client.ping_interval_ms;
    config.shutdown.reconnect_spread_ms = 60_000;
    let paths: Vec<_> =
        config.validate().unwrap_err().iter().map(|error| error.path.to_string()).collect();
    assert_eq!(
        paths,
        [
            "client.pong_timeout_ms",
            "limits.outbox_bytes_max",
            "limits.bus_slots",
            "shutdown.drain_timeout_ms"
        ]
    );
}

#[test]
fn a_config_in_which_nothing_can_happen_is_warned_about() {
    let warned: Vec<_> =
        Config::default().warnings().iter().map(|error| error.path.to_string()).collect();
    assert_eq!(warned, ["client.token.hmac_secret", "api.keys"]);
}

/// A typo in its name left the key without a bound.
#[test]
fn an_app_of_a_tenant_has_a_namespace_of_the_tenant_and_its_hooks_are_the_tenants() {
    let text = r#"
        [channel.namespaces.chat]
        [tenants.acme.token_keys]
        acme-1 = "0123456789abcdef"
        [tenants.acme.namespaces.room]
        [webhooks.upstreams.backend.members.a]
        address = "127.0.0.1:1"
        [webhooks.hooks.audit]
        path = "/"
        upstream = "backend"
        events = ["channel_occupied"]
        pusher_app = "shop"
        tenant = "acme"
        [pusher.apps.shop]
        id = "3"
        key = "k"
        secret = "0123456789abcdef"
        namespace = "room"
        tenant = "acme"
    "#;
    let config = Config::from_toml(text).unwrap();
    assert_eq!(reported(&config), [""; 0]);
    let with = |change: fn(&mut dunlin_config::PusherApp)| {
        let mut config = config.clone();
        let mut app = config.pusher.apps["shop"].clone();
        change(&mut app);
        config.pusher.apps.insert("shop", app);
        reported(&config)
    };
    assert_eq!(
        with(|app| app.namespace = "chat".into()),
        ["pusher.apps.shop.namespace: there is no namespace \"chat\"; name one of \
          `tenants.acme.namespaces`, or add it there"]
    );
    assert_eq!(
        with(|app| app.tenant = Some("globex".into())),
        [
            "webhooks.hooks.audit.tenant: it is not that of the app \"shop\", whose events it gets; set it to \"globex\"",
            "pusher.apps.shop.tenant: there is no tenant \"globex\"; name one of `tenants`, or take the app away first",
        ]
    );
    assert_eq!(
        with(|app| (app.tenant, app.namespace) = (None, "chat".into())),
        ["webhooks.hooks.audit.tenant: it is not that of the app \"shop\", whose events it gets; \
          leave it out"]
    );
    // The tenant goes while its app is there.
    let mut config = config;
    config.tenants.remove("acme");
    let gone = reported(&config);
    assert!(gone.iter().any(|error| error.starts_with("pusher.apps.shop.tenant: ")), "{gone:?}");
}

#[test]
fn apps_that_share_their_channels_are_warned_about() {
    let app = |namespace: &str, tenant: Option<&str>| dunlin_config::PusherApp {
        namespace: namespace.into(),
        tenant: tenant.map(Into::into),
        ..dunlin_config::PusherApp::default()
    };
    let mut config = Config::default();
    for (name, namespace, tenant) in [
        ("a", "chat", None),
        ("b", "chat", Some("acme")),
        ("c", "chat", Some("globex")),
        ("d", "other", None),
    ] {
        config.pusher.apps.insert(name, app(namespace, tenant));
    }
    let warned = |config: &Config| {
        let warnings = config.warnings();
        let of_apps = warnings.iter().map(ToString::to_string);
        of_apps.filter(|text| text.starts_with("pusher.apps")).collect::<Vec<_>>()
    };
    assert_eq!(warned(&config), [""; 0]);
    config.pusher.apps.insert("e", app("chat", Some("acme")));
    let warned = warned(&config);
    assert!(warned.len() == 1 && warned[0].starts_with("pusher.apps.e.namespace: "), "{warned:?}");
    assert!(warned[0].contains("of the app \"b\""), "{warned:?}");
}

#[test]
fn a_scope_of_no_key_is_warned_about() {
    let config = Config::from_toml(
        "api.keys.backend = \"0123456789abcdef\"\napi.scopes.backend = {}\napi.scopes.\"back end\" = {}",
    )
    .unwrap();
    let warned: Vec<_> = config.warnings().iter().map(|error| error.path.to_string()).collect();
    assert!(warned.contains(&"api.scopes.\"back end\"".to_owned()), "{warned:?}");
    assert!(!warned.contains(&"api.scopes.backend".to_owned()));
}

/// Whoever is between a server and a key set elsewhere could put his own key into it.
#[test]
fn a_key_set_that_comes_from_elsewhere_without_tls_is_warned_about() {
    let warned = |kind: &str, url: &str| {
        let text = format!("client.{kind}.jwks_public_endpoint = \"{url}\"");
        let warnings = Config::from_toml(&text).unwrap().warnings();
        let path = format!("client.{kind}.jwks_public_endpoint");
        warnings.iter().any(|warning| warning.path.to_string() == path)
    };
    for kind in ["token", "subscription_token"] {
        for plain in
            ["http://idp.example/keys", "http://192.0.2.7:80/keys", "http://[2001:db8::1]/keys"]
        {
            assert!(warned(kind, plain), "{plain}");
        }
        let safe = ["https://idp.example/keys", "http://127.0.0.1:80/keys", "http://[::1]:80/keys"];
        for url in safe.into_iter().chain(["http://localhost/keys"]) {
            assert!(!warned(kind, url), "{url}");
        }
        assert!(warned(kind, "http://localhost.example/keys"));
    }
}

proptest! {
    #[test]
    fn any_text_is_answered_without_a_panic(text in "\\PC{0,200}") {
        let _ = Config::from_toml(&text);
    }

    #[test]
    fn whatever_is_read_is_written_and_read_again_the_same(
        workers in 0u8..=124,
        ping in 1_000u64..=86_400_000,
        origins in proptest::collection::vec("[a-z \"\\\\]{0,12}", 0..4),
        namespaces in proptest::collection::btree_map("[a-z.~/]{1,8}", 0u32..=1_000_000, 0..5),
        key in proptest::option::of("\\PC{0,40}"),
    ) {
        let mut config = Config::default();
        config.server.workers = workers;
        config.client.ping_interval_ms = ping;
        config.client.allowed_origins = origins.into();
        config.client.token.hmac_secret = key.map(Secret::new);
        for (name, history_size) in namespaces {
            let options = dunlin_config::ChannelOptions { history_size, ..Default::default() };
            config.channel.namespaces.insert(name, options);
        }
        let json = serde_json::to_value(&config).unwrap();
        prop_assert_eq!(&Config::from_json(json).unwrap(), &config);
        let toml = toml::to_string(&config).unwrap();
        prop_assert_eq!(&Config::from_toml(&toml).unwrap(), &config);
    }
}

#[test]
fn a_placeholder_is_refused_for_every_secret_of_the_schema() {
    use dunlin_config::schema::{self, Kind, SchemaNode};

    fn secrets(node: &SchemaNode, path: &[&str], found: &mut Vec<Vec<String>>) {
        match &node.kind {
            Kind::Secret => found.push(path.iter().map(|step| (*step).to_owned()).collect()),
            Kind::Table(keys) => {
                for (key, node) in keys {
                    secrets(node, &[path, &[key.as_str()]].concat(), found);
                }
            }
            Kind::Map(node) | Kind::List(node) => secrets(node, &[path, &["name"]].concat(), found),
            _ => {}
        }
    }
    let mut found = Vec::new();
    secrets(schema::root(), &[], &mut found);
    assert!(found.len() > 25, "{}", found.len());
    for steps in found {
        for placeholder in ["put openssl rand -hex 32 here", "${THE_SECRET_OF_IT}", "..."] {
            let document = steps.iter().rev().fold(
                serde_json::json!(placeholder),
                |value, step| serde_json::json!({ step.as_str(): value }),
            );
            let errors = Config::from_json(document).unwrap().validate().unwrap_err();
            let path = steps.join(".");
            let is_reported = errors.iter().any(|error| {
                error.path.to_string() == path && error.message.contains("secret")
                    || error.message.contains("placeholder")
            });
            assert!(is_reported, "{path} = {placeholder:?}: {errors}");
        }
    }
}

/// No password stands among the addresses, which are shown to everybody who may see the settings.
#[test]
fn engine_addresses_that_are_urls_become_addresses_and_logins() {
    let read = |text: &str| {
        let config = Config::from_toml(&format!("[engines.main]\n{text}")).unwrap();
        (config.validate(), config.engines.get("main").unwrap().clone())
    };
    let (valid, engine) = read("addresses = [\"rediss://ada:p%40ss@10.0.0.7/3\"]");
    assert_eq!(valid, Ok(()));
    assert_eq!(*engine.addresses, ["10.0.0.7:6379"]);
    assert_eq!((engine.user.as_deref(), engine.database, engine.tls), (Some("ada"), 3, true));
    assert_eq!(engine.password.as_ref().unwrap().reveal(), "p@ss");
    let (valid, engine) = read(
        "addresses = [\"redis+sentinel://:p@s1?sentinel_master_name=mymaster&addr=s2:26380\"]",
    );
    assert_eq!(valid, Ok(()));
    assert_eq!(engine.topology, dunlin_config::EngineTopology::Sentinel);
    assert_eq!(*engine.sentinel_primaries, ["mymaster"]);
    let (valid, engine) = read("addresses = [\"unix:///run/redis.sock\"]");
    assert_eq!((valid, &*engine.addresses), (Ok(()), &["unix:/run/redis.sock".to_owned()][..]));
    for refused in [
        "addresses = [\"redis://:hunter2@a\"]\npassword = \"secret\"",
        "addresses = [\"redis://:p%4@a\"]",
        "addresses = [\"http://a:1\"]",
        "addresses = [\"unix:redis.sock\"]",
        "addresses = [\"unix:/run/redis.sock\"]\ntls = true",
        "addresses = [\"unix:/run/redis.sock\"]\ntopology = \"cluster\"",
        "type = \"nats\"\naddresses = [\"unix:/run/nats.sock\"]",
    ] {
        let error = read(refused).0.unwrap_err().to_string();
        assert!(error.contains("engines.main.addresses"), "{refused}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_target_of_the_log_with_other_characters_than_names_of_modules_have_is_refused() {
    let with =
        |name: &str| Config::from_toml(&format!("[log.targets]\n{name:?} = \"debug\"\n")).unwrap();
    assert!(with("dunlin::client").validate().is_ok());
    for name in ["a,info", "a=trace", "", "a b"] {
        let errors = with(name).validate().unwrap_err();
        assert!(errors.to_string().contains("no target"), "{name}: {errors}");
    }
}
