//! A WebSocket client, beside the example `websocket`: `clients [URL]`.
use dunlin_net::websocket::{Message, ProtocolError};
use dunlin_net::*;
use std::{fmt, io};
struct Clients;
impl Handler for Clients {
    type Data = ();
    type Protocols = WebSocket;
    fn on_connect_failed(&mut self, _: &mut Context<()>, _: ConnId, (): (), error: &io::Error) {
        fail(error);
    }
    fn on_close(&mut self, cx: &mut Context<()>, _: ConnId, _: (), why: CloseReason) {
        println!("{why}");
        cx.stop();
    }
}
impl WebSocketHandler for Clients {
    fn on_websocket(&mut self, cx: &mut Context<()>, conn: ConnId, _: Option<&str>) {
        cx.ws_send_text(conn, "hello, yourself").expect("nothing was sent before");
    }
    fn on_message(&mut self, cx: &mut Context<()>, conn: ConnId, message: Message<'_>) {
        println!("websocket: {}", message.text().unwrap_or_default());
        cx.ws_close(conn, 1000, "").expect("it is open");
    }
    fn on_websocket_error(&mut self, _: &mut Context<()>, _: ConnId, error: &ProtocolError) {
        fail(error);
    }
}
#[expect(clippy::exit, reason = "an example has nothing to clean up")]
fn fail(error: impl fmt::Display) -> ! {
    eprintln!("no server of WebSockets: {error}; start the example `websocket` first");
    std::process::exit(1)
}
fn main() -> io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7002".to_owned());
    let url = if addr.contains("://") { addr } else { format!("ws://{addr}") };
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    event_loop.context().connect_websocket(&url, &Default::default(), &Default::default())?;
    event_loop.run(&mut Clients)
}
