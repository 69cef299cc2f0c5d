//! A thousand requests over two connections, fifty in flight on each: `pipelined http://127.0.0.1:8000`
use dunlin_net::{Context, EventLoop, LoopConfig};
use dunlin_pipeline::{
    Caller, Client, ClientConfig, Depth, HostConfig, Outcome, Request, RequestId, Requests,
};
#[derive(Default)]
struct Tally(usize, Option<String>);
impl Caller for Tally {
    type Data = ();

    fn on_outcome(
        &mut self,
        _: &mut Context<()>,
        _: &mut Requests<'_>,
        _: RequestId,
        _: u64,
        end: &Outcome<'_>,
    ) {
        match end {
            Outcome::Answered(answer) if answer.status == 200 => self.0 += 1,
            end => _ = self.1.get_or_insert_with(|| end.to_string()),
        }
    }
    fn on_idle(&mut self, cx: &mut Context<()>, _: &mut Requests<'_>) {
        println!("{} answered with 200", self.0);
        cx.stop();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or("http://127.0.0.1:8000".to_owned());
    let mut client = Client::new(ClientConfig::default(), Tally::default());
    let config = HostConfig { connections: 2, depth: Depth::Fixed(50), ..HostConfig::default() };
    let mut requests = client.requests();
    let host = requests.host(&url, config)?;
    let get = requests.prepare(host, &Request::get("/"));
    (0..1000).try_for_each(|tag| requests.send(host, &get, tag).map(drop))?;
    EventLoop::new(LoopConfig::default())?.run(&mut client)?;
    client.caller().1.take().map_or(Ok(()), |first| Err(format!("the first other: {first}").into()))
}
