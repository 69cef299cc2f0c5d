//! The repository judged by its own rules (CONTRIBUTING.md): what a reviewer should not have to say twice.

mod imports;
mod paths;
mod repository;
mod words;

use std::path::Path;

use dunlin_config::{Config, docs, schema};
use repository::{Repository, report};

/// A longer module usually holds two nouns.
const RUST_LINES_MAX: usize = 1_200;
/// "How small the first example must be."
const EXAMPLE_LINES_MAX: usize = 40;
/// Crates that need `unsafe`; each block of theirs has a `SAFETY` comment, which clippy checks.
const UNSAFE_CRATES: [&str; 3] = ["bus", "load", "net"];

#[test]
fn a_rust_file_holds_one_noun() {
    let repository = Repository::read();
    let long = repository.ending(".rs").filter_map(|(name, text)| {
        let lines = text.lines().count();
        let max = if name.starts_with("crates/net/examples/") {
            EXAMPLE_LINES_MAX
        } else {
            RUST_LINES_MAX
        };
        (lines > max).then(|| format!("{name} has {lines} lines, more than {max}"))
    });
    report(&long.collect::<Vec<_>>());
}

#[test]
fn nothing_is_left_for_later() {
    let repository = Repository::read();
    // In two parts, so that this file is not its own finding.
    let marks = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("XX", "X"),
        ("todo", "!("),
        ("unimplemented", "!("),
        ("#[", "ignore"),
    ]
    .map(|(a, b)| format!("{a}{b}"));
    let mut complaints = Vec::new();
    for suffix in [".rs", ".py", ".mjs", ".js", ".html", ".toml", ".yml", ".sh"] {
        for (name, text) in repository.ending(suffix) {
            for (number, line) in (1..).zip(text.lines()) {
                if let Some(mark) = marks.iter().find(|mark| line.contains(mark.as_str())) {
                    complaints.push(format!("{name}:{number}: {mark}"));
                }
            }
        }
    }
    report(&complaints);
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let repository = Repository::read();
    let places = [("/ro", "ot/"), ("/ho", "me/"), ("/wo", "rk/"), ("/Us", "ers/")];
    let places = places.map(|(a, b)| format!("{a}{b}"));
    let mut complaints = Vec::new();
    for (name, text) in repository.ending("") {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(place) = places.iter().find(|place| is_path(line, place)) {
                complaints.push(format!("{name}:{number}: {place} is a path of one machine"));
            }
        }
    }
    report(&complaints);
}

/// Whether a line has an absolute path below `place`; `https://host/home/` does not.
fn is_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}*".contains(c))
    })
}

#[test]
fn a_crate_forbids_unsafe_unless_it_is_listed() {
    let repository = Repository::read();
    let roots = ["/src/lib.rs", "/src/main.rs"];
    let mut complaints = Vec::new();
    for name in repository.crates().iter().filter(|name| !UNSAFE_CRATES.contains(name)) {
        let folder = repository.folder(name);
        let root = roots.map(|root| repository.text(&format!("{folder}{root}"))).concat();
        if !root.contains("#![forbid(unsafe_code)]") {
            complaints.push(format!("{name} does not say #![forbid(unsafe_code)]"));
        }
    }
    report(&complaints);
}

#[test]
fn every_crate_follows_the_lints_says_what_it_is_and_has_a_readme() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    for name in repository.crates() {
        let (folder, manifest) = (repository.folder(name), repository.manifest(name));
        for line in ["[lints]\nworkspace = true", "\ndescription = \""] {
            if !manifest.contains(line) {
                complaints.push(format!("{folder}/Cargo.toml has no `{}`", line.trim()));
            }
        }
        let readme = repository.text(&format!("{folder}/README.md"));
        if readme.is_empty() {
            complaints.push(format!("{folder} has no README.md"));
        }
    }
    report(&complaints);
}

#[test]
fn a_crate_that_is_published_has_what_a_registry_asks_for() {
    let repository = Repository::read();
    let root = repository.text("Cargo.toml");
    let manifest = |name: &str| repository.manifest(name);
    let is_published = |name: &str| !manifest(name).contains("\npublish = false\n");
    let mut complaints = Vec::new();
    for name in repository.crates() {
        if root.contains(&format!("\ndunlin-{name} = {{ version = ")) != is_published(name) {
            complaints.push(format!("Cargo.toml gives a version to what is published: {name}"));
        }
        if !is_published(name) {
            continue;
        }
        for key in ["readme", "keywords", "categories", "documentation", "all-features"] {
            if !manifest(name).contains(&format!("\n{key} = ")) {
                complaints.push(format!("{name} is published without {key}"));
            }
        }
        let parsed: toml::Table = manifest(name).parse().expect("a manifest");
        let imports = parsed.get("dependencies").and_then(toml::Value::as_table);
        let imports = imports.into_iter().flat_map(toml::Table::keys);
        for import in imports.filter_map(|import| import.strip_prefix("dunlin-")) {
            if !is_published(import) {
                complaints.push(format!("{name} is published and needs {import}, which is not"));
            }
        }
    }
    report(&complaints);
}

#[test]
fn generated_pages_are_current() {
    let repository = Repository::read();
    let page = repository.text("docs/CONFIGURATION.md");
    assert!(page == docs::markdown(), "docs/CONFIGURATION.md is not current; run `make docs`");
    let mut dunlin = std::process::Command::new(env!("CARGO_BIN_EXE_dunlin"));
    let commands = String::from_utf8(dunlin.arg("reference").output().unwrap().stdout).unwrap();
    let page = repository.text("docs/reference/command-line.md").trim_end();
    assert!(
        page == commands.trim_end(),
        "docs/reference/command-line.md is not current; run `make docs`"
    );
}

#[test]
fn every_page_of_the_docs_is_in_the_summary() {
    let repository = Repository::read();
    let summary = repository.text("docs/SUMMARY.md");
    let listed: Vec<_> =
        summary.split("](").skip(1).filter_map(|of| of.split(')').next()).collect();
    let pages = repository.ending(".md").filter_map(|(name, _)| name.strip_prefix("docs/"));
    let missing = pages.filter(|page| *page != "SUMMARY.md" && !listed.contains(page));
    report(&missing.map(|page| format!("docs/SUMMARY.md lacks {page}")).collect::<Vec<_>>());
}

/// What examples have in the place of a secret.
const PLACEHOLDERS: [&str; 3] =
    ["\"put openssl rand -hex 32 here\"", "\"put the secret of your app here\"", "\"...\""];

/// Whether `text` has `word` with nothing of a word before or behind it.
fn is_word_of(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

/// What stands between backticks in docs, comments and messages.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn every_key_that_is_named_somewhere_exists() {
    let repository = Repository::read();
    let is_key = |name: &str| {
        let legal = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
        let mut steps = name.split('.');
        let section = steps.next().and_then(|section| schema::root().find(section));
        section.is_some()
            && name.contains('.')
            && name.chars().all(legal)
            && ![".rs", ".proto", ".com"].iter().any(|file| name.ends_with(file))
    };
    let mut complaints = Vec::new();
    let mut seen = 0;
    for (name, text) in repository.ending(".md").chain(repository.ending(".rs")) {
        for key in quoted(text).filter(|quoted| is_key(quoted)) {
            seen += 1;
            if schema::root().find(key).is_none() {
                complaints.push(format!("{name} names `{key}`, which is no key"));
            }
        }
    }
    assert!(seen > 50, "only {seen} were found");
    report(&complaints);
}

#[test]
fn every_metric_that_the_docs_name_exists() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    // The changelog names those that were renamed, too.
    for (name, text) in repository.ending(".md").filter(|(name, _)| *name != "CHANGELOG.md") {
        for metric in quoted(text).filter_map(|quoted| quoted.strip_prefix("dunlin_")) {
            // The reference of all is compared with a server by tests/interop/py/metrics.py.
            let literal = match metric.strip_suffix('*') {
                Some(begin) => format!("\"{begin}"),
                None => format!("\"{metric}\""),
            };
            if !repository.ending(".rs").any(|(_, text)| text.contains(&literal)) {
                complaints.push(format!("{name} names dunlin_{metric}, which is no metric"));
            }
        }
    }
    report(&complaints);
}

/// Replaces each placeholder of a secret by another secret.
fn with_secrets(toml: &str) -> String {
    let mut secrets = (1_u32..).map(|number| format!("{number:032x}"));
    toml.lines().fold(String::new(), |mut out, line| {
        let is_placeholder = PLACEHOLDERS.iter().find(|placeholder| line.contains(*placeholder));
        match is_placeholder.zip(secrets.next()) {
            Some((placeholder, secret)) => {
                out.push_str(&line.replace(placeholder, &format!("\"{secret}\"")));
            }
            None => out.push_str(line),
        }
        out.push('\n');
        out
    })
}

#[test]
fn every_configuration_in_the_docs_is_valid() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    let mut judged = 0;
    let mut judge_one = |place: String, toml: &str| {
        judged += 1;
        // The secrets of examples are placeholders, which are refused: everybody who reads the page knows them.
        let toml = with_secrets(toml);
        let faults = match Config::from_toml(&toml) {
            Ok(config) => config.validate().err(),
            Err(faults) => Some(faults),
        };
        if let Some(faults) = faults {
            complaints.push(format!("{place}: {faults}"));
        }
    };
    for (name, text) in repository.ending(".md") {
        for (index, block) in text.split("```toml\n").skip(1).enumerate() {
            let toml = block.split("```").next().unwrap_or_default();
            judge_one(format!("{name}, block {}", index + 1), toml);
        }
    }
    for (name, text) in
        repository.ending(".toml").filter(|(name, _)| name.starts_with("tests/interop/config/"))
    {
        judge_one(name.to_owned(), text);
    }
    assert!(judged > 0, "none was found");
    report(&complaints);
}

#[test]
fn every_link_of_the_docs_leads_somewhere() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    for (name, text) in repository.ending(".md") {
        let folder = repository.root.join(name).parent().map(Path::to_owned).unwrap_or_default();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !outside && !folder.join(target).exists() {
                complaints.push(format!("{name}: {link} is not there"));
            }
        }
    }
    report(&complaints);
}

#[test]
fn text_is_clean() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    for suffix in [".rs", ".toml", ".md", ".py", ".mjs", "/run", "/setup", "Makefile", "/serve"] {
        for (name, text) in repository.ending(suffix) {
            if !text.is_empty() && !text.ends_with('\n') {
                complaints.push(format!("{name} does not end with a newline"));
            }
            let dirty = |line: &str| line.ends_with([' ', '\t', '\r']);
            if let Some((number, _)) = (1..).zip(text.split('\n')).find(|(_, line)| dirty(line)) {
                complaints.push(format!("{name}:{number} ends with a blank"));
            }
        }
    }
    report(&complaints);
}

/// The crates that turn settings into what guards something.
const ROOMS: [&str; 6] = ["access", "api", "cluster", "engine-servers", "push-service", "server"];

/// What builds a guard of a setting, and the files of the rooms of the server that may call it. Each of them closes what cannot be built:
/// it returns no `Result` from which a caller could make "no restriction".
const GUARDS: [(&str, &[&str]); 6] = [
    ("RegexBuilder::new(", &["access/src/namespace/bounded_regex.rs"]),
    ("Regex::new(", &[]),
    ("ENV.compile(", &["access/src/namespace/expression.rs"]),
    ("Tls::system(", &["engine-servers/src/tls.rs"]),
    ("WebPkiClientVerifier::", &["server/src/tls.rs"]),
    (
        "Tls::with_roots(",
        // All but the first return the error to whoever was about to connect.
        &[
            "engine-servers/src/tls.rs",
            "server/src/control/key_fetcher.rs",
            "server/src/exporter/mod.rs",
            "server/src/webhooks/checks.rs",
            "server/src/webhooks/sender.rs",
            "server/src/worker/backends.rs",
        ],
    ),
];

#[test]
fn a_guard_of_a_setting_is_built_where_it_is_closed_if_it_cannot_be() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    let files = repository.ending(".rs").filter_map(|(name, text)| {
        let name = name.strip_prefix("crates/")?;
        let (room, _) = name.split_once("/src/")?;
        let is_test = name.contains("tests") || name.ends_with("testkit.rs");
        (ROOMS.contains(&room) && !is_test).then_some((name, text))
    });
    for (name, text) in files {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (call, allowed) in GUARDS {
            if code.contains(call) && !allowed.contains(&name) {
                complaints.push(format!(
                    "crates/{name} calls {call}): a setting that it cannot build must close what it guards, as in {allowed:?}"
                ));
            }
        }
        for (at, line) in (1..).zip(code.lines()) {
            let builds = ["with_roots(", "of_setting(", "tls.client(", "peer::trust("];
            if line.contains(".ok()") && builds.iter().any(|call| line.contains(call)) {
                complaints.push(format!("crates/{name}:{at} drops why a guard cannot be built"));
            }
        }
    }
    report(&complaints);
}

/// Where clients, backends and operators are refused, each with how often it stands there: beside the call that writes to the log. Who
/// refuses elsewhere would leave no line.
const REFUSALS: [(&str, &str, usize); 7] = [
    ("Reply::Error(", "crates/server/src/worker/command.rs", 3),
    ("Outgoing::Disconnect {", "crates/server/src/worker/command.rs", 1),
    ("event::write_error(", "crates/server/src/worker/pusher.rs", 1),
    ("event::write_subscription_error(", "crates/server/src/worker/pusher.rs", 1),
    ("cx.respond(", "crates/server/src/worker/reply.rs", 1),
    (".answer_http_error(", "crates/server/src/worker/stream.rs", 1),
    (".answer_websocket_error(", "crates/server/src/worker/stream.rs", 1),
];

#[test]
fn a_refusal_is_made_where_it_is_logged() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    for (refusal, place, times) in REFUSALS {
        let found = repository.ending(".rs").filter(|(name, _)| {
            name.starts_with("crates/server/src/worker/") && !name.contains("fuzz_targets")
        });
        for (name, text) in found {
            let count = text.matches(refusal).count();
            let wanted = if name == place { times } else { 0 };
            if count != wanted {
                complaints.push(format!(
                    "{name}: {refusal} stands {count} times, not {wanted}: see worker::logged"
                ));
            }
        }
    }
    report(&complaints);
}
