//! Which namespaces may have wildcards, and which raw subjects.

use dunlin_config::{ChannelOptions, Config, Engine, EngineKind, Secret};

#[test]
fn names_have_a_meaning_in_nats_alone_and_raw_subjects_stay_apart() {
    let faults = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::default();
        let nats = Engine {
            kind: EngineKind::Nats,
            addresses: ["127.0.0.1:4222".to_owned()].into(),
            ..Engine::default()
        };
        config.engines.insert("kept", nats.clone());
        config.engines.insert("raw", Engine { prefix: "own".into(), raw: true, ..nats });
        change(&mut config);
        let errors = config.validate().err().unwrap_or_default();
        errors.iter().map(|error| error.path.to_string()).collect::<Vec<_>>()
    };
    let namespace =
        |name: &'static str, engine: Option<&'static str>, change: fn(&mut ChannelOptions)| {
            move |config: &mut Config| {
                let engine = engine.map(Into::into);
                let mut options = ChannelOptions { engine, ..ChannelOptions::default() };
                change(&mut options);
                config.channel.namespaces.insert(name, options);
            }
        };
    let wildcards = |options: &mut ChannelOptions| options.wildcards = true;
    let none = Vec::<String>::new();
    assert_eq!(faults(&namespace("chat", Some("kept"), wildcards)), none);
    assert_eq!(faults(&namespace("chat", Some("raw"), wildcards)), none);
    assert_eq!(faults(&namespace("chat", None, wildcards)), ["channel.namespaces.chat.wildcards"]);
    let history: fn(&mut ChannelOptions) = |options| {
        (options.history_size, options.history_ttl_ms, options.presence) = (1, 1, true);
    };
    let kept = ["history_size", "presence"].map(|key| format!("channel.namespaces.chat.{key}"));
    assert_eq!(faults(&namespace("chat", Some("raw"), history)), kept);
    for name in ["_INBOX", "$SYS", "a.b", "a*", ">", "a b"] {
        let path = faults(&namespace(name, Some("raw"), |_| {}));
        assert!(path.iter().any(|path| path.ends_with(".engine")), "{name}: {path:?}");
    }
    let raw = |change: fn(&mut Engine)| {
        move |config: &mut Config| {
            let mut engine = config.engines["raw"].clone();
            change(&mut engine);
            config.engines.insert("raw", engine);
        }
    };
    for prefix in [".", "app", "_app.", "a..b.", "a b.", "$SYS.", "*.", "own.", "dunlin."] {
        let paths = faults(&|config: &mut Config| {
            let mut engine = config.engines["raw"].clone();
            engine.raw_prefix = prefix.into();
            config.engines.insert("raw", engine);
        });
        assert_eq!(paths, ["engines.raw.raw_prefix"], "{prefix}");
    }
    assert_eq!(faults(&raw(|of| of.raw_separator = "-".into())), ["engines.raw.raw_separator"]);
    assert_eq!(
        faults(&raw(|of| (of.raw, of.raw_prefix) = (false, "app.".into()))),
        ["engines.raw.raw_prefix"]
    );
    let without = |config: &mut Config| {
        config.channel.without_namespace.engine = Some("raw".into());
    };
    assert_eq!(faults(&without), ["channel.without_namespace.engine"]);
    let dotted = faults(&|config: &mut Config| {
        without(config);
        raw(|of| (of.raw_prefix, of.raw_separator) = ("app.".into(), ".".into()))(config);
    });
    assert_eq!(dotted, ["channel.without_namespace.engine"]);
    let owned = faults(&|config: &mut Config| {
        raw(|of| of.raw_separator = ".".into())(config);
        namespace("dunlin", Some("raw"), |_| {})(config);
    });
    assert_eq!(owned, ["channel.namespaces.dunlin.engine"]);
}

#[test]
fn raw_engines_at_the_same_servers_have_subjects_of_their_own() {
    let faults = |prefixes: [&str; 2], change: &dyn Fn(&mut Engine)| {
        let mut config = Config::default();
        for (name, prefix) in ["a", "b"].into_iter().zip(prefixes) {
            let mut engine = Engine {
                kind: EngineKind::Nats,
                addresses: ["127.0.0.1:4222".to_owned(), "127.0.0.2:4222".to_owned()].into(),
                prefix: format!("own-{name}").into(),
                raw: true,
                raw_prefix: prefix.into(),
                ..Engine::default()
            };
            if name == "b" {
                change(&mut engine);
            }
            config.engines.insert(name, engine);
        }
        let errors = config.validate().err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for prefixes in [["", ""], ["", "app."], ["app.", ""], ["app.", "app.x."], ["app.", "app."]] {
        let errors = faults(prefixes, &|_| {});
        assert_eq!(errors.len(), 1, "{prefixes:?}: {errors:?}");
        let error = &errors[0];
        assert!(error.contains("engines.b.raw_prefix") && error.contains("\"a\""), "{error}");
        let one = |of: &mut Engine| of.addresses = ["127.0.0.2:4222".to_owned()].into();
        assert_eq!(faults(prefixes, &one).len(), 1, "one server is enough");
    }
    let apart = Vec::<String>::new();
    assert_eq!(faults(["app.", "apple."], &|_| {}), apart);
    assert_eq!(faults(["app.x.", "app.y."], &|_| {}), apart);
    let elsewhere = |of: &mut Engine| of.addresses = ["127.0.0.3:4222".to_owned()].into();
    assert_eq!(faults(["", ""], &elsewhere), apart);
    assert_eq!(
        faults(["", ""], &|of| of.token = Some(Secret::new("other"))),
        apart,
        "another account"
    );
    assert_eq!(faults(["", ""], &|of| of.raw = false).len(), 0);
}
