//! What the fuzzer feeds, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by `tests/fuzz_corpus.rs`, which replays the seeds. Each target takes any
//! bytes and panics when an invariant is broken.

use std::sync::{Arc, OnceLock};

use dunlin_config::import::{Format, Import, Origin};
use dunlin_config::store::{InitialConfig, Store};
use dunlin_config::{Change, Config, Pattern, Pointer, Secrets, Snapshot, json};
use dunlin_log::simulated::SimulatedDisk;

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[
    ("config_json", json),
    ("config_pointer", pointer),
    ("config_change", change),
    ("config_log", log),
    ("config_centrifugo", centrifugo),
];

/// A file of another server makes a valid one, with no door open that was not open there.
fn centrifugo(text: &[u8]) {
    let Some((kind, text)) = text.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let format = match kind % 4 {
        0 => Format::Json,
        1 => Format::Yaml,
        2 => Format::Toml,
        _ => Format::Environment,
    };
    let import = Import { without_engine: kind % 8 > 3, ..Import::of(text, format) };
    let Ok(imported) = import.run() else { return };
    assert_eq!(imported.config.validate(), Ok(()));
    let (read, errors) = Config::from_toml_partly(&imported.toml);
    assert!(errors.is_empty() && read == imported.config, "{errors}\n{}", imported.toml);
    // What the result lets anybody do stands in the text with the word for it.
    let text = text.to_lowercase();
    let config = imported.config;
    assert!(!config.api.without_key && !config.client.demo_page && !config.channel.any_namespace);
    assert!(!config.client.anonymous || text.contains("anonymous"));
    // Channels of v3 are open unless something closes them.
    if imported.origin == Origin::CentrifugoV3 {
        return;
    }
    let rules = config.channel.namespaces.values();
    for options in rules.chain(std::iter::once(&config.channel.without_namespace)) {
        let serde_json::Value::Object(options) = serde_json::to_value(options).expect("JSON")
        else {
            return;
        };
        for (name, value) in options.iter().filter(|(name, _)| name.starts_with("allow_")) {
            assert!(*value != true || text.contains(name.as_str()), "{name}");
        }
    }
}

/// What is read strictly is what serde_json reads, or refused with at least one error.
fn json(text: &[u8]) {
    match json::parse(text, 4_096) {
        Ok(value) => {
            let lenient: serde_json::Value = serde_json::from_slice(text).expect("JSON");
            assert_eq!(value, lenient);
        }
        Err(errors) => assert!(!errors.is_empty() && !errors.to_string().is_empty()),
    }
}

/// A pointer and a pattern are written as they were read.
fn pointer(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Ok(pointer) = Pointer::parse(text) {
        assert_eq!(pointer.to_string(), text);
        assert_eq!(Pointer::parse(text).as_ref(), Ok(&pointer));
        let shown = base().get(&pointer, Secrets::Hidden);
        assert_eq!(shown.is_some(), base().get(&pointer, Secrets::Shown).is_some());
    }
    if let Ok(pattern) = Pattern::parse(text.split(' ').next().unwrap_or(text)) {
        assert_eq!(Pattern::parse(pattern.as_str()).as_ref(), Ok(&pattern));
    }
}

/// Whatever is taken is valid, leads there and back, and says what it did.
fn change(text: &[u8]) {
    let Some((kind, text)) = text.split_first() else { return };
    let change = match kind % 3 {
        0 => Change::merge(text),
        1 => Change::patch(text),
        _ => Change::put(Pointer::root(), text),
    };
    let Ok(Ok(prepared)) = change.map(|change| base().prepare(&change, None)) else { return };
    let next = prepared.snapshot();
    assert_eq!(next.config.validate(), Ok(()));
    assert_eq!(prepared.is_unchanged(), next.config == base().config);
    assert_eq!(next.changes_from(base()), prepared.changes());
    let back = next.prepare(&Change::Restore(Arc::clone(base())), None).expect("it was valid");
    assert_eq!(back.snapshot().config, base().config);
    let all = next.get(&Pointer::root(), Secrets::Shown).expect("all of it");
    assert_eq!(Config::from_json(all).as_ref(), Ok(&next.config));
}

/// Settings with something of everything.
fn base() -> &'static Arc<Snapshot> {
    static BASE: OnceLock<Arc<Snapshot>> = OnceLock::new();
    BASE.get_or_init(|| {
        let config = Config::from_toml(
            "[api.keys]\nbackend = '0123456789abcdef'\n\
             [channel.namespaces.chat]\npresence = true\n\
             [client]\nallowed_origins = ['https://a.example', 'https://b.example']\n\
             [webhooks.upstreams.u.members.m]\naddress = '10.0.0.7:80'\n\
             [webhooks.hooks.h]\nupstream = 'u'\nevents = ['publish']\n",
        );
        Arc::new(Snapshot::new(1, config.expect("it is read")).expect("it is valid"))
    })
}

/// Whatever stands in the log, a store opens, and what it found it finds again.
fn log(bytes: &[u8]) {
    let disk = SimulatedDisk::default();
    let open = |disk: &SimulatedDisk| {
        let start = InitialConfig {
            config: Ok(Config::default()),
            name: "dunlin.toml".into(),
            judge: |_, _, _| {},
        };
        Store::open(Some(Box::new(disk.clone())), start, 0).expect("a store")
    };
    drop(open(&disk));
    disk.set_bytes("00000000000000000001.log", bytes.to_vec());
    let (store, recovery) = open(&disk);
    assert_eq!(store.head().config.validate(), Ok(()));
    let (again, second) = open(&disk);
    assert_eq!(again.head().config, store.head().config);
    assert!(second.warnings.len() <= recovery.warnings.len());
}
