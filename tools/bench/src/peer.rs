//! The servers that Dunlin is compared with: the floor program, and peers from Debian packages.

use std::net::SocketAddr;
use std::path::Path;

use crate::protocol::{Protocol, ProtocolName};
use crate::publisher::{Publishing, Template};
use dunlin_load::installed::{installed, version};
use dunlin_load::{Context, Error, Scratch};

/// A server that the generator can start and measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PeerName {
    /// nginx with nchan: WebSocket subscribers, HTTP publishers
    Nchan,
    /// Redis pub/sub
    Redis,
    /// NATS core
    Nats,
    /// Mosquitto, MQTT 3.1.1, quality of service 0
    Mosquitto,
}

/// Everything needed to measure one server.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) command: String,
    /// The version it reports.
    pub(crate) version: Option<String>,
    pub(crate) address: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) publishing: Publishing,
}

const CHANNEL: &str = "c";

/// Starts the floor as a separate process of this program.
pub(crate) fn floor(message_bytes: usize) -> Result<Peer, Error> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let address = local(8390);
    Ok(Peer {
        name: "floor",
        command: format!(
            "'{}' floor --listen {address} --message-bytes {message_bytes}",
            program.display()
        ),
        version: None,
        address,
        protocol: protocol(ProtocolName::Websocket, address, "/", None),
        publishing: Publishing {
            address,
            template: Template::Floor,
            pad_bytes: 0,
            numbered_after: None,
        },
    })
}

pub(crate) fn peer(name: PeerName, scratch: &Scratch) -> Result<Peer, Error> {
    match name {
        PeerName::Nchan => nchan(scratch),
        PeerName::Redis => redis(),
        PeerName::Nats => nats(),
        PeerName::Mosquitto => mosquitto(scratch),
    }
}

fn nchan(scratch: &Scratch) -> Result<Peer, Error> {
    const MODULE: &str = "/usr/lib/nginx/modules/ngx_nchan_module.so";
    let nginx = installed("nginx", "libnginx-mod-nchan")?;
    if !Path::new(MODULE).exists() {
        return Err(Error::new(format!("{MODULE} is missing: apt-get install libnginx-mod-nchan")));
    }
    let address = local(8391);
    let dir = scratch.path().display();
    let config = scratch.file(
        "nchan.conf",
        &format!(
            "load_module {MODULE};\n\
             worker_processes 1; worker_rlimit_nofile 20000; daemon off;\n\
             pid {dir}/nginx.pid; error_log {dir}/nginx.log warn;\n\
             events {{ worker_connections 19900; }}\n\
             http {{ access_log off; nchan_shared_memory_size 512M; keepalive_requests 10000000;\n\
             server {{ listen {address} backlog=4096;\n\
             location = /sub {{ nchan_subscriber; nchan_channel_id {CHANNEL}; nchan_subscriber_timeout 0;\n\
             nchan_websocket_ping_interval 0; nchan_subscriber_first_message newest; }}\n\
             location = /pub {{ nchan_publisher; nchan_channel_id {CHANNEL}; nchan_message_buffer_length 1000; }} }} }}\n"
        ),
    )?;
    let template = Template::Http {
        host: address.to_string(),
        path: "/pub".into(),
        body: "{data}".into(),
        batch_path: None,
        api_key: None,
    };
    Ok(Peer {
        name: "nchan",
        command: format!("{} -c {}", nginx.display(), config.display()),
        version: version(&nginx, "-v"),
        address,
        protocol: protocol(ProtocolName::Websocket, address, "/sub", None),
        publishing: Publishing { address, template, pad_bytes: 0, numbered_after: None },
    })
}

fn redis() -> Result<Peer, Error> {
    let redis = installed("redis-server", "redis-server")?;
    let address = local(6399);
    let template = Template::Redis { channel: CHANNEL.into() };
    Ok(Peer {
        name: "redis",
        command: format!(
            // For Redis, 127.1.0.0/16 is not the loopback network.
            "{} --port 6399 --bind 127.0.0.1 --protected-mode no --save '' --maxclients 15000",
            redis.display()
        ),
        version: version(&redis, "--version"),
        address,
        protocol: protocol(ProtocolName::Redis, address, "/", Some(CHANNEL)),
        publishing: Publishing { address, template, pad_bytes: 0, numbered_after: None },
    })
}

fn nats() -> Result<Peer, Error> {
    let nats = installed("nats-server", "nats-server")?;
    let address = local(4333);
    let template = Template::Nats { channel: CHANNEL.into() };
    Ok(Peer {
        name: "nats",
        command: format!("{} -a 127.0.0.1 -p 4333", nats.display()),
        version: version(&nats, "--version"),
        address,
        protocol: protocol(ProtocolName::Nats, address, "/", Some(CHANNEL)),
        publishing: Publishing { address, template, pad_bytes: 0, numbered_after: None },
    })
}

fn mosquitto(scratch: &Scratch) -> Result<Peer, Error> {
    let mosquitto = installed("mosquitto", "mosquitto")?;
    let address = local(1884);
    let config = scratch.file(
        "mosquitto.conf",
        "listener 1884 127.0.0.1\nallow_anonymous true\nmax_connections -1\nmax_queued_messages 0\n\
         persistence false\n",
    )?;
    let template = Template::Mqtt { channel: CHANNEL.into() };
    Ok(Peer {
        name: "mosquitto",
        command: format!("{} -c {}", mosquitto.display(), config.display()),
        version: version(&mosquitto, "-h"),
        address,
        protocol: protocol(ProtocolName::Mqtt, address, "/", Some(CHANNEL)),
        publishing: Publishing { address, template, pad_bytes: 0, numbered_after: None },
    })
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn protocol(
    name: ProtocolName,
    address: SocketAddr,
    path: &str,
    channel: Option<&str>,
) -> Protocol {
    Protocol {
        name,
        host: address.to_string(),
        path: path.into(),
        channel: channel.map(str::to_owned),
        hello: None,
        tokens: std::sync::Arc::default(),
        delta: false,
        join_leave: false,
    }
}
