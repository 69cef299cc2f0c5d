//! Sends back what it is sent: `cargo run --example echo [ADDR]`, then `nc 127.0.0.1 7000`.

use dunlin_net::{ConnId, Context, EventLoop, Handler, ListenConfig, LoopConfig, Tcp};

/// Bytes a peer may be behind with reading before we stop reading from it.
const BEHIND_BYTES_MAX: usize = 256 << 10;

struct Echo;

impl Handler for Echo {
    type Data = ();
    type Protocols = Tcp;

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        if cx.write(conn, bytes).is_err() {
            cx.abort(conn);
        }
        if cx.output_bytes(conn) > BEHIND_BYTES_MAX && cx.want_writable(conn) {
            cx.pause_read(conn);
        }
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        cx.resume_read(conn);
    }
}

fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".into());
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    let cx = event_loop.context();
    let listener = cx.listen(addr.parse().expect("address:port"), &ListenConfig::tcp())?;
    println!("listening on {}", cx.listener_addr(listener).expect("it listens"));
    event_loop.run(&mut Echo)
}
