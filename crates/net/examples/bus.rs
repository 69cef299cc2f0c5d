//! Two workers on one address; the one that is asked asks the other over the bus: `curl 127.0.0.1:7005`.
use dunlin_bus::{Endpoint, MeshConfig, mesh};
use dunlin_net::{http::*, *};
/// The connection that waits, and the answer on its way back. A worker counts questions, and holds answers for room.
type Message = (u64, Option<u64>);
struct Worker(Endpoint<Message>, u64, Vec<(usize, Message)>);
impl Handler for Worker {
    type Data = ();
    fn on_request(&mut self, cx: &mut Context<()>, conn: ConnId, _: &Request<'_>) {
        let asked = self.0.broadcast(|_| (conn.to_u64(), None)).sent > 0;
        _ = asked || cx.respond(conn, &Response::new(503)).is_ok(); // the other is behind
    }
    fn on_tick(&mut self, cx: &mut Context<()>) {
        while let Some((from, (conn, answer))) = self.0.recv() {
            self.1 += u64::from(answer.is_none());
            let text = format!("the other worker was asked {} times\n", answer.unwrap_or(0));
            match answer {
                None => self.2.push((from, (conn, Some(self.1)))),
                Some(_) => _ = cx.respond(ConnId::from_u64(conn), &Response::text(&text)),
            }
        }
        self.2.retain(|&(to, answer)| self.0.send(to, answer).is_err_and(|error| error.is_full()));
        self.0.flush();
    }
    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        if self.0.prepare_sleep() { Sleep::Block } else { Sleep::Poll }
    }
    fn on_wake(&mut self, _: &mut Context<()>) {
        self.0.wake();
    }
}
fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7005".into()).parse().expect("ip:port");
    let ends = std::sync::Mutex::new(mesh(2, &MeshConfig::default())?);
    let server = start_with(addr, ServerConfig::new(2, ListenConfig::http()), move |cx, _| {
        let end = ends.lock().expect("no worker panics").pop().expect("one for each");
        cx.register_fd(end.doorbell(), 0, Interest::READABLE).map(|()| Worker(end, 0, Vec::new()))
    })?;
    (println!("listening on {}", server.addr()), server.wait()).1
}
