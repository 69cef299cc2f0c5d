//! Holds each request a random while, then answers it: `cargo run --example comet [ADDR] [MIN_MS] [MAX_MS]`.
//! A held request costs its connection's record and a place in the wheel.

use dunlin_net::http::{Request, RequestId, Response};
use dunlin_net::*;

struct Comet(std::ops::RangeInclusive<u64>);

impl Handler for Comet {
    type Data = ();
    type Protocols = Http;

    fn on_deadline(&mut self, cx: &mut Context<()>, conn: ConnId) {
        let held = cx.outstanding(conn);
        if held.and_then(|id| cx.respond(id, &Response::text("time is up\n"))).is_err() {
            cx.abort(conn);
        }
    }
}

impl HttpHandler for Comet {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
        let (min, max) = (*self.0.start(), *self.0.end());
        let hold_ms = min + cx.random_u64() % (max - min + 1);
        cx.set_deadline(id.conn(), Some(cx.now_ms() + hold_ms));
    }
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default| arguments.get(at).map_or(default, String::as_str);
    let addr = argument(0, "127.0.0.1:7003").parse().expect("address:port");
    let [min, max] = [argument(1, "30000"), argument(2, "90000")].map(|ms| ms.parse().unwrap_or(0));
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let cx = event_loop.context();
    let listener = cx.listen(addr, &ListenConfig::http())?;
    println!("listening on {}", cx.listener_addr(listener).expect("it listens"));
    event_loop.run(&mut Comet(min..=max.max(min)))
}
