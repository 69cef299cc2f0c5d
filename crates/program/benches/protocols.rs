//! What a protocol costs in its program: `cargo bench -p dunlin-program --features luau --bench protocols`.
//!
//! One thread, the IRC server of the examples, and a host that answers each call at once: what the server adds is not in these figures. The
//! floor is a program that takes a line and does nothing. Beside it: the memory of idle connections, and of swaps with connections that are
//! handed on.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use dunlin_program::{
    Code, ConnEvent, ConnKey, Cut, Framing, Input, Limits, Machine, Progress, Store, Target,
};

const LINES: u32 = 200_000;
const ROUNDS: usize = 5;
const CONNS: ConnKey = 10_000;
const SWAPS: usize = 1_000;
const NOTHING: &str = "return { frame = function() end }";
const IRC: &str = include_str!("../examples/irc.luau");
const PUSH: &[u8] = br#"{"channel":"irc:room","pub":{"data":{"text":"what somebody says in a room"},"info":{"user":"bob","client":"7"}}}"#;

fn main() {
    println!("{:<44}{:>12}{:>12}{:>14}", "a line", "ns", "worst", "lines/s");
    for (what, source, line, push) in [
        ("taken, no more (floor)", NOTHING, "PRIVMSG #room :what somebody says in a room", false),
        ("PING", IRC, "PING 12345", false),
        ("PRIVMSG", IRC, "PRIVMSG #room :what somebody says in a room", false),
        ("PRIVMSG, and one who hears it", IRC, "PRIVMSG #room :what somebody says in a room", true),
    ] {
        let mut machine = start(source);
        connect(&mut *machine, 1, source);
        connect(&mut *machine, 2, source);
        let text = format!("{line}\r\n").repeat(100);
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(&mut *machine, &text, push)).collect();
        rounds.sort_by(f64::total_cmp);
        let (median, worst) = (rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
        println!("{what:<44}{median:>12.0}{worst:>12.0}{:>14.0}", 1e9 / median);
    }

    let mut machine = start(IRC);
    let before = machine.memory_bytes();
    for key in 0..CONNS {
        connect(&mut *machine, key, IRC);
        machine.collect();
    }
    let each = (machine.memory_bytes() - before) / CONNS as usize;
    println!("\n{CONNS} connections of IRC clients: {each} bytes each, garbage included");

    let begun = Instant::now();
    let mut handed_on = 0;
    for _ in 0..SWAPS {
        let mut next = start(IRC);
        for key in 0..10 {
            let state = machine.export(key).expect("it has a state");
            machine.forget(key);
            next.import(key, &[("user", "ann".into())], &state, 0).expect("it is taken over");
            handed_on += 1;
        }
        machine = next;
    }
    println!(
        "{SWAPS} swaps, 10 connections handed on in each: {:.0} µs a swap, {handed_on} kept",
        begun.elapsed().as_micros() as f64 / SWAPS as f64
    );
}

fn start(source: &str) -> Box<dyn Machine> {
    let kv = Rc::new(RefCell::new(Store::new(1 << 20)));
    let code = Code::compile("bench", source, Limits::default()).expect("the program is right");
    code.start(Limits::default(), &kv).expect("it starts")
}

fn connect(machine: &mut dyn Machine, key: ConnKey, source: &str) {
    let fields = [("transport", "tcp".into()), ("address", "192.0.2.1".into())];
    finish(machine, key, machine_event(key, ConnEvent::Open(&fields)));
    if source == IRC {
        let nick = format!("NICK n{key}");
        finish(machine, key, machine_event(key, ConnEvent::Frame(nick.as_bytes())));
        finish(machine, key, machine_event(key, ConnEvent::Frame(b"USER x")));
        finish(machine, key, machine_event(key, ConnEvent::Frame(b"JOIN #room")));
    }
}

fn machine_event(
    key: ConnKey,
    event: ConnEvent<'_>,
) -> impl FnOnce(&mut dyn Machine) -> Progress + '_ {
    move |machine| machine.handle_event(key, event, 0).expect("it does not fail")
}

/// Runs an event to its end, and answers what it calls.
fn finish(
    machine: &mut dyn Machine,
    key: ConnKey,
    event: impl FnOnce(&mut dyn Machine) -> Progress,
) {
    let mut progress = event(machine);
    machine.take_effects();
    while let Progress::Waits(call) = progress {
        let answer: &[u8] = match call.target {
            Target::Client("connect") => br#"{"client":"1","user":"ann"}"#,
            Target::Client("presence") => br#"{"presence":{}}"#,
            Target::Shared => b"true",
            _ => b"{}",
        };
        progress = machine.handle_answer(key, Ok(answer), 0).expect("it does not fail");
        machine.take_effects();
    }
}

/// Returns the mean of a line, in nanoseconds.
fn round(machine: &mut dyn Machine, text: &str, push: bool) -> f64 {
    let (mut input, framing) = (Input::default(), Framing::Lines { bytes_max: 512 });
    let begun = Instant::now();
    for _ in 0..LINES / 100 {
        input.add(text.as_bytes());
        while let Cut::Frame(frame, _) = input.cut(&framing) {
            finish(machine, 1, machine_event(1, ConnEvent::Frame(frame)));
            if push {
                finish(machine, 2, machine_event(2, ConnEvent::Push(PUSH)));
            }
        }
        machine.collect();
    }
    begun.elapsed().as_nanos() as f64 / f64::from(LINES)
}
