//! Two workers on one address; the one that is asked asks the other how much it has served: `curl 127.0.0.1:7005`.
use dunlin_bus::{Endpoint, MeshConfig, mesh};
use dunlin_net::{http::*, *};
type Message = (RequestId, Option<u64>); // the request that waits, and the answer on its way back
struct Worker(Endpoint<Message>, Vec<(usize, Message)>); // answers that wait for room on the bus
impl Handler for Worker {
    type Data = ();
    type Protocols = Http;
    fn on_tick(&mut self, cx: &mut Context<()>) {
        while let Some((from, (id, answer))) = self.0.recv() {
            match answer {
                None => self.1.push((from, (id, Some(cx.stats().requests)))),
                Some(n) => _ = cx.respond(id, &Response::text(&format!("it has served {n}\n"))),
            }
        }
        self.1.retain(|&(to, answer)| self.0.send(to, answer).is_err_and(|error| error.is_full()));
        self.0.flush();
    }
    fn on_sleep(&mut self, _: &mut Context<()>) -> Sleep {
        if self.0.prepare_sleep() { Sleep::Block } else { Sleep::Poll }
    }
    fn on_wake(&mut self, _: &mut Context<()>) {
        self.0.wake();
    }
}
impl HttpHandler for Worker {
    fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, _: &Request<'_>) {
        let asked = self.0.broadcast(|_| (id, None)).sent > 0;
        _ = asked || cx.respond(id, &Response::new(503)).is_ok(); // the other is behind
    }
}
fn main() -> std::io::Result<()> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:7005".into()).parse().expect("ip:port");
    let ends = std::sync::Mutex::new(mesh(2, &MeshConfig::default())?);
    let server = start_with(addr, ServerConfig::new(2, ListenConfig::http()), move |cx, _| {
        let end = ends.lock().expect("no worker panics").pop().expect("one for each");
        cx.register_fd(end.doorbell(), 0, Interest::READABLE).map(|()| Worker(end, Vec::new()))
    })?;
    (println!("listening on {}", server.addr()), server.wait()).1
}
