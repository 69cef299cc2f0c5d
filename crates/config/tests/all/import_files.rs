//! Configurations of other servers as people have them, and what becomes of each.

use std::path::Path;

use dunlin_config::Config;
use dunlin_config::import::{Format, Import, Imported, Mapping, Origin, Variables};
use serde_json::{Value, json};

use Origin::{CentrifugoV3, CentrifugoV4, CentrifugoV5, CentrifugoV6, Reverb, Soketi};

/// What is expected of a file.
struct Case {
    file: &'static str,
    origin: Origin,
    /// The keys that are reported as closed, in order of the alphabet.
    closed: &'static [&'static str],
    /// Pointers into what is written, and values there; `null`: nothing.
    written: Value,
}

fn case(
    file: &'static str,
    origin: Origin,
    closed: &'static [&'static str],
    written: Value,
) -> Case {
    Case { file, origin, closed, written }
}

const TOKEN: &str = "5f2c8b1d9e7a4036b1c2d3e4f5061728";
const KEY: &str = "b7e1f0a2c3d4e5f60718293a4b5c6d7e";

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/imports")
}

fn imported(file: &str) -> Imported {
    let text = std::fs::read_to_string(folder().join(file)).expect("a file");
    let known = ("CENTRIFUGO_VAR_KNOWN".to_owned(), "known".to_owned());
    let import = Import {
        variables: Variables::from([known]),
        ..Import::of(&text, Format::of(file, &text))
    };
    import.run().unwrap_or_else(|errors| panic!("{file}: {errors}"))
}

fn centrifugo() -> Vec<Case> {
    let open = json!(true);
    vec![
        case(
            "v3_minimal.json",
            CentrifugoV3,
            &[],
            json!({
                "/client/token/hmac_secret": TOKEN, "/api/keys/backend": KEY,
                "/channel/without_namespace/allow_subscribe_for_client": null,
                "/channel/without_namespace/allow_user_limited_channels": open,
                "/channel/namespaces/public/allow_subscribe_for_client": open,
                "/channel/namespaces/public/allow_subscribe_for_anonymous": open,
                "/channel/namespaces/public/allow_publish_for_client": null,
                "/channel/namespaces/public/allow_presence_for_subscriber": open,
                "/channel/namespaces/public/allow_history_for_anonymous": open,
                "/channel/namespaces/public/recover": open,
                "/channel/namespaces/public/history_ttl_ms": 120_000,
                "/channel/namespaces/rooms/allow_publish_for_subscriber": open,
                "/channel/namespaces/rooms/allow_publish_for_client": null,
                "/channel/namespaces/rooms/allow_presence_for_subscriber": null,
                "/channel/namespaces/rooms/force_push_join_leave": open,
                "/channel/namespaces/alerts/allow_subscribe_for_client": null,
                "/channel/namespaces/alerts/allow_history_for_subscriber": null,
                "/channel/namespaces/alerts/positioned": open,
            }),
        ),
        case(
            "v3_proxy.yaml",
            CentrifugoV3,
            &[
                "client_anonymous",
                "namespaces[quiet].proxy_publish",
                "namespaces[typed].subscribe_to_publish",
            ],
            json!({
                "/proxies/client-connect/timeout_ms": 2_000,
                "/proxies/client-connect/http_headers": ["Cookie", "X-Request-Id"],
                "/client/proxy/connect": "client-connect", "/client/proxy/rpc": "rpc-default",
                "/client/anonymous": null,
                "/channel/namespaces/chat/subscribe_proxy": "channel-subscribe",
                "/channel/namespaces/chat/publish_proxy": "channel-publish",
                "/channel/namespaces/chat/channel_regex": "^[^#]*$",
                "/channel/namespaces/chat/allow_subscribe_for_client": null,
                "/channel/namespaces/chat/allow_publish_for_client": null,
                "/channel/namespaces/quiet/publish_proxy": null,
                "/channel/namespaces/quiet/allow_publish_for_client": null,
                "/channel/namespaces/typed/publish_proxy": null,
                "/channel/namespaces/typed/allow_publish_for_subscriber": null,
            }),
        ),
        case(
            "v3_redis.toml",
            CentrifugoV3,
            &["redis_tls_skip_verify"],
            json!({
                "/engines/main/addresses": ["10.1.2.3:6380"], "/engines/main/password": "p@ss/word",
                "/engines/main/database": 4, "/engines/main/tls": open, "/engines/main/timeout_ms": 3_000,
                "/engines/main/layout": null, "/engines/main/prefix": "dunlin",
                "/cluster/engine": "main", "/channel/namespaces/feed/engine": "main",
                "/channel/namespaces/feed/history_meta_ttl_ms": 604_800_000,
            }),
        ),
        case(
            "v3_env.env",
            CentrifugoV3,
            &[],
            json!({
                "/client/token/hmac_secret": TOKEN, "/client/anonymous": open,
                "/client/allowed_origins": ["https://a.example.org", "https://b.example.org"],
                "/channel/without_namespace/allow_subscribe_for_anonymous": open,
                "/channel/namespaces/news/presence": open,
                "/channel/namespaces/news/allow_subscribe_for_client": open,
                "/channel/namespaces/news/allow_subscribe_for_anonymous": null,
            }),
        ),
        case(
            "v4_basic.json",
            CentrifugoV4,
            &[],
            json!({
                "/limits/subscriptions_per_client_max": 256,
                "/channel/namespaces/chat/allow_publish_for_subscriber": open,
                "/channel/namespaces/chat/history_meta_ttl_ms": 259_200_000,
                "/channel/namespaces/user/allow_user_limited_channels": open,
                "/channel/namespaces/user/allow_subscribe_for_client": null,
                "/channel/without_namespace/allow_subscribe_for_client": null,
            }),
        ),
        case(
            "v4_rsa.yaml",
            CentrifugoV4,
            &[],
            json!({
                "/client/token/audience": "web", "/client/token/issuer": "https://id.example.org",
                "/server/client_addr": "0.0.0.0:9000", "/server/admin_addr": "127.0.0.1:9001",
                "/channel/namespaces/live/channel_regex": "^[a-z0-9_]+$",
            }),
        ),
        case(
            "v4_sentinel.json",
            CentrifugoV4,
            &["skip_user_check_in_subscription_token"],
            json!({
                "/engines/main/topology": "sentinel", "/engines/main/sentinel_primaries": ["mymaster"],
                "/engines/main/addresses": ["10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"],
                "/engines/main/sentinel_password": "sentinel-pass", "/engines/main/password": "data-pass",
                "/engines/main/prefix": "prod-dunlin", "/engines/main/layout": null,
            }),
        ),
        case(
            "v5_full.json",
            CentrifugoV5,
            &["namespaces[odd]"],
            json!({
                "/server/name": "node-1", "/log/level": "warn", "/client/token/user_id_claim": "uid",
                "/client/subscription_token/enabled": open, "/limits/connections_per_user_max": 5,
                "/client/ping_interval_ms": 20_000, "/shutdown/drain_timeout_ms": 15_000,
                "/client/subscribe_to_user_personal_channel/personal_channel_namespace": "personal",
                "/tls/certificates/main/chain_file": "/etc/tls/server.pem", "/server/client_ingress/tls": open,
                "/server/client_addr": "0.0.0.0:8000",
                "/channel/without_namespace/allow_subscribe_for_client": open,
                "/channel/namespaces/delta/allowed_delta_types": ["fossil"],
                "/channel/namespaces/delta/history_meta_ttl_ms": 864_000_000,
                "/channel/namespaces/tuned/allow_subscribe_for_client": open,
                "/channel/namespaces/odd/allow_subscribe_for_client": null,
            }),
        ),
        case(
            "v5_granular.yaml",
            CentrifugoV5,
            &[
                "namespaces[desk].allow_publish_for_client",
                "namespaces[desk].publish_proxy_enabled",
                "namespaces[room].allow_subscribe_for_client",
                "proxies[grpc]",
            ],
            json!({
                "/client/proxy/connect": "client-connect", "/proxies/client-connect/endpoint": "https://backend.example.org/connect",
                "/proxies/rooms/static_headers/X-Key": "rooms-secret", "/client/proxy/rpc": "auth",
                "/rpc/namespaces/users/proxy": "rooms", "/channel/namespaces/room/subscribe_proxy": "rooms",
                "/channel/namespaces/room/allow_subscribe_for_client": null,
                "/channel/namespaces/desk/publish_proxy": null,
                "/channel/namespaces/desk/allow_publish_for_client": null,
            }),
        ),
        case(
            "v5_nats.toml",
            CentrifugoV5,
            &[],
            json!({
                "/engines/main/type": "nats", "/engines/main/addresses": ["10.0.0.4:4222", "10.0.0.5:4222"],
                "/engines/main/password": "n@ts", "/channel/namespaces/ticks/engine": "main",
            }),
        ),
        case(
            "v5_cluster.json",
            CentrifugoV5,
            &[],
            json!({
                "/engines/main/topology": "cluster", "/engines/main/prefix": "dunlin",
                "/engines/main/addresses": ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"],
                "/channel/namespaces/chat/engine": "main",
            }),
        ),
        case(
            "v5_insecure.yaml",
            CentrifugoV5,
            &["admin_insecure", "api_insecure", "client_insecure", "port", "tls_autocert"],
            json!({
                "/api/without_key": null, "/api/keys": null, "/client/token": null,
                "/server/client_addr": "127.0.0.1:443",
            }),
        ),
        case(
            "v5_env.env",
            CentrifugoV5,
            &[],
            json!({
                "/engines/main/addresses": ["redis.example.org:6379"], "/engines/main/tls": open,
                "/engines/main/user": "ada", "/engines/main/password": "s:cret",
                "/client/token/refresh_grace_ms": 40_000,
                "/channel/without_namespace/allow_subscribe_for_client": open,
                "/server/client_addr": null,
            }),
        ),
        case(
            "v6_sections.yaml",
            CentrifugoV6,
            &[],
            json!({
                "/client/token/issuer_regex": "^https://", "/client/connect_timeout_ms": 15_000,
                "/server/client_addr": "0.0.0.0:8080", "/channel/namespaces/chat/history_ttl_ms": 86_400_000,
            }),
        ),
        case(
            "v6_redis_cluster_url.toml",
            CentrifugoV6,
            &[],
            json!({
                "/engines/main/topology": "cluster", "/engines/main/user": "app", "/engines/main/password": "p@ss",
                "/engines/main/addresses": ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"],
                "/engines/main/layout": null, "/channel/without_namespace/engine": "main",
            }),
        ),
        case(
            "v6_redis_sentinel_url.json",
            CentrifugoV6,
            &[],
            json!({
                "/engines/main/topology": "sentinel", "/engines/main/layout": "centrifugo",
                "/engines/main/password": "data+pass", "/engines/main/sentinel_password": "s",
                "/engines/main/addresses": ["10.0.0.1:26379", "10.0.0.2:26379"],
                "/engines/main/sentinel_primaries": ["mymaster"],
            }),
        ),
        case(
            "v6_unix.yaml",
            CentrifugoV6,
            &[],
            json!({
                "/engines/main/addresses": ["unix:/run/redis/redis.sock"], "/engines/main/database": 1,
                "/channel/namespaces/chat/engine": "main",
            }),
        ),
        case(
            "v6_variables.json",
            CentrifugoV6,
            &[
                "channel.namespaces.chat.channel_regex",
                "client.token.hmac_secret_key",
                "http_api.key",
                "proxies.client-connect.static_headers.X-Lost",
            ],
            json!({
                "/client/token/hmac_secret": null, "/api/keys/backend": null,
                "/proxies/client-connect/static_headers/X-Known": "k-known",
                "/proxies/client-connect/static_headers/X-Lost": null,
                "/channel/namespaces/chat/allow_subscribe_for_client": null,
            }),
        ),
        case(
            "v6_short.json",
            CentrifugoV6,
            &["client.token.hmac_secret_key", "http_api.key", "http_server.address"],
            json!({
                "/client/token": null, "/api": null, "/server/client_addr": "127.0.0.1:8000",
                "/channel/namespaces/chat/allow_subscribe_for_client": open,
            }),
        ),
        case(
            "v6_env.env",
            CentrifugoV6,
            &[],
            json!({
                "/client/ping_interval_ms": 30_000,
                "/client/allowed_origins": ["https://a.example.org", "https://b.example.org"],
                "/channel/namespaces/chat/presence": open,
                "/channel/namespaces/chat/allow_subscribe_for_client": open,
                "/channel/namespaces/chat_archive/history_size": 10,
                "/channel/namespaces/chat_archive/history_ttl_ms": 5_400_000,
                "/channel/namespaces/chat_archive/allow_subscribe_for_client": null,
                "/channel/without_namespace/allow_subscribe_for_client": null,
                "/proxies/client-connect/http_headers": ["Cookie", "Authorization"],
                "/proxies/client-connect/static_headers/X-Key": "backend-secret",
                "/engines/main/addresses": ["10.0.0.1:6379", "10.0.0.2:6379"],
            }),
        ),
        case(
            "helm_v6.yaml",
            CentrifugoV6,
            &["envSecret", "existingSecret"],
            json!({
                "/client/token/hmac_secret": TOKEN, "/api": null, "/engines/main/layout": "centrifugo",
                "/channel/namespaces/chat/engine": "main",
            }),
        ),
        case(
            "helm_v5.yaml",
            CentrifugoV5,
            &[],
            json!({
                "/client/token/hmac_secret": TOKEN, "/api/keys/backend": KEY,
                "/channel/namespaces/chat/allow_subscribe_for_client": open,
            }),
        ),
    ]
}

fn others() -> Vec<Case> {
    let on = json!(true);
    vec![
        case(
            "soketi.env",
            Soketi,
            &[],
            json!({
                "/pusher/apps/main/id": "4711", "/pusher/apps/main/secret": "c0ffee00c0ffee00c0ffee00",
                "/pusher/apps/main/client_events": on, "/pusher/apps/main/client_events_per_s": 20,
                "/pusher/apps/main/event_bytes_max": 65_536, "/limits/connections_max": 500,
                "/engines/main/addresses": ["redis:6379"], "/engines/main/password": "redis-pass",
                "/cluster/engine": "main", "/channel/namespaces/main/engine": "main",
                "/server/client_addr": "0.0.0.0:6001",
            }),
        ),
        case(
            "soketi.json",
            Soketi,
            &["appManager.array.apps[1].secret", "appManager.array.apps[2]"],
            json!({
                "/pusher/apps/shop/key": "shop-key", "/pusher/apps/shop/presence_members_max": 250,
                "/pusher/apps/shop/member_bytes_max": 4_096, "/pusher/apps/shop/cache_ttl_ms": 600_000,
                "/pusher/apps/blog": null, "/pusher/apps/old": null,
                "/tls/certificates/main/chain_file": "/etc/tls/a.pem",
            }),
        ),
        case(
            "reverb.env",
            Reverb,
            &[],
            json!({
                "/pusher/apps/main/id": "481516", "/pusher/apps/main/key": "xq3v9zqk2m7r5t8w1y4b",
                "/pusher/apps/main/client_events": false, "/pusher/apps/main/event_bytes_max": 20_000,
                "/server/client_addr": "0.0.0.0:8080", "/engines": null,
            }),
        ),
        case(
            "reverb_scaling.env",
            Reverb,
            &[],
            json!({
                "/engines/main/addresses": ["redis.example.org:6380"], "/engines/main/password": "p#ss",
                "/engines/main/tls": on, "/engines/main/database": 2, "/cluster/engine": "main",
            }),
        ),
    ]
}

#[test]
fn files_of_other_servers_become_valid_configurations_with_the_same_guards() {
    let cases: Vec<Case> = centrifugo().into_iter().chain(others()).collect();
    assert_eq!(std::fs::read_dir(folder()).unwrap().count(), cases.len(), "each file has a case");
    assert!(cases.len() >= 25);
    let mut wrong = Vec::new();
    for Case { file, origin, closed, written } in cases {
        let imported = imported(file);
        assert_eq!(imported.origin, origin, "{file}");
        assert_eq!(imported.is_chart, file.starts_with("helm"), "{file}");
        assert_eq!(imported.config.validate(), Ok(()), "{file}");
        assert_eq!(Config::from_toml(&imported.toml).expect(file), imported.config, "{file}");
        assert!(!imported.toml.contains("${"), "{file}: {}", imported.toml);
        let rows = imported.rows.iter().filter(|row| row.mapping == Mapping::Closed);
        let mut keys: Vec<&str> = rows.map(|row| row.key.as_str()).collect();
        keys.sort_unstable();
        if keys != closed {
            wrong.push(format!("{file}: closed {keys:?}: {:#?}", imported.rows));
        }
        let toml: Value = toml::from_str(&imported.toml).expect(file);
        for (pointer, expected) in written.as_object().unwrap() {
            let found = toml.pointer(pointer).unwrap_or(&Value::Null);
            if found != expected {
                wrong.push(format!(
                    "{file}: {pointer} is {found}, not {expected}\n{}",
                    imported.toml
                ));
            }
        }
        for secret in [TOKEN, KEY, "p@ss", "data-pass", "redis-pass", "n@ts"] {
            assert!(imported.rows.iter().all(|row| !row.note.contains(secret)), "{file}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Two nodes with it would share nothing, and nobody would notice.
#[test]
fn store_that_cannot_be_taken_ends_the_import_unless_that_is_asked_for() {
    let v6 = |engine: Value| json!({ "client": {"insecure": false}, "channel": {"namespaces": [{"name": "chat"}]}, "engine": engine });
    for (document, key) in [
        (
            v6(json!({"type": "redis", "redis": {"address": "redis://a:p%4@10.0.0.7"}})),
            "engine.redis.address",
        ),
        (
            v6(json!({"type": "redis", "redis": {"address": "${REDIS_URL}"}})),
            "engine.redis.address",
        ),
        (
            v6(json!({"type": "redis", "redis": {"password": "${REDIS_PASSWORD}"}})),
            "engine.redis.password",
        ),
        (
            v6(json!({"type": "redis", "redis": {"sentinel_address": "10.0.0.7:1"}})),
            "engine.redis.sentinel_address",
        ),
        (
            v6(json!({"type": "redis", "redis": {"cluster_address": ["a:1", "b:1"]}})),
            "engine.redis.cluster_address",
        ),
        (v6(json!({"type": "something"})), "engine.type"),
        (json!({"engine": "tarantool", "token_hmac_secret_key": TOKEN}), "engine"),
        (
            json!({"engine": "redis", "redis_address": "http://10.0.0.7", "api_key": KEY}),
            "redis_address",
        ),
        (json!({"broker": "nats", "nats_url": "ws://10.0.0.7", "api_key": KEY}), "nats_url"),
        (
            json!({"client": {}, "channel": {"namespaces": []}, "broker": {"enabled": true, "type": "postgres"}}),
            "broker.type",
        ),
    ] {
        let text = document.to_string();
        let errors = Import::of(&text, Format::Json).run().unwrap_err();
        let error = errors.iter().next().unwrap();
        assert_eq!(error.path.to_string(), key, "{document}");
        assert!(error.fix.as_ref().unwrap().contains("--without-engine"), "{error}");
        let import = Import { without_engine: true, ..Import::of(&text, Format::Json) };
        let imported = import.run().unwrap();
        assert!(imported.config.engines.is_empty(), "{document}");
        assert!(
            imported.rows.iter().any(|row| row.mapping == Mapping::Closed && row.key == key),
            "{document}: {:#?}",
            imported.rows
        );
    }
    let soketi = json!({"appManager": {}, "adapter": {"driver": "cluster"}}).to_string();
    assert!(Import::of(&soketi, Format::Json).run().is_err());
}

/// The environment overrides the file, as at the server that it is of.
#[test]
fn variables_override_the_file_and_fill_references() {
    let text = json!({
        "client": {"token": {"hmac_secret_key": "${TOKEN_SECRET}"}, "ping_interval": "10s"},
        "channel": {"namespaces": [{"name": "chat", "presence": true}]},
    })
    .to_string();
    let variables = [
        ("TOKEN_SECRET", TOKEN),
        ("CENTRIFUGO_CLIENT_PING_INTERVAL", "40s"),
        ("CENTRIFUGO_CHANNEL_NAMESPACES_CHAT_PRESENCE", "false"),
        ("CENTRIFUGO_HTTP_API_KEY", KEY),
        ("CENTRIFUGO_HTTP_API_DISABLED", ""),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let import =
        Import { variables: Variables::from(variables), ..Import::of(&text, Format::Json) };
    let imported = import.run().unwrap();
    let config = &imported.config;
    assert_eq!(config.client.token.hmac_secret.as_ref().unwrap().reveal(), TOKEN);
    assert_eq!(config.client.ping_interval_ms, 40_000);
    assert!(!config.channel.options("chat:1").unwrap().presence);
    assert!(config.api.keys.get("backend").is_some());
    let row = imported.rows.iter().find(|row| row.note == "`client.ping_interval_ms`").unwrap();
    assert_eq!(row.key, "CENTRIFUGO_CLIENT_PING_INTERVAL", "reported by its own name");
}

#[test]
fn server_that_is_not_recognised_is_asked_for() {
    for text in ["A=1\n", "CENTRIFUGO_API_KEY=a\nREVERB_APP_ID=1\n"] {
        let errors = Import::of(text, Format::Environment).run().unwrap_err();
        assert!(errors.iter().next().unwrap().fix.is_some(), "{errors}");
    }
    let text = "CENTRIFUGO_API_KEY=a\nREVERB_APP_ID=1\n";
    let import = Import { origin: Some(Reverb), ..Import::of(text, Format::Environment) };
    assert_eq!(import.run().unwrap().origin, Reverb);
    // Without a key that tells v3 from later versions, channels stay closed as in later ones.
    let text =
        json!({"token_hmac_secret_key": TOKEN, "namespaces": [{"name": "chat"}]}).to_string();
    let later = Import::of(&text, Format::Json).run().unwrap();
    assert_eq!(later.origin, CentrifugoV5);
    assert!(!later.config.channel.options("chat:1").unwrap().allow_subscribe_for_client);
    let v3 = Import { origin: Some(CentrifugoV3), ..Import::of(&text, Format::Json) };
    assert!(v3.run().unwrap().config.channel.options("chat:1").unwrap().allow_subscribe_for_client);
}
