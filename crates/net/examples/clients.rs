//! An HTTP and a WebSocket client on one loop, beside `hello_http` and `websocket`.

use dunlin_net::http::{Answer, NewRequest};
use dunlin_net::websocket::{Message, NewHandshake};
use dunlin_net::{CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, LoopConfig};

struct Clients;
impl Handler for Clients {
    type Data = ();
    fn on_response(&mut self, cx: &mut Context<()>, conn: ConnId, answer: &Answer<'_>) {
        println!("http: {} {}", answer.status, String::from_utf8_lossy(answer.body).trim_end());
        cx.close(conn);
    }

    fn on_websocket(&mut self, cx: &mut Context<()>, conn: ConnId, _: Option<&str>) {
        cx.ws_send_text(conn, "hello, yourself").expect("nothing was sent before");
    }

    fn on_message(&mut self, cx: &mut Context<()>, conn: ConnId, message: Message<'_>) {
        println!("websocket: {}", message.text().unwrap_or_default());
        cx.ws_close(conn, 1000, "").expect("it is open");
    }

    fn on_close(&mut self, cx: &mut Context<()>, _: ConnId, _: (), why: CloseReason) {
        println!("{why}");
        cx.connections().count().eq(&0).then(|| cx.stop());
    }
}

fn main() -> std::io::Result<()> {
    let [http, websocket] = [(1, "127.0.0.1:7001"), (2, "127.0.0.1:7002")]
        .map(|(at, default)| std::env::args().nth(at).unwrap_or(default.to_owned()));
    let (mut event_loop, config) = (EventLoop::new(LoopConfig::default())?, ConnectConfig::http());
    let cx = event_loop.context();
    let conn = cx.connect(http.parse().expect("address:port"), &config)?;
    cx.request(conn, &NewRequest::get("/client", &http)).expect("room for a request");
    let conn = cx.connect(websocket.parse().expect("address:port"), &config)?;
    cx.websocket_handshake(conn, &NewHandshake::new("/", &websocket)).expect("room for one");
    event_loop.run(&mut Clients)
}
