//! A Redis client on the loop: counts, subscribes, publishes to itself. Waits for a server that comes later.

use dunlin_net::redis::{Client, ClientConfig, Received};
use dunlin_net::{CloseReason, ConnId, Context, EventLoop, Handler, LoopConfig, TimerId};

struct Counter(Client);
impl Handler for Counter {
    type Data = ();
    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.0.handle_connect(cx, conn);
    }
    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        self.0.handle_data(cx, conn, bytes, |_, cx, received| match received {
            Received::Reply(token, reply) => println!("{token}: {reply:?}"),
            Received::Message(_) => _ = (println!("message"), cx.stop()),
            Received::Push(_) | Received::Ready => {}
        });
    }
    fn on_connect_failed(&mut self, cx: &mut Context<()>, conn: ConnId, _: (), e: &std::io::Error) {
        eprintln!("no Redis ({e}); trying again");
        self.0.handle_connect_failed(cx, conn, e);
    }
    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, _: (), _: CloseReason) {
        self.0.handle_close(cx, conn);
    }
    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, _: u64) {
        self.0.handle_timer(cx, timer);
    }
}
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:6379".to_owned());
    let mut redis = Client::new(ClientConfig::new(addr.parse()?));
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    redis.connect(event_loop.context());
    redis.subscribe(event_loop.context(), b"news");
    redis.command(event_loop.context(), 1, &[b"INCR", b"counter"])?;
    redis.command(event_loop.context(), 2, &[b"PUBLISH", b"news", b"hello"])?;
    Ok(event_loop.run(&mut Counter(redis))?)
}
