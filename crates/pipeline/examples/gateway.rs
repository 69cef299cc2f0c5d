//! An HTTP server and a pipelining client on one loop: every request is answered by the backend. Headers go both ways, but for
//! those of one hop.
//! `gateway [ADDR] [BACKEND_URL]`, then `curl http://127.0.0.1:7004/any/path`.

use dunlin_net::http::{HeaderSlots, Request as Asked, RequestId as AskedId, Response};
use dunlin_net::{Context, EventLoop, Handler, Http, HttpHandler, ListenConfig, LoopConfig};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, HostConfig, HostId, Outcome, Request, RequestId, Requests,
    forward_to_client,
};

/// An HTTP server with a client on the same loop.
pub struct Gateway {
    /// The client of the backend.
    pub client: Client<Answers>,
    /// The backend's host id.
    pub backend: HostId,
}

impl Handler for Gateway {
    type Data = ();
    type Protocols = Http;

    forward_to_client!(client);
}

impl HttpHandler for Gateway {
    fn on_request(&mut self, cx: &mut Context<()>, id: AskedId, asked: &Asked<'_>) {
        // The client writes `Host` itself: it is the backend's.
        let headers: Vec<_> = asked
            .headers
            .end_to_end()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("Host"))
            .collect();
        let mut requests = self.client.requests();
        let request = Request {
            method: asked.method.as_str(),
            headers: &headers,
            body: (!asked.body.is_empty()).then_some(asked.body),
            ..Request::get(asked.target)
        };
        let prepared = requests.prepare(self.backend, &request);
        if requests.send(self.backend, &prepared, id.to_u64()).is_err() {
            let _ = cx.respond(id, &Response::new(503)); // a client that left is not answered
        }
    }
}

/// Responds to the request that waits for an answer. The tag is its id.
pub struct Answers;

impl Caller for Answers {
    type Data = ();

    fn on_outcome(
        &mut self,
        cx: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        tag: u64,
        outcome: &Outcome<'_>,
    ) {
        let id = AskedId::from_u64(tag);
        // Whoever has left is not answered.
        let _ = match outcome {
            Outcome::Answered(answer) => {
                let mut slots = HeaderSlots::new();
                let head = answer.head.read(&mut slots);
                // `Date` is written by this server.
                let headers: Vec<_> = (head.iter().flat_map(|head| head.headers.end_to_end()))
                    .filter(|(name, _)| !name.eq_ignore_ascii_case("Date"))
                    .collect();
                let (status, body) = (answer.status, answer.body);
                cx.respond(id, &Response { status, headers: &headers, body })
            }
            Outcome::NotSent(error) | Outcome::Failed(error) | Outcome::Uncertain(error) => {
                cx.respond(id, &Response { status: 502, ..Response::text(&format!("{error}\n")) })
            }
        };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or(default.to_owned());
    let mut client = Client::new(ClientConfig::default(), Answers);
    let url = argument(2, "http://127.0.0.1:7001");
    let backend = client.requests().host(&url, HostConfig::default())?;
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let cx = event_loop.context();
    let listener = cx.listen(argument(1, "127.0.0.1:7004").parse()?, &ListenConfig::http())?;
    println!("listening on {}", cx.listener_addr(listener).expect("it listens"));
    Ok(event_loop.run(&mut Gateway { client, backend })?)
}
