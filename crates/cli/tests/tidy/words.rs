//! One name for each thing: words that were replaced do not come back.

use crate::repository::{Repository, report};

/// A word or a sequence of words, and what to write instead. `hand out` is found in prose, in `hand_out`, `HandOut` and
/// `HAND_OUTS`; case and a final `s` do not matter.
const DENIED: &[(&str, &str)] = &[
    ("affected are", "counts, or what was counted"),
    ("as far as it goes", "up to where"),
    ("another life", "another generation, or run"),
    ("asker", "requester, or call origin"),
    ("befall", "happen to"),
    ("befell", "happened to"),
    ("board", "delivery stats"),
    ("bury", "reap closed"),
    ("census", "scatter-gather"),
    ("change ask", "shared change request"),
    ("change news", "shared change event"),
    ("contest", "comparison"),
    ("courier", "threaded client"),
    ("dialect", "protocol"),
    ("crowd", "many clients"),
    ("entrant", "candidate"),
    ("fate", "replay decision, or reply mode"),
    ("findings", "report"),
    ("hand out", "emit, return or pass"),
    ("happening", "hook event"),
    ("judgement", "result, or decision"),
    ("life of the process", "run of the process"),
    ("lane", "queue, channel state or connection group"),
    ("maker", "owner"),
    ("mood", "fault profile"),
    ("namesake", "name conflict"),
    ("parcel", "bus message or chunk"),
    ("parched", "memory blocked"),
    ("patience", "timeout"),
    ("payer", "budget key"),
    ("perhaps twice", "possible duplicate"),
    ("postman", "webhook sender"),
    ("pulse", "loop stats"),
    ("relieve", "evict or enforce limit"),
    ("ruling", "decision"),
    ("seat", "endpoint, or slot"),
    ("shed", "evict or enforce limit"),
    ("sign of life", "heartbeat, keep-alive or lease renewal"),
    ("signs of life", "heartbeats, keep-alives or lease renewals"),
    ("speller", "encoder"),
    ("telling", "webhook emitter, or reported"),
    ("these are online", "presence reply"),
    ("timetable", "schedule"),
    ("told", "reported, notified, sent or logged"),
    ("town", "test server"),
    ("trouble", "error, or failure"),
    ("verdict", "result, entry or decision"),
    ("whose word", "who is trusted"),
];

/// Files that may use a denied word: the word, the beginning of their paths, and why.
const EXCEPTIONS: &[(&str, &str, &str)] =
    &[("lane", "crates/wire/src/websocket/mask.rs", "a part of a vector register is a lane")];

/// Files that are not prose or code of today: histories, and measurements.
const NOT_JUDGED: [&str; 5] = [
    "CHANGELOG.md",
    "Cargo.lock",
    "crates/cli/tests/tidy/words.rs",
    "docs/BENCHMARKS.md",
    "docs/benchmarks/",
];

/// The words of a line in lower case: `OrderedQueue::push_back` has four.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    let mut signs = line.chars().peekable();
    while let Some(sign) = signs.next() {
        if sign.is_alphanumeric() {
            let ends_acronym =
                before.is_uppercase() && signs.peek().is_some_and(|c| c.is_lowercase());
            let begins = !before.is_alphanumeric()
                || sign.is_uppercase() && (before.is_lowercase() || ends_acronym);
            if begins {
                words.push(String::new());
            }
            words.last_mut().expect("a word has begun").extend(sign.to_lowercase());
        }
        before = sign;
    }
    words
}

fn has(words: &[String], phrase: &[&str]) -> bool {
    words.windows(phrase.len()).any(|window| {
        let (last, rest) = window.split_last().expect("a phrase has a word");
        let (last_due, rest_due) = phrase.split_last().expect("a phrase has a word");
        rest == rest_due && (last == last_due || last.strip_suffix('s') == Some(last_due))
    })
}

#[test]
fn words_that_were_replaced_do_not_come_back() {
    let repository = Repository::read();
    let denied: Vec<(Vec<&str>, &str)> =
        DENIED.iter().map(|(words, instead)| (words.split(' ').collect(), *instead)).collect();
    let mut used = vec![false; EXCEPTIONS.len()];
    let mut complaints = Vec::new();
    for (name, text) in repository.ending("") {
        if NOT_JUDGED.iter().any(|path| name.starts_with(path)) {
            continue;
        }
        for (number, line) in (0..).zip(std::iter::once(name).chain(text.lines())) {
            let line = words(line);
            for (phrase, instead) in denied.iter().filter(|(phrase, _)| has(&line, phrase)) {
                let phrase = phrase.join(" ");
                let exception = EXCEPTIONS
                    .iter()
                    .position(|(word, path, _)| *word == phrase && name.starts_with(path));
                match exception {
                    Some(exception) => used[exception] = true,
                    None => complaints.push(format!("{name}:{number}: {phrase}: say {instead}")),
                }
            }
        }
    }
    for ((word, path, _), _) in EXCEPTIONS.iter().zip(&used).filter(|(_, used)| !**used) {
        complaints.push(format!("{path} does not say {word} any more; take the exception away"));
    }
    report(&complaints);
}

#[test]
fn words_are_found_in_names_and_prose() {
    let found = |line: &str| has(&words(line), &["hand", "out"]);
    for line in ["hand out", "fn hand_out()", "HandOut", "HAND_OUTS", "HTTPHandOut", "x.hand_outs"]
    {
        assert!(found(line), "{line}");
    }
    for line in ["handout", "out hand", "beforehand out", "hand of outs", "hand"] {
        assert!(!found(line), "{line}");
    }
}
