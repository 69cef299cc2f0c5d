//! What a person who writes the file is reported.

use dunlin_config::{Config, Overflow};

/// The errors of a file, form first; the values are judged only when the form is right.
fn reported(toml: &str) -> Vec<String> {
    let errors = match Config::from_toml(toml) {
        Err(errors) => errors,
        Ok(config) => {
            let mut errors = config.validate().err().unwrap_or_default();
            errors.locate(toml);
            errors
        }
    };
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn the_default_file_is_valid_toml_and_says_what_is_so_without_it() {
    let file = Config::default_toml();
    assert_eq!(Config::from_toml(&file).unwrap(), Config::default());
    assert_eq!(Config::default().validate(), Ok(()));
    assert!(file.lines().all(|line| line.chars().count() <= 100), "a line is too long");
}

#[test]
fn every_example_in_the_default_file_holds_when_its_comment_mark_is_removed() {
    let example = |line: &str| line.starts_with('#') && !line.starts_with("# ");
    let file: String = Config::default_toml()
        .lines()
        .map(|line| if example(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") })
        .collect();
    let config = Config::from_toml(&file).unwrap();
    let chat = dunlin_config::ChannelOptions {
        engine: Some("...".into()),
        ack_dead_letter: Some("...".into()),
        name_pattern: Some(dunlin_config::Pattern::parse("...").unwrap()),
        channel_regex: Some("...".into()),
        subscribe_cel: Some("...".into()),
        publish_cel: Some("...".into()),
        history_cel: Some("...".into()),
        presence_cel: Some("...".into()),
        subscribe_proxy: Some("...".into()),
        publish_proxy: Some("...".into()),
        sub_refresh_proxy: Some("...".into()),
        ..Default::default()
    };
    assert_eq!(config.channel.namespaces["chat"], chat);
    assert!(config.api.keys.contains_key("backend"));
    // The dots stand for what is to be made and named. They are not accepted for it, nor are two ways to say one thing.
    let expected = [
        "it is shorter than 16 bytes",
        "there is no ",
        "Redis has none",
        "for NATS alone",
        "it is not set",
        "it is set twice, inline and as a file",
        "there is a signing key too",
        "is set, too",
        "somebody else's",
        "this is no ",
        "it gets no events",
        "without TLS",
        "not spoken to by TLS",
        "a namespace of a tenant does not have it",
        "the upstream says whom to trust",
        "it stands for a secret, and is none",
        "nobody would know which port that is",
        "it is for an engine on a disk alone",
        "nothing is chosen, and a program may fail",
        "no message goes there without a bound of deliveries",
        "messages would go to no channel",
    ];
    let errors = config.validate().unwrap_err();
    let unexpected: Vec<_> = errors
        .iter()
        .filter(|error| !expected.iter().any(|part| error.message.contains(part)))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[test]
fn a_file_may_say_a_little() {
    let file = "
[client.token]
hmac_secret = '0123456789abcdef'

[channel.namespaces.chat]
history_size = 50
history_ttl_ms = 60_000
overflow = 'keep_latest'
";
    let config = Config::from_toml(file).unwrap();
    let chat = config.channel.options("chat:room1").unwrap();
    assert_eq!((chat.history_size, chat.overflow), (50, Overflow::KeepLatest));
    assert_eq!(config.channel.options("news").unwrap().history_size, 0);
    assert!(config.channel.options("game:1").is_none(), "its namespace does not exist");
    let any = Config::from_toml(&format!("channel.any_namespace = true\n{file}")).unwrap().channel;
    assert_eq!(any.options("game:1"), Some(&any.without_namespace));
    assert_eq!(any.options("chat:room1").unwrap().history_size, 50);
    assert_eq!(config.validate(), Ok(()));
}

#[test]
fn an_unknown_key_is_answered_with_its_line_and_the_key_that_was_meant() {
    assert_eq!(
        reported("[client]\nanonymous = true\nping_intervall_ms = 1000\n"),
        [
            "line 3: client.ping_intervall_ms: there is no such key; did you mean `ping_interval_ms`?"
        ]
    );
    assert_eq!(
        reported("[server]\nhmac_secret = 'x'\n"),
        ["line 2: server.hmac_secret: there is no such key; did you mean \
          `client.token.hmac_secret`?"]
    );
    assert_eq!(
        reported("[shutdown]\nzebra = 1\n"),
        ["line 2: shutdown.zebra: there is no such key; in [shutdown] there are \
          `drain_timeout_ms`, `reconnect_spread_ms`"]
    );
    assert_eq!(
        reported("[[channel.namespaces]]\nname = 'chat'\n"),
        ["line 1: channel.namespaces: expected a table, found an array"]
    );
}

#[test]
fn a_wrong_value_is_answered_with_what_is_expected_and_what_was_found() {
    let file = "
[server]
workers = 200
client_addr = 'localhost:8000'
own_descriptor_tables = 'yes'
[client]
allowed_origins = 'https://example.com'
ping_interval_ms = '25s'
pong_timeout_ms = 2.5
[channel.without_namespace]
overflow = 'drop'
";
    assert_eq!(
        reported(file),
        [
            "line 3: server.workers: expected an integer from 0 to 124, found 200",
            "line 4: server.client_addr: expected an address with a port such as \
             \"127.0.0.1:8000\", found the string \"localhost:8000\"; write \"127.0.0.1:8000\"",
            "line 5: server.own_descriptor_tables: expected true or false, found the string \"yes\"",
            "line 7: client.allowed_origins: expected an array of strings, found the string \
             \"https://example.com\"; write [\"https://example.com\"]",
            "line 8: client.ping_interval_ms: expected an integer from 1000 to 86400000, found the \
             string \"25s\"; write 25000, the unit is milliseconds",
            "line 9: client.pong_timeout_ms: expected an integer from 100 to 86400000, found 2.5",
            "line 11: channel.without_namespace.overflow: expected one of \"disconnect\", \
             \"drop_oldest\", \"keep_latest\", found the string \"drop\"",
        ]
    );
}

#[test]
fn malformed_toml_is_reported_with_its_line() {
    let reported = reported("[client]\nanonymous = \n");
    assert_eq!(reported.len(), 1);
    assert!(reported[0].starts_with("line 2: this is not TOML: "), "{reported:?}");

    let twice = self::reported("[client]\nanonymous = true\nanonymous = false\n");
    assert!(twice[0].starts_with("line 3: this is not TOML: duplicate key"), "{twice:?}");

    let date = self::reported("[server]\nname = 2026-01-01\n");
    assert_eq!(date, ["line 2: server.name: no key takes a date"]);
}

#[test]
fn a_secret_is_not_repeated_in_what_is_reported_or_printed() {
    let file = "[api]\nkeys = { backend = 'hunter2' }\n[admin]\ntoken = 12345678901\n";
    assert!(!reported(file).concat().contains("hunter2"));
    let config = Config::from_toml("[api.keys]\nbackend = 'hunter2hunter2hunter2'\n").unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(config.api.keys["backend"].matches("hunter2hunter2hunter2"));
    assert!(!config.api.keys["backend"].matches("hunter2hunter2hunter3"));
    assert!(!config.api.keys["backend"].matches("hunter2hunter2hunter2!"));
}

#[test]
fn a_hostile_file_is_answered_with_a_bounded_list() {
    let file: String = (0..10_000).map(|i| format!("key{i} = 1\n")).collect();
    let errors = Config::from_toml(&file).unwrap_err();
    assert_eq!((errors.len(), errors.iter().count()), (10_000, 100));
    assert!(errors.to_string().ends_with("\nand 9900 more"));
    let deep = format!("[client]\nallowed_origins = {}{}\n", "[".repeat(9_999), "]".repeat(9_999));
    assert!(Config::from_toml(&deep).is_err());
}

#[test]
fn json_has_the_same_keys_and_the_same_answers() {
    let value = serde_json::to_value(Config::development()).unwrap();
    assert_eq!(Config::from_json(value).unwrap(), Config::development());
    let errors = Config::from_json(serde_json::json!({"client": {"token": {"hmac_secret": 7}}}));
    let errors = errors.unwrap_err();
    let error = errors.iter().next().unwrap();
    assert_eq!(error.path.pointer(), "/client/token/hmac_secret");
    assert_eq!(error.to_string(), "client.token.hmac_secret: expected a string, found 7");
    assert!(Config::from_json(serde_json::json!({"api": {"keys": {"a": null}}})).is_err());
}
