use dunlin_hub::{Error, NewPublication};

use super::super::call_rest::CallCommands;
use super::*;
use crate::api::{LenientReader, Request};

fn conn(number: u64) -> ConnId {
    ConnId::from_u64(number)
}

fn new_call(number: u64, form: CallForm, commands: u32, at_once: usize) -> NewCall {
    NewCall {
        scope: None,
        conn: conn(number),
        form,
        errors_as_status: false,
        commands: (0..commands).map(|id| CommandSlot::new(Some(Method::Publish), id)).collect(),
        at_once,
        unknown: UnknownFields::default(),
        pusher: None,
        then: None,
        began: Instant::now(),
        span: None,
    }
}

/// Opens a call and gives out its commands.
fn begun(calls: &mut ApiCalls, new: NewCall) -> CallId {
    let id = calls.open(new);
    while calls.begin_next(id).is_some() {}
    calls.pause(id);
    id
}

fn place(call: CallId, at: u32) -> CommandPlace {
    CommandPlace { call, at, part: None }
}

fn published(offset: u64) -> CommandResult {
    let mut published = Published::default();
    published.position.offset = offset;
    Ok(CommandOutcome::Published(published))
}

fn response(answered: Option<AnsweredCall>) -> (ConnId, u16, String) {
    let call = answered.expect("an answered call");
    let conn = call.conn;
    let (status, body) = call.encode(&NodeFacts::default(), usize::MAX);
    (conn, status, String::from_utf8(body).unwrap())
}

#[test]
fn two_calls_answered_out_of_order_each_get_their_own_response() {
    let mut calls = ApiCalls::default();
    let first = begun(&mut calls, new_call(1, CallForm::Single, 1, 1));
    let second = begun(&mut calls, new_call(2, CallForm::Single, 1, 1));
    assert!(calls.poll(first).is_none());

    calls.handle_answer(place(second, 0), published(22));
    assert!(calls.poll(first).is_none());
    let (to, status, body) = response(calls.poll(second));
    assert_eq!((to, status), (conn(2), 200));
    assert!(body.contains("\"offset\":22"), "{body}");

    calls.handle_answer(place(first, 0), Err(Error::Timeout.into()));
    let (to, status, body) = response(calls.poll(first));
    assert_eq!((to, status), (conn(1), 200));
    assert!(body.starts_with("{\"error\""), "{body}");
    calls.handle_answer(place(first, 0), published(1));
    assert!(calls.poll(first).is_none(), "an answer that comes late finds no call");
}

#[test]
fn a_call_that_is_held_is_answered_once_it_is_released() {
    let mut calls = ApiCalls::default();
    let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
    assert_eq!(calls.begin_next(call), Some(0));
    calls.hold(call, 50, Some(7));
    calls.hold(call, 40, None);
    assert_eq!(calls.begin_next(call), None, "what follows of it waits too");
    calls.pause(call);
    calls.handle_answer(place(call, 0), published(1));
    assert!(calls.poll(call).is_none() && !calls.is_ready());
    assert!(calls.arm_timer() && !calls.arm_timer());
    let until = |calls: &mut ApiCalls, now_ms: u64| {
        calls.release(now_ms, |held| now_ms >= held.until_ms || held.channel == Some(8))
    };
    assert_eq!(until(&mut calls, 49), [] as [CallId; 0], "the longer of two reasons holds");
    assert_eq!(until(&mut calls, 50), [call]);
    assert!(calls.poll(call).is_none() && calls.is_ready(), "its second command is to come");
    calls.take_ready();
    assert!(calls.resume(call).is_some());
    assert_eq!(calls.begin_next(call), Some(1));
    calls.hold(call, 90, None);
    calls.pause(call);
    calls.handle_answer(place(call, 1), published(2));
    assert!(calls.poll(call).is_none(), "answered by the hub, and held");
    assert_eq!(until(&mut calls, 90), [call]);
    assert!(response(calls.poll(call)).2.contains("\"offset\":2"));
    calls.handle_timer();
    assert!(!calls.is_look_due(u64::MAX) && !calls.arm_timer());
}

#[test]
fn a_command_answered_while_others_begin_does_not_end_the_call() {
    let mut calls = ApiCalls::default();
    let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
    assert_eq!(calls.begin_next(call), Some(0));
    calls.handle_answer(place(call, 0), published(1));
    assert!(calls.poll(call).is_none(), "the second command has not begun");
    assert_eq!((calls.begin_next(call), calls.begin_next(call)), (Some(1), None));
    calls.pause(call);
    assert!(calls.poll(call).is_none());
    calls.handle_answer(place(call, 1), published(2));
    let (_, _, body) = response(calls.poll(call));
    assert!(body.find("\"offset\":1").unwrap() < body.find("\"offset\":2").unwrap(), "{body}");
}

/// Takes the one call that is ready and gives out what may begin; which commands those are.
fn turn(calls: &mut ApiCalls) -> Vec<String> {
    let ready = calls.take_ready();
    let [call] = *ready.iter().collect::<Vec<_>>() else { panic!("{ready:?}") };
    let (_, rest) = calls.resume(*call).unwrap();
    let mut begun = Vec::new();
    while let Some(at) = calls.begin_next(*call) {
        let (commands, reader) = (CallCommands::from(&rest.commands), LenientReader::default());
        let Request::Publish(publish) = commands.read(&reader, at).unwrap() else { panic!() };
        begun.push(format!("{at}{}", publish.channel));
    }
    assert!(calls.keep(*call, rest.commands, usize::MAX));
    calls.pause(*call);
    begun
}

const PUBLISH: &[u8] = br#"{"publish":{"channel":"a","data":1}}"#;

#[test]
fn a_batch_in_order_begins_a_command_when_the_one_before_is_answered() {
    let mut calls = ApiCalls::default();
    let call = calls.open(new_call(1, CallForm::Batch, 3, 1));
    assert_eq!((calls.begin_next(call), calls.begin_next(call)), (Some(0), None));
    let second = PUBLISH.to_vec();
    let third = String::from_utf8_lossy(PUBLISH).replace("\"a\"", "\"b\"");
    let rest = RestCommands::batch(1, &[&second, third.as_bytes()]);
    assert!(calls.keep(call, rest, 1_000) && calls.kept.bytes > 60);
    calls.pause(call);
    for (number, text) in [(1, "1a"), (2, "2b")] {
        assert!(calls.poll(call).is_none() && !calls.is_ready());
        calls.handle_answer(place(call, number - 1), published(u64::from(number)));
        assert!(calls.poll(call).is_none() && calls.poll(call).is_none());
        assert_eq!(turn(&mut calls), [text]);
    }
    calls.handle_answer(place(call, 2), published(3));
    assert_eq!(response(calls.poll(call)).1, 200);
    assert_eq!(calls.kept.bytes, 0);
}

#[test]
fn so_many_answers_are_outstanding_and_no_more() {
    let mut calls = ApiCalls::default();
    let commands = OUTSTANDING_MAX + 10;
    let call = calls.open(new_call(1, CallForm::Batch, commands as u32, commands));
    let begun = std::iter::from_fn(|| calls.begin_next(call)).count();
    assert_eq!(begun, OUTSTANDING_MAX);
    assert!(calls.keep(call, RestCommands::batch(begun, &[PUBLISH; 10]), 1_000));
    calls.pause(call);
    assert!(calls.poll(call).is_none() && !calls.is_ready());
    (0..4).for_each(|at| calls.handle_answer(place(call, at), published(1)));
    assert!(calls.poll(call).is_none());
    assert_eq!(turn(&mut calls).len(), 4);
}

#[test]
fn command_beyond_the_memory_of_its_call_is_refused() {
    let mut calls = ApiCalls::default();
    let call = calls.open(new_call(1, CallForm::Batch, 2, 2));
    assert_eq!(calls.begin_next(call), Some(0));
    assert!(!calls.keep(call, RestCommands::batch(1, &[PUBLISH]), 10));
    calls.refuse_rest(call, &Error::Overloaded.into());
    calls.pause(call);
    calls.handle_answer(place(call, 0), published(7));
    let (_, _, body) = response(calls.poll(call));
    assert!(body.contains("\"offset\":7") && body.contains("overloaded"), "{body}");
    assert_eq!(calls.kept.bytes, 0);
}

/// Batches with one key, which waited for its budget, took all that may be kept, and those with other keys were refused.
#[test]
fn waiting_bytes_of_one_budget_are_a_share_of_the_limit() {
    let budget = |number| {
        let may = Arc::<ApiScope>::default();
        Some(KeyScope { may, tenant: None, budget: Some((number, Rates::per_second(1))) })
    };
    let budgets = crate::limits::shared_buckets::SharedBuckets::default();
    let (slow, other) = (budgets.api_key("slow"), budgets.api_key("other"));
    let mut calls = ApiCalls::default();
    let mut kept = |budget_key: Option<BudgetKey>| {
        let scope = budget_key.and_then(budget);
        let call = calls.open(NewCall { scope, ..new_call(1, CallForm::Batch, 2, 2) });
        assert_eq!(calls.begin_next(call), Some(0));
        let rest = RestCommands::batch(1, &[PUBLISH]);
        let bytes = CallRest { commands: rest, broadcast: None }.bytes();
        let fits = calls.keep(call, RestCommands::batch(1, &[PUBLISH]), 8 * bytes);
        calls.pause(call);
        fits
    };
    assert_eq!([(); 3].map(|()| kept(Some(slow))), [true, true, false]);
    assert_eq!([(); 3].map(|()| kept(Some(other))), [true, true, false]);
    assert_eq!([(); 5].map(|()| kept(None)), [true, true, true, true, false]);
    let open: Vec<CallId> = calls.calls.keys().copied().collect();
    for call in open {
        assert!(calls.resume(call).is_some());
    }
    assert_eq!((calls.kept.bytes, calls.kept.of.len()), (0, 0));
}

/// Each of those that are held was looked at in every turn of the loop.
#[test]
fn the_more_calls_are_held_the_less_often_they_are_looked_at() {
    let mut calls = ApiCalls::default();
    let hold = |calls: &mut ApiCalls| {
        let call = begun(calls, new_call(1, CallForm::Single, 1, 1));
        calls.hold(call, 1_000, None);
    };
    hold(&mut calls);
    assert!(calls.is_look_due(0) && calls.release(0, |_| false).is_empty());
    assert!(calls.is_look_due(0), "one costs nothing");
    (0..10 * LOOKS_PER_MS).for_each(|_| hold(&mut calls));
    assert!(calls.release(5, |_| false).is_empty());
    assert!(!calls.is_look_due(14) && calls.is_look_due(15));
}

#[test]
fn a_broadcast_waits_for_every_channel_and_keeps_their_order() {
    let mut calls = ApiCalls::default();
    let call = calls.open(new_call(1, CallForm::Single, 1, 1));
    assert_eq!(calls.begin_next(call), Some(0));
    calls.begin_broadcast(place(call, 0), 3);
    let part = |part| CommandPlace { call, at: 0, part: Some(part) };
    assert!(calls.begin_part(call));
    calls.handle_answer(part(0), published(11));
    // The rest is given out in later turns.
    let left = ["b", "c"].into_iter();
    calls.keep_broadcast(call, BroadcastRest::new((0, 1), left, NewPublication::default()));
    calls.pause(call);
    assert!(calls.poll(call).is_none() && calls.is_ready());
    let (_, rest) = calls.resume(calls.ready[0]).unwrap();
    let mut broadcast = rest.broadcast.unwrap();
    assert_eq!(broadcast.channels().collect::<Vec<_>>(), ["b", "c"]);
    broadcast.next += 1;
    assert_eq!(broadcast.channels().collect::<Vec<_>>(), ["c"]);
    assert!(calls.begin_part(call) && calls.begin_part(call));
    calls.pause(call);
    calls.handle_answer(part(2), published(33));
    assert!(calls.poll(call).is_none());
    calls.handle_answer(part(1), Err(ApiErrorCode::UnknownChannel.into()));
    let (_, status, body) = response(calls.poll(call));
    assert_eq!(status, 200, "what is wrong with one channel is that channel's answer");
    let places = ["\"offset\":11", "unknown channel", "\"offset\":33"];
    let places = places.map(|text| body.find(text).unwrap_or_else(|| panic!("{text}: {body}")));
    assert!(places.is_sorted(), "{body}");
}

/// Regression: a list of channels was as long as it came out.
#[test]
fn single_answer_beyond_the_bound_is_an_error_and_no_longer() {
    let mut calls = ApiCalls::default();
    let mut list = |channels: u64| {
        let call = begun(&mut calls, new_call(1, CallForm::Single, 1, 1));
        let summary = |n| dunlin_hub::ChannelSummary { name: format!("c{n}").into(), clients: 1 };
        let list = (0..channels).map(summary).collect();
        calls.handle_answer(place(call, 0), Ok(CommandOutcome::Channels(list)));
        let call = calls.poll(call).unwrap();
        let (_, body) = call.encode(&NodeFacts::default(), 2_000);
        String::from_utf8(body).unwrap()
    };
    assert!(list(10).contains("\"c9\""));
    let refused = list(1_000);
    assert!(refused.len() <= 2_000 && refused.contains("\"code\":106"), "{refused}");
}
