//! Tests the removal of a host while requests to it are queued and in flight.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{TIMEOUT, serve};
use dunlin_net::{Context, EventLoop, LoopConfig};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, ErrorKind, HostConfig, Outcome, Request, RequestId,
    Requests, SendError,
};

#[derive(Default)]
struct Ends(Vec<(u64, String)>);

impl Caller for Ends {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        let end = match outcome {
            Outcome::Answered(answer) => format!("answered {}", answer.status),
            Outcome::NotSent(error) if matches!(error.kind, ErrorKind::Removed) => "removed".into(),
            other => format!("{other:?}"),
        };
        self.0.push((tag, end));
    }
}

#[test]
fn requests_in_flight_are_answered_and_waiting_ones_returned_when_a_member_leaves() {
    let (asked, was_asked) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (closed, was_closed) = mpsc::channel();
    let addr = serve(move |_, mut conversation| {
        conversation.hears().unwrap();
        asked.send(()).unwrap();
        may_go_on.recv().unwrap();
        conversation.answers("x");
        closed.send(conversation.hears()).unwrap();
    });
    let mut client = Client::new(ClientConfig::default(), Ends::default());
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let config = || HostConfig { connections: 1, depth: Depth::Fixed(1), ..HostConfig::default() };
    let url = format!("http://{addr}");
    let host = client.requests().host(&url, config()).unwrap();
    let get = client.requests().prepare(host, &Request::get("/"));
    for tag in 1..=3 {
        client.requests().send(host, &get, tag).unwrap();
    }
    let began = Instant::now();
    let mut turns_until = |client: &mut Client<Ends>, done: &mut dyn FnMut(&Ends) -> bool| {
        while !done(client.caller()) {
            assert!(began.elapsed() < TIMEOUT);
            event_loop.turn(client, Some(Duration::from_millis(5))).unwrap();
        }
    };
    turns_until(&mut client, &mut |_| was_asked.try_recv().is_ok());
    client.requests().remove(host);
    assert_eq!(client.requests().send(host, &get, 4), Err(SendError::Closing));
    turns_until(&mut client, &mut |ends| ends.0.len() == 2);
    assert_eq!(client.caller().0, [(2, "removed".to_owned()), (3, "removed".to_owned())]);
    let other = client.requests().host(&url, config()).unwrap();
    assert_ne!(other, host, "it is still in use");

    go_on.send(()).unwrap();
    turns_until(&mut client, &mut |ends| ends.0.len() == 3);
    assert_eq!(client.caller().0[2], (1, "answered 200".to_owned()));
    let mut heard = None;
    turns_until(&mut client, &mut |_| {
        heard = heard.take().or_else(|| was_closed.try_recv().ok());
        heard.is_some()
    });
    assert_eq!(heard, Some(None), "its connection is closed, not kept idle");
    assert_eq!(client.requests().host(&url, config()).unwrap(), host);
    assert_eq!(client.requests().outstanding(), 0);
}
