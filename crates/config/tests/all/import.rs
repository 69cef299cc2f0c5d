//! Configurations of Centrifugo v6, and what becomes of each key.

use dunlin_config::import::{Format, Import, Imported, Mapping, Origin};
use dunlin_config::{ClaimPath, Config, ConfigErrors, EngineLayout, EngineTopology};
use proptest::prelude::*;
use serde_json::{Value, json};

const SECRET: &str = "0123456789abcdef0123";

fn import(text: &str, format: Format) -> Result<Imported, ConfigErrors> {
    Import::of(text, format).run()
}

fn taken(document: &Value) -> Imported {
    let imported = import(&document.to_string(), Format::Json).expect("a file of v6");
    assert_eq!(imported.config.validate(), Ok(()));
    assert_eq!(
        Config::from_toml(&imported.toml).expect("TOML"),
        imported.config,
        "{}",
        imported.toml
    );
    imported
}

fn mapping(imported: &Imported, key: &str) -> Mapping {
    let row = imported.rows.iter().find(|row| row.key == key);
    row.unwrap_or_else(|| panic!("{key}: {:#?}", imported.rows)).mapping
}

/// As the documentation of Centrifugo has it, in parts.
fn ordinary() -> Value {
    json!({
        "client": {
            "token": {"hmac_secret_key": SECRET, "audience": "web", "user_id_claim": "uid",
                "labels_from_claim": [{"key": "region", "value": "deployment.region"}],
                "issuer_regex": "^https://", "jwks_public_endpoint": "https://idp.example/keys"},
            "allowed_origins": ["https://example.com", "https://*.example.org", "*.local"],
            "ping_interval": "30s",
            "subscribe_to_user_personal_channel": {"enabled": true, "personal_channel_namespace": "chat"},
            "stale_close_delay": "1m5s",
        },
        "http_api": {"key": "the key of the backend"},
        "admin": {"enabled": true, "password": "p", "secret": "s"},
        "http_server": {"port": 9000},
        "channel": {
            "history_meta_ttl": "48h",
            "without_namespace": {"allow_subscribe_for_client": true, "presence": true},
            "namespaces": [
                {"name": "chat", "history_size": 50, "history_ttl": "300s", "force_recovery": true,
                 "allow_subscribe_for_client": true, "allow_history_for_subscriber": true, "join_leave": true,
                 "allowed_delta_types": ["fossil"], "delta_publish": true, "force_recovery_mode": "cache"},
                {"name": "feed", "allow_publish_for_client": true, "publish_proxy_enabled": true},
                {"name": "rooms", "allow_subscribe_for_client": true, "subscribe_cel": "claims.admin"},
                {"name": "staff", "subscribe_cel": "'staff' in meta.roles", "allow_history_for_subscriber": true},
                {"name": "dialog", "allow_user_limited_channels": true, "channel_regex": "^[a-z]+#[0-9,]+$"},
            ],
        },
        "engine": {"type": "redis", "redis": {"address": "redis://localhost:6379"}},
        "log": {"level": "debug"},
        "prometheus": {"enabled": true},
    })
}

#[test]
fn supported_settings_are_imported() {
    let imported = taken(&ordinary());
    let config = &imported.config;
    assert_eq!(config.client.token.hmac_secret.as_ref().unwrap().reveal(), SECRET);
    let rules = config.client.token.rules();
    assert_eq!((rules.audience, rules.user_id_claim), (Some("web"), Some("uid")));
    let labels = &config.client.token.labels_from_claim;
    assert_eq!(labels.get("region").map(ClaimPath::as_str), Some("deployment.region"));
    assert_eq!((rules.issuer_regex, rules.jwks.is_some()), (Some("^https://"), true));
    assert_eq!(*config.client.allowed_origins, ["https://example.com", "https://*.example.org"]);
    assert_eq!(
        (config.client.ping_interval_ms, config.client.connect_timeout_ms),
        (30_000, 65_000)
    );
    assert_eq!(config.api.keys.get("backend").unwrap().reveal(), "the key of the backend");
    assert_eq!(config.server.client_addr.to_string(), "0.0.0.0:9000");
    let chat = config.channel.options("chat:1").unwrap();
    assert_eq!((chat.history_size, chat.history_ttl_ms), (50, 300_000));
    assert_eq!(chat.history_meta_ttl_ms, 172_800_000);
    assert!(chat.recover && chat.join_leave && chat.allow_subscribe_for_client);
    assert!(chat.allow_history_for_subscriber && !chat.allow_publish_for_client);
    assert!(chat.delta_publish && chat.allowed_delta_types.len() == 1);
    assert_eq!(
        config.client.subscribe_to_user_personal_channel.of("7").as_deref(),
        Some("chat:#7")
    );
    let dialog = config.channel.options("dialog:a#1").unwrap();
    assert_eq!(dialog.channel_regex.as_deref(), Some("^[a-z]+#[0-9,]+$"));
    assert!(dialog.allow_user_limited_channels);
    assert_eq!(mapping(&imported, "client.token.hmac_secret_key"), Mapping::Taken);
    assert_eq!(mapping(&imported, "channel.history_meta_ttl"), Mapping::Changed);
    assert_eq!(mapping(&imported, "engine.type"), Mapping::Taken);
    let engine = config.engines.get("main").unwrap();
    assert_eq!((engine.layout, &*engine.prefix), (EngineLayout::Centrifugo, "centrifugo"));
    assert_eq!(*engine.addresses, ["localhost:6379"]);
    assert_eq!((chat.engine.as_deref(), dialog.engine.as_deref()), (Some("main"), Some("main")));
    assert_eq!(config.channel.without_namespace.engine.as_deref(), Some("main"));
    assert_eq!(config.cluster.engine.as_deref(), Some("main"));
    let secret = imported.rows.iter().find(|row| row.note.contains(SECRET));
    assert_eq!(secret, None, "a secret stands in the file alone");
}

/// A path in another language than that of names and dots gives no label, rather than another claim's.
#[test]
fn a_path_that_dunlin_does_not_have_gives_no_label() {
    let with = |labels: Value| {
        taken(
            &json!({"client": {"token": {"hmac_secret_key": SECRET, "labels_from_claim": labels}}}),
        )
    };
    let imported = with(json!([
        {"key": "region", "value": "deployment.region"}, {"key": "first", "value": "roles.#(a==1)"},
    ]));
    let labels = &imported.config.client.token.labels_from_claim;
    assert_eq!(labels.keys().collect::<Vec<_>>(), ["region"]);
    assert_eq!(mapping(&imported, "client.token.labels_from_claim.first"), Mapping::Closed);
    let imported = with(json!({"region": "deployment.region"}));
    assert_eq!(mapping(&imported, "client.token.labels_from_claim"), Mapping::Closed);
    assert!(imported.config.client.token.labels_from_claim.is_empty());
}

/// The tests of client libraries sign with `secret`: whoever brings such a file along learns of the key for it.
#[test]
fn a_short_secret_is_left_out_and_the_key_for_tests_is_named() {
    for of in ["token", "subscription_token"] {
        let imported =
            taken(&json!({"client": {of: {"enabled": true, "hmac_secret_key": "secret"}}}));
        assert!(!imported.toml.contains("\"secret\""), "{}", imported.toml);
        let key = format!("client.{of}.hmac_secret_key");
        let row = imported.rows.iter().find(|row| row.key == key).unwrap();
        assert_eq!(row.mapping, Mapping::Closed);
        assert!(row.note.contains("shorter than 16 bytes"), "{}", row.note);
        assert!(row.note.contains(&format!("`client.{of}.short_hmac_secret`")), "{}", row.note);
    }
    let long = taken(&json!({"client": {"token": {"hmac_secret_key": "0123456789abcdef"}}}));
    assert_eq!(mapping(&long, "client.token.hmac_secret_key"), Mapping::Taken);
}

#[test]
fn unverified_settings_are_imported_closed() {
    let imported = taken(&ordinary());
    let channel = &imported.config.channel;
    assert!(!channel.options("feed:1").unwrap().allow_publish_for_client, "the backend was asked");
    assert!(!channel.options("rooms:1").unwrap().allow_subscribe_for_client, "names were matched");
    assert_eq!(mapping(&imported, "channel.namespaces[rooms]"), Mapping::Closed);
    assert_eq!(channel.options("rooms:1").unwrap().subscribe_cel, None);
    let staff = channel.options("staff:1").unwrap();
    assert_eq!(staff.subscribe_cel.as_deref(), Some("'staff' in meta.roles"));
    assert!(staff.allow_history_for_subscriber);
    assert_eq!(mapping(&imported, "channel.namespaces[staff].subscribe_cel"), Mapping::Taken);
    assert_eq!(
        mapping(&imported, "channel.namespaces[feed].allow_publish_for_client"),
        Mapping::Closed
    );

    type IsOpen = fn(&Config) -> bool;
    let token: IsOpen = |config| config.client.token.rules().has_key();
    let anonymous: IsOpen = |config| config.client.anonymous;
    let anyone: IsOpen = |config| config.channel.without_namespace.allow_subscribe_for_anonymous;
    let public: IsOpen = |config| !config.server.client_addr.ip().is_loopback();
    let api: IsOpen = |config| !config.api.keys.is_empty() || config.api.without_key;
    let cases: [(&str, Value, IsOpen); 16] = [
        ("client", json!({"token": {"hmac_secret_key": SECRET, "audience": {"a": 1}}}), token),
        (
            "client",
            json!({"token": {"hmac_secret_key": SECRET, "issuer_regex": "(", "issuer": "a"}}),
            token,
        ),
        ("client", json!({"token": {"hmac_secret_key": "short"}}), token),
        (
            "client",
            json!({"token": {"hmac_secret_key": SECRET},
                "subscription_token": {"enabled": true, "hmac_previous_secret_key": SECRET}}),
            token,
        ),
        ("client", json!({"token": {"hmac_previous_secret_key": SECRET}}), token),
        ("client", json!({"insecure": true}), anonymous),
        ("client", json!({"insecure_skip_token_signature_verify": true}), token),
        (
            "client",
            json!({"allow_anonymous_connect_without_token": true, "proxy": {"connect": {"enabled": true}}}),
            anonymous,
        ),
        ("http_api", json!({"insecure": true}), api),
        ("http_api", json!({"key": "short"}), api),
        ("http_api", json!({"key": SECRET, "disabled": true}), api),
        ("http_server", json!({"address": "0.0.0.0"}), public),
        (
            "channel",
            json!({"namespace_boundary": "/", "without_namespace": {"allow_subscribe_for_anonymous": true}}),
            anyone,
        ),
        (
            "channel",
            json!({"without_namespace": {"allow_subscribe_for_anonymous": true, "subscribe_cel": "false"}}),
            anyone,
        ),
        (
            "channel",
            json!({"private_prefix": "!", "without_namespace": {"allow_subscribe_for_anonymous": true}}),
            anyone,
        ),
        (
            "channel",
            json!({"user_boundary": "~", "without_namespace":
                {"allow_subscribe_for_anonymous": true, "allow_user_limited_channels": true}}),
            anyone,
        ),
    ];
    for (section, given, is_open) in cases {
        let imported = taken(&json!({section: given.clone()}));
        assert!(!is_open(&imported.config), "{section} {given}: {}", imported.toml);
        let closed = imported.rows.iter().any(|row| row.mapping == Mapping::Closed);
        assert!(closed, "{section} {given}: {:#?}", imported.rows);
    }
}

#[test]
fn backends_that_are_asked_are_taken_and_what_asked_one_that_is_not_stays_closed() {
    let document = json!({
        "client": {
            "allow_anonymous_connect_without_token": true,
            "proxy": {
                "connect": {"enabled": true, "endpoint": "http://app:3000/connect", "timeout": "2s",
                    "http_headers": ["Cookie"], "include_connection_meta": true,
                    "http": {"static_headers": {"X-Key": "k"}, "tls": {"enabled": true}}},
                "refresh": {"enabled": true, "endpoint": "http://app:3000/refresh"},
            },
        },
        "channel": {
            "proxy": {"subscribe": {"endpoint": "https://app/subscribe"},
                "publish": {"endpoint": "grpc://app:4000"}},
            "namespaces": [
                {"name": "room", "subscribe_proxy_enabled": true, "allow_subscribe_for_client": true,
                    "sub_refresh_proxy_enabled": true, "sub_refresh_proxy_name": "other"},
                {"name": "feed", "publish_proxy_enabled": true, "allow_publish_for_client": true},
                {"name": "odd", "subscribe_proxy_enabled": true, "some_new_condition": true},
            ],
        },
        "proxies": [{"name": "other", "endpoint": "http://other/x"}, {"name": "grpc", "endpoint": "grpc://other"}],
        "rpc": {
            "proxy": {"endpoint": "http://app:3000/rpc"},
            "without_namespace": {"proxy_enabled": true},
            "namespaces": [{"name": "users", "proxy_enabled": true, "proxy_name": "other"},
                {"name": "gone", "proxy_enabled": true, "proxy_name": "grpc"}],
        },
    });
    let imported = taken(&document);
    let Config { client, channel, proxies, rpc, .. } = &imported.config;
    let connect = proxies.get("client-connect").unwrap();
    assert_eq!((&*connect.endpoint, connect.timeout_ms), ("http://app:3000/connect", 2_000));
    assert_eq!(
        (&*connect.http_headers, connect.include_connection_meta),
        (&["Cookie".to_owned()][..], true)
    );
    assert_eq!(connect.static_headers.get("X-Key").map(|of| of.reveal()), Some("k"));
    assert_eq!(client.proxy.connect.as_deref(), Some("client-connect"));
    assert_eq!(client.proxy.refresh.as_deref(), Some("client-refresh"));
    assert_eq!(client.proxy.rpc.as_deref(), Some("rpc-default"));
    assert!(!client.anonymous, "the backend decides");
    let room = channel.namespaces.get("room").unwrap();
    assert_eq!(room.subscribe_proxy.as_deref(), Some("channel-subscribe"));
    assert_eq!(room.sub_refresh_proxy.as_deref(), Some("other"));
    assert!(!room.allow_subscribe_for_client);
    let feed = channel.namespaces.get("feed").unwrap();
    assert_eq!((&feed.publish_proxy, feed.allow_publish_for_client), (&None, false));
    assert_eq!(channel.namespaces.get("odd").unwrap().subscribe_proxy, None);
    assert_eq!(
        rpc.namespaces.iter().map(|(name, of)| (name, &*of.proxy)).collect::<Vec<_>>(),
        [("users", "other")]
    );
    for key in [
        "channel.proxy.publish",
        "channel.namespaces[feed].publish_proxy_enabled",
        "proxies[grpc]",
        "rpc.namespaces[gone]",
    ] {
        assert_eq!(mapping(&imported, key), Mapping::Closed, "{key}");
    }
    assert_eq!(mapping(&imported, "client.proxy.connect.http.tls"), Mapping::Changed);
}

#[test]
fn a_certificate_that_is_not_taken_opens_no_address() {
    let mut document = ordinary();
    document["http_server"]["tls"] =
        json!({"enabled": true, "cert_pem": "/etc/a.pem", "key_pem": "/etc/a.key"});
    let imported = taken(&document);
    assert!(imported.config.server.client_ingress.tls);
    assert_eq!(imported.config.server.client_addr.to_string(), "0.0.0.0:9000");
    for (key, value) in
        [("cert_pem", json!("")), ("key_pem", json!("bm90")), ("client_ca_pem", json!("/ca.pem"))]
    {
        let mut document = document.clone();
        document["http_server"]["tls"][key] = value;
        let imported = taken(&document);
        assert!(imported.config.server.client_addr.ip().is_loopback(), "{key}: {}", imported.toml);
    }
}

#[test]
fn the_three_formats_say_the_same() {
    let yaml = "client:\n  allowed_origins: [https://a.example]\n  ping_interval: 30s\nchannel:\n  namespaces:\n    - name: chat\n      presence: true\n";
    let toml = "[client]\nallowed_origins = ['https://a.example']\nping_interval = '30s'\n[[channel.namespaces]]\nname = 'chat'\npresence = true\n";
    let json = r#"{"client": {"allowed_origins": ["https://a.example"], "ping_interval": "30s"},
        "channel": {"namespaces": [{"name": "chat", "presence": true}]}}"#;
    let of = |name: &str, text: &str| import(text, Format::of(name, text)).unwrap().config;
    let config = of("centrifugo.json", json);
    assert!(config.channel.options("chat:1").unwrap().presence);
    for (name, text) in
        [("config.yaml", yaml), ("config.toml", toml), ("-", json), ("-", yaml), ("-", toml)]
    {
        assert_eq!(of(name, text), config, "{name}");
    }
    for (format, text) in [
        (Format::Json, "{"),
        (Format::Yaml, "a: [b"),
        (Format::Toml, "a = "),
        (Format::Json, "[1]"),
    ] {
        let errors = import(text, format).unwrap_err();
        assert!(errors.to_string().starts_with("this is no"), "{errors}");
    }
}

/// Centrifugo v6 ignores them, so they may neither open nor close anything.
#[test]
fn keys_of_v5_in_a_file_of_v6_are_reported_with_their_names() {
    let mut document = ordinary();
    document["allow_subscribe_for_client"] = true.into();
    document["token_audience"] = "other".into();
    let imported = taken(&document);
    assert_eq!(imported.origin, Origin::CentrifugoV6);
    assert_eq!(imported.config.client.token.rules().audience, Some("web"));
    for (key, name) in [
        ("token_audience", "client.token.audience"),
        ("allow_subscribe_for_client", "channel.without_namespace.allow_subscribe_for_client"),
    ] {
        let row = imported.rows.iter().find(|row| row.key == key).unwrap();
        assert_eq!(row.mapping, Mapping::Absent);
        assert!(row.note.contains(&format!("`{name}`")), "{}", row.note);
    }
}

fn with_redis(redis: &Value) -> Imported {
    let chat = json!({"name": "chat", "history_size": 5, "history_ttl": "60s"});
    taken(&json!({"engine": {"type": "redis", "redis": redis}, "channel": {"namespaces": [chat]}}))
}

#[test]
fn a_redis_is_shared_with_the_nodes_of_centrifugo() {
    let imported = with_redis(&json!({
        "address": ["rediss://ada:secret@10.0.0.7:6379/3", "rediss://10.0.0.8:6379"], "prefix": "push",
        "connect_timeout": "2s", "presence_ttl": "30s",
    }));
    let engine = imported.config.engines.get("main").unwrap();
    assert_eq!(*engine.addresses, ["10.0.0.7:6379", "10.0.0.8:6379"]);
    assert_eq!((engine.layout, &*engine.prefix), (EngineLayout::Centrifugo, "push"));
    assert_eq!((engine.user.as_deref(), engine.database, engine.tls), (Some("ada"), 3, true));
    assert_eq!(engine.password.as_ref().unwrap().reveal(), "secret");
    assert_eq!(engine.connect_timeout_ms, 2_000);
    let chat = imported.config.channel.options("chat:1").unwrap();
    // As long as Centrifugo remembers it: a node that remembers it for less would end the others' streams.
    assert_eq!(chat.history_meta_ttl_ms, 30 * 24 * 60 * 60 * 1000);
    assert_eq!(mapping(&imported, "engine.redis.presence_ttl"), Mapping::Absent);
    assert!(!imported.rows.iter().any(|row| row.note.contains("secret")));

    let imported = with_redis(&json!({
        "sentinel_address": "10.0.0.1:26379,10.0.0.2:26379", "sentinel_master_name": "mymaster", "sentinel_password": "s",
    }));
    let engine = imported.config.engines.get("main").unwrap();
    assert_eq!(engine.topology, EngineTopology::Sentinel);
    assert_eq!(*engine.addresses, ["10.0.0.1:26379", "10.0.0.2:26379"]);
    assert_eq!(*engine.sentinel_primaries, ["mymaster"]);
    assert_eq!(engine.sentinel_password.as_ref().unwrap().reveal(), "s");
}

/// Nodes of Dunlin share it with each other: in another layout they would share nothing with those of Centrifugo either.
#[test]
fn redis_that_cannot_be_shared_with_centrifugo_is_shared_by_nodes_of_dunlin() {
    for redis in [
        json!({"cluster_address": "10.0.0.7:7000"}),
        json!({"cluster_address": ["10.0.0.7:7000,10.0.0.8:7000"]}),
        json!({"history_use_lists": true}),
    ] {
        let imported = with_redis(&redis);
        let engine = &imported.config.engines["main"];
        assert_eq!((engine.layout, &*engine.prefix), (EngineLayout::Dunlin, "dunlin"), "{redis}");
        assert_eq!(
            imported.config.channel.options("chat:1").unwrap().engine.as_deref(),
            Some("main")
        );
        assert_eq!(mapping(&imported, "engine.type"), Mapping::Changed);
    }
}

proptest! {
    /// Whatever is in a namespace, who may do what there could do it before.
    #[test]
    fn no_door_opens(options in prop::collection::btree_map(
        prop::sample::select(vec![
            "allow_subscribe_for_client", "allow_subscribe_for_anonymous", "allow_publish_for_subscriber",
            "allow_history_for_client", "allow_presence_for_anonymous", "presence", "subscribe_proxy_enabled",
            "publish_proxy_enabled", "subscribe_cel", "channel_regex", "allow_user_limited_channels", "some_new_condition", "force_recovery", "delta_publish",
        ]),
        prop_oneof![Just(json!(true)), Just(json!(false)), Just(json!("true")), Just(json!("no")), Just(json!(7)), Just(json!([]))],
        0..8,
    ), within in any::<bool>()) {
        let document = match within {
            true => {
                let mut options = options.clone();
                options.insert("name", json!("chat"));
                json!({"channel": {"namespaces": [options]}})
            }
            false => json!({"channel": {"without_namespace": options}}),
        };
        let imported = import(&document.to_string(), Format::Json).unwrap();
        let channel = if within { "chat:1" } else { "news" };
        let result = serde_json::to_value(imported.config.channel.options(channel).unwrap()).unwrap();
        let opens = |name: &str| name.starts_with("allow_") || name.ends_with("_cel");
        for (name, value) in result.as_object().unwrap().iter().filter(|(name, _)| opens(name)) {
            let before = options.get(name.as_str());
            prop_assert!(value != true || matches!(before, Some(Value::Bool(true) | Value::String(_))), "{name}");
        }
        let is_conditional = options.get("some_new_condition").is_some_and(|of| *of != json!(false) && *of != json!([]));
        prop_assert!(!is_conditional || !imported.toml.contains("allow_"), "{}", imported.toml);
    }
}

/// A broker on NATS is an engine that every namespace names; what it was reached by it is reached by.
#[test]
fn a_broker_on_nats_becomes_an_engine() {
    let nats = |nats: Value| {
        let mut document = ordinary();
        document["engine"] = json!({"type": "memory"});
        document["broker"] = json!({"enabled": true, "type": "nats", "nats": nats});
        document
    };
    let pem = |what: &str| format!("-----BEGIN {what}-----\nMII\n-----END {what}-----\n");
    let imported = taken(&nats(json!({
        "url": "nats://dunlin:p%40ss@10.0.0.7:4222,nats://nats.example",
        "prefix": "prod", "dial_timeout": "2s", "allow_wildcards": true,
        "tls": {"enabled": true, "server_ca_pem": pem("CERTIFICATE"), "cert_pem": pem("CERTIFICATE"),
            "key_pem": pem("PRIVATE KEY"), "insecure_skip_verify": true},
    })));
    let engine = imported.config.engines.get("main").expect("an engine");
    assert_eq!(engine.kind, dunlin_config::EngineKind::Nats);
    assert_eq!(*engine.addresses, ["10.0.0.7:4222", "nats.example:4222"]);
    assert_eq!(engine.user.as_deref(), Some("dunlin"));
    assert_eq!(engine.password.as_ref().unwrap().reveal(), "p@ss");
    assert!(engine.tls && engine.ca.is_some() && engine.tls_client_key.is_some());
    assert_eq!((&*engine.prefix, engine.connect_timeout_ms), ("prod", 2_000));
    // Of namespaces with history.
    assert!(engine.jetstream);
    for (name, options) in imported.config.channel.namespaces.iter() {
        assert_eq!((options.engine.as_deref(), options.wildcards), (Some("main"), true), "{name}");
    }
    let without = &imported.config.channel.without_namespace;
    assert_eq!(without.engine.as_deref(), Some("main"));
    for (key, what) in [
        ("broker.type", Mapping::Changed),
        ("broker.nats.url", Mapping::Taken),
        ("broker.nats.tls", Mapping::Taken),
        ("broker.nats.tls.insecure_skip_verify", Mapping::Closed),
        ("broker.nats.allow_wildcards", Mapping::Changed),
    ] {
        assert_eq!(mapping(&imported, key), what, "{key}");
    }
    assert!(imported.rows.iter().all(|row| !row.note.contains("p@ss")));

    // Redis beside it has no channels.
    let mut both = nats(json!({"url": "nats://10.0.0.7:4222"}));
    both["engine"] = ordinary()["engine"].clone();
    let imported = taken(&both);
    assert_eq!(imported.config.engines["main"].kind, dunlin_config::EngineKind::Nats);
    assert_eq!((imported.config.engines.len(), imported.config.cluster.engine.as_ref()), (1, None));

    let mut plain = nats(json!({"url": "tls://token@[2001:db8::7]"}));
    plain["channel"]["namespaces"] = json!([]);
    let imported = taken(&plain);
    let engine = imported.config.engines.get("main").expect("an engine");
    assert_eq!(*engine.addresses, ["[2001:db8::7]:4222"]);
    assert_eq!(engine.token.as_ref().unwrap().reveal(), "token");
    assert!(engine.tls && !engine.jetstream);

    let raw = json!({"enabled": true, "prefix": "app.", "channel_replacements": {}});
    let imported = taken(&nats(json!({"url": "nats://10.0.0.7:4222", "raw_mode": raw})));
    let engine = imported.config.engines.get("main").expect("an engine");
    assert!(engine.raw && (&*engine.raw_prefix, &*engine.raw_separator) == ("app.", ":"));
    assert_eq!(imported.config.channel.without_namespace.engine.as_deref(), Some("main"));
    assert_eq!(mapping(&imported, "broker.nats.raw_mode"), Mapping::Changed);
    let raw = json!({"enabled": true, "channel_replacements": {":": "."}});
    let imported = taken(&nats(json!({"url": "nats://10.0.0.7:4222", "raw_mode": raw})));
    assert_eq!(&*imported.config.engines["main"].raw_separator, ".");
    assert_eq!(
        imported.config.channel.without_namespace.engine, None,
        "it would reach all subjects"
    );
    for (name, options) in imported.config.channel.namespaces.iter() {
        assert_eq!((options.engine.as_deref(), options.history_size), (Some("main"), 0), "{name}");
    }

    // What cannot be the same is not made.
    for other in [
        json!({"url": "ws://10.0.0.7"}),
        json!({"raw_mode": {"enabled": true, "prefix": "app"}}),
        json!({"raw_mode": {"enabled": true, "channel_replacements": {"-": "."}}}),
    ] {
        let errors = import(&nats(other).to_string(), Format::Json).unwrap_err();
        let error = errors.iter().next().unwrap();
        assert!(error.path.to_string().starts_with("broker.nats"), "{error}");
    }
    let mut off = nats(json!({"url": "nats://10.0.0.7"}));
    off["broker"]["enabled"] = false.into();
    assert!(taken(&off).config.engines.is_empty());
}
