//! A Redis client on the loop: counts, subscribes, publishes to itself. Waits for a server that comes later.

use dunlin_net::redis::{Client, ClientConfig, Received};
use dunlin_net::{ConnId, Context, EventLoop, Handler, LoopConfig, Tcp, forward_to_redis};

struct Counter(Client);
impl Handler for Counter {
    type Data = ();
    type Protocols = Tcp;
    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        self.0.handle_data(cx, conn, bytes, |_, cx, received| match received {
            Received::Reply(token, reply) => println!("{token}: {reply:?}"),
            Received::Message(_) => _ = (println!("message"), cx.stop()),
            Received::Push(_) | Received::Ready => {}
        });
    }

    fn on_tick(&mut self, _: &mut Context<()>) {
        while let Some(lost) = self.0.poll_lost() {
            println!("{}: the connection broke; it may have been carried out", lost.token);
        }
        if let Some(error) = self.0.last_error() {
            eprintln!("no Redis ({error}); trying again");
        }
    }

    forward_to_redis!(0);
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
