//! Settings from environment variables.

use dunlin_config::{Config, environment};

fn with(variables: &[(&str, &str)]) -> Result<(Config, Vec<String>), String> {
    let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Config::default().with_environment(variables).map_err(|errors| errors.to_string())
}

#[test]
fn every_key_has_a_variable_that_means_it_alone() {
    let names = environment::names();
    assert!(names.len() > 200, "{}", names.len());
    for name in &names {
        match with(&[(name, "\u{1}")]) {
            Ok((_, warnings)) => assert_eq!(warnings, Vec::<String>::new(), "{name}"),
            // The key that is wrong is the one with this name.
            Err(said) => {
                let (path, _) = said.split_once(": ").unwrap();
                let named = format!("DUNLIN_{}", path.to_uppercase().replace('.', "_"));
                assert!(named.starts_with(name.as_str()) && said.contains(name.as_str()), "{said}");
            }
        }
    }
}

#[test]
fn values_are_what_their_keys_take() {
    let (config, warnings) = with(&[
        ("HOME", "/root"),
        ("DUNLIN_LOG", "debug"),
        ("DUNLIN_CLIENT_PING_INTERVAL_MS", "30_000"),
        ("DUNLIN_CLIENT_ANONYMOUS", "true"),
        ("DUNLIN_CLIENT_TOKEN_HMAC_SECRET", "0123456789abcdef"),
        ("DUNLIN_CLIENT_ALLOWED_ORIGINS", "https://a.example, https://b.example"),
        ("DUNLIN_SERVER_CLIENT_ADDR", "127.0.0.1:9000"),
        ("DUNLIN_API_KEYS_BACKEND_2", "0123456789abcdef"),
        ("DUNLIN_API_SCOPES_BACKEND_2_METHODS", r#"["publish"]"#),
        ("DUNLIN_CHANNEL_NAMESPACES_CHAT_HISTORY_SIZE", "5"),
        ("DUNLIN_CHANNEL_NAMESPACES_CHAT_HISTORY_TTL_MS", "60000"),
        ("DUNLIN_CHANNEL_NAMESPACES_CHAT_PACING_BURST_MS", "50"),
        ("DUNLIN_LISTENERS", r#"{"Side":{"addr":"127.0.0.1:9001"}}"#),
        ("DUNLIN_ADMIN_TOKEN", "fedcba9876543210"),
    ])
    .unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.validate(), Ok(()));
    assert_eq!((config.client.ping_interval_ms, config.client.anonymous), (30_000, true));
    assert_eq!(*config.client.allowed_origins, ["https://a.example", "https://b.example"]);
    assert_eq!(config.server.client_addr.port(), 9000);
    assert_eq!(config.api.keys.get("backend_2").unwrap().reveal(), "0123456789abcdef");
    assert_eq!(*config.api.scopes.get("backend_2").unwrap().methods, ["publish"]);
    let chat = config.channel.options("chat:1").unwrap();
    assert_eq!((chat.history_size, chat.pacing.burst_ms), (5, 50));
    assert_eq!(config.listeners.get("Side").unwrap().addr.port(), 9001);
    assert!(config.admin.token.is_some());
}

#[test]
fn invalid_value_is_named_without_showing_a_secret() {
    let said = with(&[("DUNLIN_CLIENT_PING_INTERVAL_MS", "soon")]).unwrap_err();
    assert!(said.contains("DUNLIN_CLIENT_PING_INTERVAL_MS: expected an integer"), "{said}");
    let said = with(&[("DUNLIN_API_KEYS", "{\"backend\": \"a secret of mine")]).unwrap_err();
    assert!(said.contains("api.keys") && !said.contains("mine"), "{said}");
    let said = with(&[("DUNLIN_API_KEYS", "{\"backend\": [\"a secret of mine\"]}")]).unwrap_err();
    assert!(said.contains("api.keys.backend") && !said.contains("mine"), "{said}");
    let (config, warnings) =
        with(&[("DUNLIN_CLIENT_PING_INTERVALL_MS", "1"), ("DUNLIN_CLIENT_OF_OUR_OWN_MAKING", "x")])
            .unwrap();
    assert_eq!(config, Config::default());
    let [near, far] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(near.ends_with("did you mean DUNLIN_CLIENT_PING_INTERVAL_MS?"), "{near}");
    assert_eq!(far, "DUNLIN_CLIENT_OF_OUR_OWN_MAKING is no setting");
    // Others may use the prefix: a script that names the program, say.
    let others = [("DUNLIN_BIN", "/usr/bin/dunlin"), ("DUNLIN_NOTHING_LIKE_IT_AT_ALL", "x")];
    assert_eq!(with(&others).unwrap().1, [""; 0]);
}
