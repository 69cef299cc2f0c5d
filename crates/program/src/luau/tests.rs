//! What a hostile or a mistaken program can do, and what it cannot.

use std::time::{Duration, Instant};

use super::*;
use crate::code::{Code, KV_BYTES_MAX};
use crate::suite;

const MODERATION: &str = r#"
local hooks = {}
function hooks.publish(event)
    if event.data.text == "spam" then
        return dunlin.refuse(403, "no advertising")
    end
    if event.data.text == "flood" then
        return dunlin.disconnect(4501, "too much")
    end
    if event.data.text == "rules" then
        return nil
    end
    return { data = { text = string.upper(event.data.text), by = event.user }, skip_history = true }
end
return hooks
"#;

fn start(source: &str) -> Box<dyn Machine> {
    start_within(source, Limits::default())
}

fn start_within(source: &str, limits: Limits) -> Box<dyn Machine> {
    Code::compile("p", source, limits)
        .expect("the program is right")
        .start(limits, &Rc::new(RefCell::new(Store::new(KV_BYTES_MAX))))
        .expect("it starts")
}

fn publish(machine: &mut dyn Machine, data: &str) -> Result<Decision, Fault> {
    let event = [("user", Field::from("ann")), ("channel", "chat".into()), ("raw", data.into())];
    machine.ask(Hook::Publish, &event, 0)
}

/// A program whose publish hook has this body.
fn hook(body: &str) -> Box<dyn Machine> {
    start(&format!("return {{ publish = function(event) {body} end }}"))
}

fn fault(body: &str) -> Fault {
    let mut machine = hook(body);
    let fault = publish(&mut *machine, "{}").expect_err("it fails");
    // It can be asked further.
    let _ = publish(&mut *machine, "{}");
    fault
}

#[test]
fn hook_grants_refuses_disconnects_or_leaves_it_to_the_rules() {
    let mut machine = start(MODERATION);
    let granted = publish(&mut *machine, r#"{"text":"hello"}"#);
    let Ok(Decision::Granted(result)) = granted else { panic!("{granted:?}") };
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(
        result,
        serde_json::json!({"data": {"text": "HELLO", "by": "ann"}, "skip_history": true})
    );
    let refused = Decision::Refused(403, "no advertising".into());
    assert_eq!(publish(&mut *machine, r#"{"text":"spam"}"#), Ok(refused));
    let disconnected = Decision::Disconnected(4501, "too much".into());
    assert_eq!(publish(&mut *machine, r#"{"text":"flood"}"#), Ok(disconnected));
    assert_eq!(publish(&mut *machine, r#"{"text":"rules"}"#), Ok(Decision::Rules));
    assert_eq!(publish(&mut *hook("return true"), ""), Ok(Decision::Granted(b"{}".to_vec())));
    assert_eq!(publish(&mut *hook("return false"), ""), Ok(Decision::Denied));
}

#[test]
fn syntax_error_names_program_and_line() {
    let error =
        Code::compile("moderate", "local a = 1\nlocal b = = 2", Limits::default()).unwrap_err();
    assert_eq!((&*error.program, error.line), ("moderate", Some(2)), "{error}");
    assert!(error.to_string().starts_with("program \"moderate\", line 2: "), "{error}");
}

#[test]
fn error_at_the_start_names_the_line_and_a_missing_table_the_fix() {
    let error = Code::compile("p", "local a\n\nlocal b = a.c", Limits::default()).unwrap_err();
    assert_eq!(error.line, Some(3), "{error}");
    for (source, fix) in [
        ("local a = 1", "end it with `return {"),
        ("return {}", "end it with `return {"),
        (
            "return { pubish = print }",
            "there is no hook \"pubish\"; the hooks are connect, subscribe, publish",
        ),
        ("return { publish = 7 }", "write a function"),
        ("while true do end", "does not start within"),
    ] {
        let error = Code::compile("p", source, Limits::default()).unwrap_err();
        assert!(error.message.contains(fix), "{error}");
    }
    let large = format!("--{}", "x".repeat(10 << 20));
    let error = Code::compile("p", &large, Limits::default()).unwrap_err();
    assert!(error.message.contains("are allowed"), "{error}");
    let deep = format!("return {}{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(Code::compile("p", &deep, Limits::default()).is_err());
}

#[test]
fn error_of_a_hook_names_its_line_and_cause() {
    let mut machine = start("return { publish = function(event)\n  local a\n  return a.b\nend }");
    let fault = publish(&mut *machine, "{}").unwrap_err();
    assert_eq!((fault.kind, fault.line), (FaultKind::Error, Some(3)), "{fault}");
    assert!(fault.message.contains("attempt to index nil with 'b'"), "{fault}");
    // Raised by the host's function: the line is the caller's.
    let mut machine =
        start("return { publish = function(event)\n\n  return event.data.text\nend }");
    let fault = publish(&mut *machine, "no json").unwrap_err();
    assert_eq!(fault.line, Some(3), "{fault}");
    assert!(fault.message.contains("it is no JSON"), "{fault}");
    let mut machine =
        start("return { publish = function(event)\n\n  return dunlin.refuse(7, 'x')\nend }");
    let fault = publish(&mut *machine, "").unwrap_err();
    assert_eq!(fault.line, Some(3), "{fault}");
}

#[test]
fn endless_program_ends_within_its_time() {
    for body in [
        "while true do end",
        "repeat pcall(function() while true do end end) until false",
        "local function f() while true do pcall(f) end end f()",
        "for i = 1, 1e18 do end",
        "local t = setmetatable({}, {__index = function(t, k) while true do end end}) return t.x",
        "coroutine.wrap(function() while true do end end)()",
        "return xpcall(function() while true do end end, function() while true do end end)",
        "string.gsub(string.rep('a', 1000), '.', function() while true do end end)",
        "table.sort({3, 2, 1}, function() while true do end end)",
        // It catches the error that ends it.
        "pcall(function() while true do end end) return true",
    ] {
        let begun = Instant::now();
        let fault = fault(body);
        assert_eq!(fault.kind, FaultKind::Time, "{body}: {fault}");
        assert!(fault.message.contains("it runs longer than"), "{fault}");
        // Twice: it is asked two times. Generous, for the machine may be busy.
        assert!(begun.elapsed() < Duration::from_millis(500), "{body}: {:?}", begun.elapsed());
    }
}

#[test]
fn library_calls_without_interrupts_are_bounded() {
    for body in [
        // Patterns are interrupted at each step, and nest 200 deep at most.
        "return string.find(string.rep('a', 100000), string.rep('a?', 50) .. string.rep('a', 50) .. 'b')",
        "return string.find(string.rep('a', 1000000), '.-.-.-.-.-b')",
        "return string.find(string.rep('(', 1000000), '%b()')",
        // A plain search makes a pass for each place.
        "return string.find(string.rep('a', 4000000), string.rep('a', 2000000) .. 'b', 1, true)",
        "return string.rep('a', 4000000):find(string.rep('a', 2000000) .. 'b')",
        "return string.split(string.rep('a', 4000000), string.rep('a', 2000000) .. 'b')",
        "return table.move({}, 1, 2000000000, 2)",
        "local s = string.rep('a', 4000000) local t = {} for i = 1, 1000 do t[i] = s .. i % 2 end table.sort(t)",
        "local t = table.create(500000, 1) for i = 1, #t do t[i] = -i end table.sort(t)",
        "return string.rep('a', 1e9)",
        "return table.create(1e8)",
        "return buffer.create(1e9)",
        "return table.concat(table.create(100000, string.rep('a', 1000)))",
        "return string.format('%s', string.rep('a', 1e8))",
    ] {
        let begun = Instant::now();
        let fault = fault(body);
        assert_ne!(fault.kind, FaultKind::Output, "{body}: {fault}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{body}: {:?} {fault}", begun.elapsed());
    }
}

#[test]
fn memory_ends_at_its_bound_and_the_machine_goes_on() {
    let mut machine = hook(
        "local t = {} if event.user == 'ann' then for i = 1, 1e9 do t[i] = string.rep('x', 100000) .. i end end",
    );
    for _ in 0..3 {
        let fault = publish(&mut *machine, "{}").unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Memory | FaultKind::Time), "{fault}");
        assert!(machine.memory_bytes() <= Limits::default().memory_bytes_max);
    }
    let slow = Limits { event_time_max: Duration::from_secs(10), ..Limits::default() };
    let mut machine = start_within(
        "local kept = {}\nreturn { publish = function(event)\n  for i = 1, 1e9 do\n    kept[i] = string.rep('x', 100000) .. i\n  end\nend }",
        slow,
    );
    let fault = publish(&mut *machine, "{}").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Memory, "{fault}");
    assert!(fault.message.contains("16777216 bytes of memory"), "{fault}");
}

#[test]
fn garbage_is_freed_between_events() {
    let mut machine =
        hook("local t = {} for i = 1, 50 do t[i] = string.rep('x', 10000) .. i end return true");
    for _ in 0..2_000 {
        if let Err(fault) = publish(&mut *machine, "{}") {
            assert_eq!(fault.kind, FaultKind::Time, "the machine was busy: {fault}");
        }
        machine.collect();
    }
    assert!(machine.memory_bytes() < 8 << 20, "{}", machine.memory_bytes());
}

#[test]
fn recursion_ends_with_an_error() {
    for body in [
        "local function f() return 1 + f() end return f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k .. 'x'] end return t.a",
        "local function f(a) return string.gsub(a, '.', f) end return f('a')",
    ] {
        let fault = fault(body);
        assert!(
            matches!(fault.kind, FaultKind::Error | FaultKind::Time | FaultKind::Memory),
            "{fault}"
        );
    }
}

#[test]
fn answer_that_is_no_decision_is_a_fault_and_bounded() {
    for (body, why) in [
        ("return 7", "it returned a number"),
        ("return 'yes'", "it returned a string"),
        ("return { 1, 2 }", "it returned a list"),
        ("return { data = print }", "a function has no JSON"),
        ("return { data = 0/0 }", "has no JSON"),
        ("return { data = '\\255' }", "no UTF-8"),
        ("return { data = { 1, a = 2 } }", "both items and named members"),
        ("local t = {} t.t = t return t", "nested more than 64 deep"),
        ("return { data = string.rep('x', 1000000) }", "longer than 262144 bytes"),
        ("coroutine.yield()", "yield"),
    ] {
        let fault = fault(body);
        assert!(fault.message.contains(why), "{body}: {fault}");
    }
    let doubled = "local t = {1} for i = 1, 60 do t = {t, t} end return { data = t }";
    assert!(fault(doubled).message.contains("longer than 262144 bytes"));
}

#[test]
fn program_reaches_nothing_outside_and_changes_no_library() {
    for name in [
        "os",
        "io",
        "require",
        "loadstring",
        "debug",
        "getfenv",
        "collectgarbage",
        "dofile",
        "package",
    ] {
        assert_eq!(
            publish(&mut *hook(&format!("return {name} == nil")), ""),
            Ok(Decision::Granted(b"{}".to_vec())),
            "{name}"
        );
    }
    for body in [
        "string.upper = nil",
        "dunlin.now = nil",
        "dunlin.json.decode = nil",
        "getmetatable('').__index = {}",
        "setmetatable(event, nil)",
        "setmetatable(dunlin, {})",
    ] {
        assert_eq!(fault(body).kind, FaultKind::Error, "{body}");
    }
}

#[test]
fn log_is_bounded_and_names_the_line() {
    let mut machine = start(
        "return { publish = function(event)\n  dunlin.log('first')\n  for i = 1, 100 do print(i, string.rep('x', 1000)) end\nend }",
    );
    publish(&mut *machine, "").unwrap();
    let log = machine.take_log();
    assert_eq!(log[0], LogLine { line: Some(2), text: "first".into() });
    let bytes: usize = log.iter().map(|line| line.text.len()).sum();
    assert!(bytes <= Limits::default().log_bytes_max, "{bytes}");
    assert!(machine.take_log().is_empty());
}

#[test]
fn json_of_every_kind_comes_back() {
    let mut machine = hook("return { data = event.data }");
    for data in [
        r#"{"a":[],"b":{},"c":null,"d":[1,2.5,-3],"e":"\u0000é\"","f":true,"g":9007199254740991,"h":1e300}"#,
        "[]",
        "null",
        r#"[[[{"a":[null]}]]]"#,
    ] {
        let Ok(Decision::Granted(result)) = publish(&mut *machine, data) else { panic!("{data}") };
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        let expected: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(result["data"], expected);
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(publish(&mut *machine, &deep).unwrap_err().message.contains("it is no JSON"));
}

#[test]
fn twenty_machines_take_less_than_ten_mebibytes() {
    // Of the pages that a machine has reserved, most are never touched: what counts is what is resident.
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
        let pages: usize =
            statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
        pages * 4096
    };
    let first = start(MODERATION);
    let before = resident();
    let mut machines: Vec<_> = (0..20).map(|_| start(MODERATION)).collect();
    for machine in &mut machines {
        publish(&mut **machine, r#"{"text":"hello"}"#).unwrap();
    }
    let bytes = resident().saturating_sub(before);
    assert!(bytes < 10 << 20, "{bytes}");
    // Tests beside this one may free memory meanwhile.
    assert!(first.memory_bytes() < 1 << 20);
}

#[test]
fn program_that_fails_five_times_within_a_minute_rests_for_growing_times() {
    use crate::instance::Instance;
    let code = Code::compile(
        "p",
        "return { publish = function(event) if event.user == 'bad' then error('no') end return true end }",
        Limits::default(),
    )
    .unwrap();
    let mut instance = Instance::new(code, Limits::default());
    let mut ask = |user: &str, now_ms: u64| {
        let event = [("user", Field::from(user))];
        instance.ask(Hook::Publish, &event, (now_ms, 0)).map_err(|fault| fault.kind)
    };
    let granted = || Ok(Decision::Granted(b"{}".to_vec()));
    // Four in a minute are borne.
    for at in 0..4 {
        assert_eq!(ask("bad", at * 10_000), Err(FaultKind::Error));
    }
    assert_eq!(ask("good", 40_000), granted());
    assert_eq!(ask("bad", 59_000), Err(FaultKind::Error));
    assert_eq!(ask("good", 59_001), Err(FaultKind::Resting));
    assert_eq!(ask("good", 59_999), Err(FaultKind::Resting));
    assert_eq!(ask("good", 60_000), granted());
    // The next rest is longer.
    for _ in 0..4 {
        assert_eq!(ask("bad", 60_001), Err(FaultKind::Error));
    }
    assert_eq!(ask("good", 62_000), Err(FaultKind::Resting));
    assert_eq!(ask("good", 62_001), granted());
    // After ten minutes without a fault it is as at first.
    for _ in 0..5 {
        assert_eq!(ask("bad", 700_000), Err(FaultKind::Error));
    }
    assert_eq!(ask("good", 700_999), Err(FaultKind::Resting));
    assert_eq!(ask("good", 701_000), granted());
}

#[test]
fn tests_of_a_program_pass_and_fail_with_their_lines() {
    let code = Code::compile(
        "p",
        "local last = 0\nreturn { publish = function(event)\n  if dunlin.now() - last < 10 then return dunlin.refuse(429, 'slowly') end\n  last = dunlin.now()\n  return { data = event.data }\nend }",
        Limits::default(),
    )
    .unwrap();
    let tests = r#"
test("two at once are one too many", function()
    equal(ask("publish", { data = { a = 1 } }), { decision = "granted", result = { data = { a = 1 } } })
    equal(ask("publish", { data = 2 }).code, 429)
    advance(10)
    equal(ask("publish", { data = 3 }).decision, "granted")
end)
test("this fails", function()
    equal(ask("publish", { data = 1 }).decision, "denied")
end)
test("each begins anew", function()
    equal(ask("publish", { data = 1 }).decision, "granted")
end)
"#;
    let outcomes = suite::run(&code, tests, Limits::default()).unwrap();
    let failures: Vec<_> =
        outcomes.iter().map(|of| (of.name.as_str(), of.failure.clone())).collect();
    assert_eq!(
        failures,
        [
            ("two at once are one too many", None),
            ("this fails", Some((Some(9), "it: granted is not denied".into()))),
            ("each begins anew", None),
        ]
    );
    let error = suite::run(&code, "local a = ", Limits::default()).unwrap_err();
    assert_eq!(error.line, Some(1), "{error}");
    assert!(suite::run(&code, "", Limits::default()).unwrap_err().message.contains("no tests"));
}

#[test]
fn examples_pass_their_tests() {
    for (name, source, tests) in [
        (
            "moderate",
            include_str!("../../examples/moderate.luau"),
            include_str!("../../examples/moderate_test.luau"),
        ),
        (
            "guests",
            include_str!("../../examples/guests.luau"),
            include_str!("../../examples/guests_test.luau"),
        ),
        (
            "irc",
            include_str!("../../examples/irc.luau"),
            include_str!("../../examples/irc_test.luau"),
        ),
        (
            "tracker",
            include_str!("../../examples/tracker.luau"),
            include_str!("../../examples/tracker_test.luau"),
        ),
        ("chat", block("```lua\n-- chat.luau", 7), block("```lua\ntest(", 7)),
    ] {
        let code = Code::compile(name, source, Limits::default()).unwrap();
        for outcome in suite::run(&code, tests, Limits::default()).unwrap() {
            assert_eq!(outcome.failure, None, "{name}: {}", outcome.name);
        }
    }
}

/// The block of the page about protocols that begins so, without the line that opens it.
fn block(begin: &str, skipped: usize) -> &'static str {
    const PAGE: &str = include_str!("../../../../docs/operating/protocols.md");
    let from = PAGE.find(begin).expect("the page has it") + skipped;
    let rest = &PAGE[from..];
    &rest[..rest.find("```").expect("it ends")]
}

#[test]
fn part_of_a_program_on_the_page_compiles_and_acknowledges_what_is_stored() {
    let part = block("```lua\nfunction tracker.frame", 7);
    let source = format!(
        "local tracker = {{}}\n{part}\nfunction tracker.open(conn) conn:connect({{ user = 'u' }}) end return tracker"
    );
    let code = Code::compile("tracker", &source, Limits::default()).unwrap();
    let tests = r#"test("acknowledged", function()
        framing("length16")
        local client = open()
        client:feed(string.pack(">s2", string.pack(">BI4ff", 1, 7, 1, 2)))
        equal(client:sent(), string.pack(">I2BI4", 5, 1, 7))
    end)"#;
    let outcomes = suite::run(&code, tests, Limits::default()).unwrap();
    assert_eq!(outcomes[0].failure, None);
}

const ECHO: &str = "return { open = function(conn) conn:connect({ user = 'u' }) end,
    frame = function(conn, frame) conn:send(frame) end }";

#[test]
fn protocol_that_leaves_a_call_unanswered_forgets_it_with_its_connection() {
    let mut machine = start(ECHO);
    let opened = machine.handle_event(1, ConnEvent::Open(&[]), 0);
    assert!(matches!(opened, Ok(Progress::Waits(_))), "{opened:?}");
    machine.forget(1);
    assert_eq!(machine.handle_answer(1, Ok(b"{}"), 0), Ok(Progress::Done(None)), "it is late");
    assert_eq!(machine.handle_event(1, ConnEvent::Frame(b"x"), 0), Ok(Progress::Done(None)));
    assert_eq!(machine.take_effects(), Effects::default());
}

#[test]
fn protocol_forgets_all_of_connections_that_are_gone() {
    let mut machine = start(ECHO);
    let round = |machine: &mut dyn Machine| {
        for key in 0..1_000 {
            let _ = machine.handle_event(key, ConnEvent::Open(&[]), 0);
            let _ = machine.handle_answer(key, Ok(b"{\"client\":\"1\"}"), 0);
            let _ = machine.handle_event(key, ConnEvent::Frame(b"hello"), 0);
            assert_eq!(machine.take_effects().output, b"hello");
            machine.forget(key);
            machine.collect();
        }
    };
    (0..3).for_each(|_| round(&mut *machine));
    let before = machine.memory_bytes();
    (0..20).for_each(|_| round(&mut *machine));
    assert!(machine.memory_bytes() < before + (1 << 20), "{} of {before}", machine.memory_bytes());
}

#[test]
fn idle_connection_of_a_protocol_is_less_than_a_kibibyte() {
    let mut machine = start(ECHO);
    let before = machine.memory_bytes();
    for key in 0..10_000 {
        let _ = machine.handle_event(key, ConnEvent::Open(&[("transport", "tcp".into())]), 0);
        let _ = machine.handle_answer(key, Ok(b"{\"client\":\"1\",\"user\":\"u\"}"), 0);
        machine.collect();
    }
    let each = (machine.memory_bytes() - before) / 10_000;
    println!("{each} bytes");
    assert!(each < 1_024, "{each} bytes");
}
