//! A Redis client on the loop: subscribes, publishes to itself, and counts.

use dunlin_net::redis::{Client, ClientConfig, Value};
use dunlin_net::{CloseReason, ConnId, Context, EventLoop, Handler, LoopConfig, TimerId};

struct Counter(Client);
impl Handler for Counter {
    type Data = ();
    fn on_open(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.0.handle_open(cx, conn);
    }
    fn on_reply(&mut self, cx: &mut Context<()>, conn: ConnId, reply: &Value<'_>) {
        if let Some(token) = self.0.handle_reply(cx, conn, reply) {
            println!("{token}: {reply:?}");
        }
    }
    fn on_push(&mut self, cx: &mut Context<()>, conn: ConnId, push: &Value<'_>) {
        if let Some(message) = self.0.handle_push(conn, push) {
            println!("message: {}", String::from_utf8_lossy(message.payload));
            cx.stop();
        }
    }
    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), _: CloseReason) {
        self.0.handle_close(cx, conn);
    }
    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, _: u64) {
        self.0.handle_timer(cx, timer);
    }
}
fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:6379".to_owned());
    let mut redis = Client::new(ClientConfig::new(addr.parse().expect("address:port")));
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let cx = event_loop.context();
    redis.connect(cx);
    redis.subscribe(cx, b"news");
    redis.command(cx, 1, &[b"INCR", b"counter"]).expect("the queue has room");
    redis.command(cx, 2, &[b"PUBLISH", b"news", b"hello"]).expect("the queue has room");
    event_loop.run(&mut Counter(redis))
}
