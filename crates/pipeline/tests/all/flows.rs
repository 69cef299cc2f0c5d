//! Tests how flows share the queue of a host.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::time::{Duration, Instant};

use crate::support::{TIMEOUT, serve};
use dunlin_net::{Context, EventLoop, LoopConfig};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, HostConfig, Outcome, Request, RequestId, Requests,
    SendError,
};

#[derive(Default)]
struct Ends(Vec<u64>);

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
        assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
        self.0.push(tag);
    }
}

#[test]
fn flow_that_fills_its_share_is_refused_and_others_take_turns_with_it() {
    let addr = serve(|_, mut conversation| {
        while conversation.hears().is_some() {
            conversation.answers("x");
        }
    });
    let mut client = Client::new(ClientConfig::default(), Ends::default());
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let config = HostConfig {
        connections: 1,
        depth: Depth::Fixed(1),
        queue_max: 10,
        ..HostConfig::default()
    };
    let mut requests = client.requests();
    let host = requests.host(&format!("http://{addr}"), config).unwrap();
    let get = requests.prepare(host, &Request::get("/"));
    let mut send = |flow: u64, tag: u64| requests.send_of(flow, host, &get, tag).map(|_| ());
    for tag in 0..5 {
        assert_eq!(send(1, tag), Ok(()));
    }
    assert_eq!(send(1, 5), Err(SendError::FlowFull), "half of the queue is for others");
    assert_eq!((send(2, 20), send(3, 30), send(2, 21)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(send(2, 22), Err(SendError::FlowFull));
    assert_eq!((send(Request::NO_FLOW, 90), send(Request::NO_FLOW, 91)), (Ok(()), Ok(())));
    assert_eq!(send(4, 40), Err(SendError::Full));
    let began = Instant::now();
    while client.caller().0.len() < 10 {
        assert!(began.elapsed() < TIMEOUT);
        event_loop.turn(&mut client, Some(Duration::from_millis(5))).unwrap();
    }
    assert_eq!(client.caller().0, [0, 20, 30, 90, 1, 21, 91, 2, 3, 4]);
}
