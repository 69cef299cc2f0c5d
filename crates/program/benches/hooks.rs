//! What a program costs: `cargo bench -p dunlin-program --features luau`.
//!
//! One thread. The floor is what the host does for an event in any case: a program that looks at nothing and decides nothing. Beside the
//! time of events: memory of a machine that has handled one, and how long an endless loop lives.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_program::{Code, Decision, Field, Hook, Limits, Machine, Store};

const EVENTS: u32 = 200_000;
const ROUNDS: usize = 5;
const MACHINES: usize = 20;

const NOTHING: &str = "return { publish = function(event) return nil end }";
const RULE: &str = "return { publish = function(event)
    if string.find(event.raw, 'http', 1, true) then return dunlin.refuse(403, 'no links') end
    return nil
end }";
const READS: &str = "return { publish = function(event)
    if event.data.text == 'spam' then return false end
    return true
end }";
const REWRITES: &str = "return { publish = function(event)
    return { data = { text = event.data.text, by = event.user } }
end }";
const LOOP: &str = "return { publish = function(event) while true do end end }";

fn main() {
    println!("{:<52}{:>10}{:>10}", "an event of publish, 100 bytes", "ns", "worst");
    for (what, source) in [
        ("decides nothing (floor)", NOTHING),
        ("looks at the text, leaves it to the rules", RULE),
        ("reads the JSON, permits", READS),
        ("reads the JSON, returns another", REWRITES),
    ] {
        let mut machine = start(source);
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(&mut *machine)).collect();
        rounds.sort_by(f64::total_cmp);
        println!("{what:<52}{:>10.0}{:>10.0}", rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    }
    let before = resident();
    let mut machines: Vec<_> = (0..MACHINES).map(|_| start(REWRITES)).collect();
    machines.iter_mut().for_each(|machine| drop(ask(&mut **machine)));
    let each = resident().saturating_sub(before) / MACHINES;
    println!("\n{MACHINES} machines: {} KiB each, resident", each >> 10);
    let mut machine = start(LOOP);
    let mut ends: Vec<Duration> = (0..100)
        .map(|_| {
            let begun = Instant::now();
            assert!(ask(&mut *machine).is_err(), "it is ended");
            begun.elapsed()
        })
        .collect();
    ends.sort_unstable();
    println!("an endless loop ends after {:?}, the longest of 100 after {:?}", ends[50], ends[99]);
}

fn start(source: &str) -> Box<dyn Machine> {
    let code = Code::compile("bench", source, Limits::default()).expect("the program is right");
    let kv = Rc::new(RefCell::new(Store::new(1 << 20)));
    code.start(Limits::default(), &kv).expect("it starts")
}

fn ask(machine: &mut dyn Machine) -> Result<Decision, dunlin_program::Fault> {
    const DATA: &str = r#"{"text":"what somebody says in a room, of the length that messages have","n":1234567,"z":"12"}"#;
    let event = [
        ("client", Field::from("3377699720527872")),
        ("user", "2694".into()),
        ("transport", "websocket".into()),
        ("address", "192.0.2.7".into()),
        ("channel", "chat:room".into()),
        ("permitted", Field::Bool(true)),
        ("raw", DATA.into()),
    ];
    machine.ask(Hook::Publish, &event, 1_700_000_000_000)
}

/// Returns the mean of an event, in nanoseconds.
fn round(machine: &mut dyn Machine) -> f64 {
    let begun = Instant::now();
    for _ in 0..EVENTS {
        ask(machine).expect("it decides");
        machine.collect();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(EVENTS)
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
