//! The simulator without the rest of Dunlin: `cargo run --example simulator [ADDR]`, plain HTTP/2, no faults.

use dunlin_simulate::apns::{Behaviour, Config, Simulator};

fn main() -> Result<(), dunlin_simulate::StartError> {
    let addr = std::env::args().nth(1).unwrap_or("127.0.0.1:2197".into());
    let behaviour =
        Behaviour { streams_first: 1_000, connection_window: 16 << 20, ..Behaviour::default() };
    let listen = addr.parse().expect("address:port");
    let config = Config { listen, tls: false, behaviour, ..Config::default() };
    let simulator = Simulator::start(config)?;
    println!("push to http://{}", simulator.addr());
    simulator.wait();
    Ok(())
}
