//! `kill -9` at every step of a commit, with clients connected and changes under way: what the next start finds.
//!
//! A incarnation is played once to its end, with each step it comes to written down. Then it is played again for each of these
//! steps, and dies there. What is found afterwards has to be one of the configurations that were acknowledged, the
//! newest of them or the one whose acknowledgement was under way; where the step says which of the two, that one.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod incarnation;
mod listener;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::kit::{Addresses, Served};
use incarnation::{Found, Incarnation, Story};

/// Every step there is, but for those of the disk that depend on how much was reserved before.
const STEPS: &[&str] = &[
    "start>create",
    "start>write",
    "start>write-half",
    "start>sync",
    "start>rename",
    "append",
    "append>reserve",
    "append>write",
    "append>write-half",
    "appended",
    "published",
    "woken",
    "adopt",
    "adopted",
    "confirm",
    "confirm>write",
    "confirm>write-half",
    "confirmed",
    "answer",
    "answered",
    "roll-back",
    "roll-back>write",
    "roll-back>write-half",
    "rolled-back",
    "refuse",
    "sync",
    "sync>sync",
    "sync>sync-names",
    "synced",
    "durable",
    "durable-answered",
    "trial",
    "tried",
    "compaction",
    "compaction>create",
    "compaction>reserve",
    "compaction>write",
    "compaction>write-half",
    "compact",
    "compact>create",
    "compact>write",
    "compact>write-half",
    "compact>sync",
    "compact>rename",
    "compact>sync-names",
    "compact>remove",
    "compacted",
];
/// Deaths at one step: at its first time, its last, and one between.
const DEATHS_A_STEP: u32 = 3;
/// Lives at once; they wait for the disk more than for a core.
const AT_ONCE: usize = 4;

/// A incarnation, and the time of a step at which it ends.
struct Death {
    story: Story,
    step: String,
    time: u32,
}

#[test]
fn a_process_killed_at_any_step_of_a_commit_finds_what_it_acknowledged() {
    let grown = tempfile::tempdir().unwrap();
    incarnation::grow(grown.path());
    let mut deaths: Vec<Death> = Vec::new();
    let mut known = BTreeSet::new();
    for story in [Story::Changes, Story::Trial, Story::Compaction] {
        let reached = steps_of(story, grown.path());
        for (step, times) in reached {
            if known.insert(step.clone()) {
                let times = BTreeSet::from([1, times.div_ceil(2), times]);
                let times = times.into_iter().take(DEATHS_A_STEP as usize);
                deaths.extend(times.map(|time| Death { story, step: step.clone(), time }));
            }
        }
    }
    let missing: Vec<_> = STEPS.iter().filter(|step| !known.contains(**step)).collect();
    assert!(missing.is_empty(), "no incarnation comes to {missing:?}; they come to {known:?}");

    let total = deaths.len();
    let deaths = Mutex::new(deaths);
    let died = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(death) = deaths.lock().unwrap().pop() else { return };
                    if die(&death, grown.path()) {
                        died.lock().unwrap().insert(death.step);
                    }
                }
            });
        }
    });
    // How often workers look for something newer is theirs: a third time need not come. A first one does.
    let died = died.into_inner().unwrap();
    let alive: Vec<_> = known.difference(&died).collect();
    assert!(alive.is_empty(), "of {total} incarnations none died at {alive:?}");
}

/// Lives to the end; gives the steps there were, and how often each.
fn steps_of(story: Story, grown: &Path) -> BTreeMap<String, u32> {
    let state = story.state(grown);
    let trace = state.path().join("trace");
    let environment = [("DUNLIN_CRASH_TRACE", trace.to_str().unwrap())];
    let at = Addresses::new();
    let mut served = Served::begin(state.path(), at, "", &environment).expect("it starts");
    let mut incarnation = Incarnation::begin(&served).expect("it lives");
    assert!(incarnation.play(&served, story), "it lives to the end");
    incarnation.everybody_is_still_connected(&served);
    served.kill();
    let mut reached = BTreeMap::new();
    for step in fs::read_to_string(&trace).unwrap().lines() {
        *reached.entry(step.to_owned()).or_default() += 1;
    }
    // Killed when nothing was under way, it finds all of it.
    let served = Served::begin(state.path(), at, "", &[]).expect("it starts again");
    incarnation.judge(&Found::by(&served), "the end");
    reached
}

/// Lives until the step, and looks at what is left. False when that step's time did not come.
fn die(death: &Death, grown: &Path) -> bool {
    let Death { story, step, time } = death;
    let state = story.state(grown);
    let plan = format!("{step}:{time}");
    let at = Addresses::new();
    let mut incarnation = None;
    if let Some(mut served) =
        Served::begin(state.path(), at, "", &[("DUNLIN_CRASH_AT", plan.as_str())])
    {
        incarnation = Incarnation::begin(&served);
        if let Some(incarnation) = &mut incarnation
            && incarnation.play(&served, *story)
        {
            // The step may still come by itself: what nobody waited for is synced within a second.
            return false;
        }
        served.kill();
    }
    let served = Served::begin(state.path(), at, "", &[])
        .unwrap_or_else(|| panic!("killed at {plan}, it does not start again"));
    let found = Found::by(&served);
    if let Some(incarnation) = &incarnation {
        incarnation.judge(&found, step);
    }
    found.is_run(&served);
    let (status, answer) =
        served.call("PUT", "/config/channel/namespaces/after?durable=1", "{}").expect("it goes on");
    assert_eq!(status, 201, "killed at {plan}: {answer}");
    true
}
