//! Answers every request with a greeting: `cargo run --example hello_http [ADDR]`, then
//! `curl http://127.0.0.1:7001/you`.

use dunlin_net::http::{Request, RequestId, Response};
use dunlin_net::*;

struct Hello;

impl Handler for Hello {
    type Data = ();
    type Protocols = Http;
}

impl HttpHandler for Hello {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, request: &Request<'_>) {
        let text = match request.path {
            "/" => "hello, world\n".to_owned(),
            path => format!("hello, {}\n", path.trim_start_matches('/')),
        };
        if cx.respond(id, &Response::text(&text)).is_err() {
            cx.abort(id.conn()); // it asks without reading the answers
        }
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7001".into());
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let cx = event_loop.context();
    let listener = cx.listen(addr.parse().expect("address:port"), &ListenConfig::http())?;
    println!("listening on {}", cx.listener_addr(listener).expect("it listens"));
    event_loop.run(&mut Hello)
}
