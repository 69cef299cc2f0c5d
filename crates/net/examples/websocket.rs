//! Sends back every message: `cargo run --example websocket [ADDR] [--no-deflate]`. Autobahn's subject.

use dunlin_net::http::{Request, RequestId};
use dunlin_net::websocket::{DeflateConfig, Limits, Message, WebSocketConfig};
use dunlin_net::*;

struct Echo(WebSocketConfig<'static>);

impl Handler for Echo {
    type Data = ();
    type Protocols = (Http, WebSocket);
}

impl HttpHandler for Echo {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, request: &Request<'_>) {
        let _ = cx.upgrade_websocket(id, request, &self.0); // a bad handshake is answered
    }
}

impl WebSocketHandler for Echo {
    fn on_message(&mut self, cx: &mut Context<()>, conn: ConnId, message: Message<'_>) {
        if cx.ws_send(conn, message.opcode, message.payload).is_err() {
            cx.abort(conn); // it sends without reading
        }
    }
}

fn main() -> std::io::Result<()> {
    let (flags, addr): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let addr = addr.first().map_or("127.0.0.1:7002", String::as_str).parse().expect("address:port");
    let deflate = flags.iter().all(|flag| flag != "--no-deflate").then(DeflateConfig::default);
    let limits = Limits { frame_bytes_max: 64 << 20, message_bytes_max: 64 << 20 };
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let mut listen = ListenConfig::http();
    listen.limits.output_bytes_max = 64 << 20;
    let listener = event_loop.context().listen(addr, &listen)?;
    println!("listening on {}", event_loop.context().listener_addr(listener).expect("it listens"));
    event_loop.run(&mut Echo(WebSocketConfig { limits, deflate, ..Default::default() }))
}
