//! The Redis client against a real Redis: pipelined, subscribed, and back again after it went away.

#![allow(clippy::unwrap_used, reason = "what fails to unwrap fails the test")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use dunlin_net::redis::{Client, ClientConfig, CommandError, Error, LostCommand, Received};
use dunlin_net::{
    CloseReason, ConnId, ConnectConfig, Context, EventLoop, Handler, LoopConfig, ServerAddr, Tcp,
    TimerId, Tls,
};
use dunlin_testkit::Redis;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Writes down what it sees.
struct Notes {
    client: Client,
    replies: Vec<(u64, String)>,
    messages: Vec<String>,
    closes: usize,
    greeted: usize,
}

impl Handler for Notes {
    type Data = ();
    type Protocols = Tcp;

    fn on_connect(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.handle_connect(cx, conn);
    }

    fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
        let Notes { client, replies, messages, greeted, .. } = self;
        client.handle_data(cx, conn, bytes, |_, _, received| match received {
            Received::Ready => *greeted += 1,
            Received::Reply(token, reply) => replies.push((token, format!("{reply:?}"))),
            Received::Message(message) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let pattern = message.pattern.map_or(String::new(), |p| format!("{} ", text(p)));
                let (channel, payload) = (text(message.channel), text(message.payload));
                messages.push(format!("{pattern}{channel} {payload}"));
            }
            Received::Push(_) => {}
        });
    }

    fn on_writable(&mut self, cx: &mut Context<()>, conn: ConnId) {
        self.client.handle_writable(cx, conn);
    }

    fn on_close(&mut self, cx: &mut Context<()>, conn: ConnId, (): (), _: CloseReason) {
        self.closes += 1;
        self.client.handle_close(cx, conn);
    }

    fn on_connect_failed(
        &mut self,
        cx: &mut Context<()>,
        conn: ConnId,
        (): (),
        error: &std::io::Error,
    ) {
        self.client.handle_connect_failed(cx, conn, error);
    }

    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, _: u64) {
        self.client.handle_timer(cx, timer);
    }
}

struct Stage {
    event_loop: EventLoop<Notes>,
    notes: Notes,
}

fn stage(config: ClientConfig) -> Stage {
    let mut event_loop = EventLoop::new(LoopConfig::default()).unwrap();
    let mut client = Client::new(ClientConfig { retry_ms_min: 1, retry_ms_max: 50, ..config });
    client.connect(event_loop.context());
    let notes = Notes { client, replies: Vec::new(), messages: Vec::new(), closes: 0, greeted: 0 };
    Stage { event_loop, notes }
}

impl Stage {
    fn until(&mut self, so: impl Fn(&Notes) -> bool) {
        let began = Instant::now();
        while !so(&self.notes) {
            assert!(began.elapsed() < TIMEOUT, "it did not come about");
            self.event_loop.turn(&mut self.notes, Some(Duration::from_millis(100))).unwrap();
        }
    }

    fn command(&mut self, token: u64, arguments: &[&str]) -> Result<(), CommandError> {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.notes.client.command(self.event_loop.context(), token, &arguments)
    }
}

#[test]
fn replies_come_in_the_order_of_the_commands() {
    let server = Redis::start(&[]);
    let mut stage = stage(ClientConfig::new(server.addr));
    for token in 1..=10_000 {
        stage.command(token, &["INCR", "counter"]).unwrap();
    }
    stage.command(10_001, &["HSET", "h", "a", "1"]).unwrap();
    stage.command(10_002, &["HGETALL", "h"]).unwrap();
    stage.command(10_003, &["NOSUCH"]).unwrap();
    stage.until(|notes| notes.replies.len() == 10_003);
    for (token, reply) in &stage.notes.replies[..10_000] {
        assert_eq!(reply, &format!("Integer({token})"));
    }
    assert_eq!(stage.notes.greeted, 1);
    assert!(
        stage.notes.replies[10_001].1.starts_with("Map([(Bulk("),
        "{:?}",
        stage.notes.replies[10_001]
    );
    assert!(stage.notes.replies[10_002].1.starts_with("Error(\"ERR unknown command"));
}

#[test]
fn no_more_commands_are_out_than_allowed() {
    let server = Redis::start(&[]);
    let mut stage = stage(ClientConfig { outstanding_max: 10, ..ClientConfig::new(server.addr) });
    stage.until(|notes| notes.client.is_ready());
    for token in 1..=1000 {
        stage.command(token, &["INCR", "counter"]).unwrap();
        assert!(stage.notes.client.outstanding() <= 10);
    }
    stage.until(|notes| notes.replies.len() == 1000);
    for (token, reply) in &stage.notes.replies {
        assert_eq!(reply, &format!("Integer({token})"));
    }
    assert_eq!(stage.notes.client.outstanding(), 0);
}

#[test]
fn messages_come_beside_replies() {
    let server = Redis::start(&[]);
    let mut stage = stage(ClientConfig::new(server.addr));
    stage.until(|notes| notes.client.is_ready());
    let Stage { event_loop, notes } = &mut stage;
    notes.client.subscribe(event_loop.context(), b"news");
    notes.client.subscribe_pattern(event_loop.context(), b"s*");
    for (token, channel) in [(1, "news"), (2, "sport"), (3, "none")] {
        stage.command(token, &["PUBLISH", channel, "x"]).unwrap();
    }
    stage.until(|notes| notes.replies.len() == 3 && notes.messages.len() == 2);
    assert_eq!(stage.notes.messages, ["news x", "s* sport x"]);
    let replies: Vec<&str> = stage.notes.replies.iter().map(|(_, reply)| reply.as_str()).collect();
    assert_eq!(replies, ["Integer(1)", "Integer(1)", "Integer(0)"]);

    let Stage { event_loop, notes } = &mut stage;
    notes.client.unsubscribe(event_loop.context(), b"news");
    stage.command(4, &["PUBLISH", "news", "unheard"]).unwrap();
    stage.until(|notes| notes.replies.len() == 4);
    assert_eq!(stage.notes.replies[3].1, "Integer(0)");
}

#[test]
fn a_server_that_comes_back_finds_its_subscribers_and_what_waited() {
    let server = Redis::start(&[]);
    let addr = server.addr;
    let mut stage = stage(ClientConfig { queue_bytes_max: 1000, ..ClientConfig::new(addr) });
    stage.until(|notes| notes.client.is_ready());
    let Stage { event_loop, notes } = &mut stage;
    notes.client.subscribe(event_loop.context(), b"news");
    stage.command(1, &["PING"]).unwrap();
    stage.until(|notes| notes.replies.len() == 1);

    // A command is out when the server dies: what became of it nobody knows.
    stage.command(2, &["BLPOP", "nothing", "0"]).unwrap();
    stage.event_loop.turn(&mut stage.notes, Some(Duration::ZERO)).unwrap();
    drop(server);
    stage.until(|notes| notes.closes > 0);
    assert_eq!(stage.notes.client.poll_lost(), Some(LostCommand { token: 2, sent: true }));
    assert_eq!(stage.notes.client.poll_lost(), None);

    let mut taken = 0;
    while stage.command(100 + taken, &["PUBLISH", "news", "again"]).is_ok() {
        taken += 1;
        assert!(taken < 100, "the queue is bounded");
    }
    let _server = Redis::start_at(addr, &[]).expect("the port is still free");
    stage.until(|notes| notes.replies.len() as u64 == 1 + taken);
    stage.until(|notes| notes.messages.len() as u64 == taken);
    assert_eq!(stage.notes.replies[1], (100, "Integer(1)".to_owned()));
}

/// More subscriptions than the connection buffers, sent to a server that has stopped reading.
#[test]
fn however_many_subscriptions_there_are_a_new_connection_tells_them_all() {
    const CHANNELS: usize = 100_000;
    let server = Redis::start(&[]);
    let mut config = ClientConfig::new(server.addr);
    config.connect.limits.output_bytes_max = 1000;
    let mut stage = stage(config);
    let name = |n: usize| format!("a channel with a name of some length, number {n}");
    let Stage { event_loop, notes } = &mut stage;
    for n in 0..CHANNELS {
        notes.client.subscribe(event_loop.context(), name(n).as_bytes());
    }
    notes.client.subscribe(event_loop.context(), b"given up before it was sent");
    notes.client.unsubscribe(event_loop.context(), b"given up before it was sent");
    stage.until(|notes| notes.client.is_ready());
    // Behind the subscriptions, whatever the socket takes of them at first.
    stage.command(1, &["PUBLISH", &name(CHANNELS - 1), "x"]).unwrap();
    stage.command(2, &["PUBSUB", "NUMPAT"]).unwrap();
    stage.command(3, &["PUBSUB", "NUMSUB", "given up before it was sent"]).unwrap();
    stage.until(|notes| notes.replies.len() == 3 && notes.messages.len() == 1);
    assert_eq!(stage.notes.replies[0].1, "Integer(1)");
    assert!(stage.notes.replies[2].1.contains("Integer(0)"), "{:?}", stage.notes.replies[2]);
    assert_eq!(stage.notes.closes, 0);
}

#[test]
fn a_password_is_not_among_what_is_logged() {
    let mut config = ClientConfig::new("127.0.0.1:6379".parse().unwrap());
    config.auth = Some(("ada".to_owned(), "secret".to_owned()));
    let reported = format!("{:?}", Client::new(config));
    assert!(reported.contains("ada") && !reported.contains("secret"), "{reported}");
}

#[test]
fn a_wrong_password_is_reported() {
    let server = Redis::start(&[]);
    let auth = Some(("nobody".to_owned(), "wrong".to_owned()));
    let mut stage = stage(ClientConfig { auth, ..ClientConfig::new(server.addr) });
    stage.until(|notes| notes.client.last_error().is_some());
    assert!(stage.notes.client.last_error().unwrap().starts_with("WRONGPASS"));
    assert!(!stage.notes.client.is_ready());
}

#[test]
fn a_server_that_speaks_something_else_is_an_error_and_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let mut stage = stage(ClientConfig::new(addr));
    stage.until(|notes| notes.closes > 1);
    assert_eq!(stage.notes.client.last_error(), Some(&*Error::Type.to_string()));
}

#[test]
fn a_connection_has_its_user_database_and_name() {
    let server = Redis::start(&[]);
    let mut admin = stage(ClientConfig::new(server.addr));
    admin.command(1, &["ACL", "SETUSER", "ada", "on", ">secret", "~*", "&*", "+@all"]).unwrap();
    admin.until(|notes| notes.replies.len() == 1);
    let mut config = ClientConfig::new(server.addr);
    config.auth = Some(("ada".to_owned(), "secret".to_owned()));
    (config.database, config.name) = (3, Some("dunlin-1".to_owned()));
    config.server = ServerAddr::Network { host: "localhost".to_owned(), port: server.addr.port() };
    let mut stage = stage(config);
    stage.command(1, &["CLIENT", "INFO"]).unwrap();
    stage.until(|notes| notes.replies.len() == 1);
    let info = &stage.notes.replies[0].1;
    for part in ["name=dunlin-1 ", " db=3 ", " user=ada ", " resp=3"] {
        let bytes = format!("{:?}", part.as_bytes());
        assert!(info.contains(bytes.trim_matches(['[', ']'])), "{part} is not in {info}");
    }
}

#[test]
fn a_server_is_reached_through_tls() {
    let own = rcgen::generate_simple_self_signed(vec!["redis.example".to_owned()]).unwrap();
    let directory = std::env::temp_dir().join(format!("dunlin-redis-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let [certificate, key] =
        ["cert.pem", "key.pem"].map(|name| directory.join(name).to_string_lossy().into_owned());
    std::fs::write(&certificate, own.cert.pem()).unwrap();
    std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    let server = Redis::start_with(|port| {
        let tls = ["--port", "0", "--tls-port", port, "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let authority = ["--tls-ca-cert-file", &certificate];
        [&tls[..], &files, &authority].concat().into_iter().map(str::to_owned).collect()
    });
    let tls = Tls::with_roots(own.cert.pem().as_bytes()).unwrap();
    for (name, is_reached) in [("redis.example", true), ("other.example", false)] {
        let mut config = ClientConfig::new(server.addr);
        config.connect.tls = Some(tls.client(name).unwrap());
        let mut stage = stage(config);
        stage.until(|notes| notes.greeted == 1 || notes.client.last_error().is_some());
        assert_eq!(stage.notes.client.is_ready(), is_reached, "{name}");
        if is_reached {
            let Stage { event_loop, notes } = &mut stage;
            notes.client.subscribe(event_loop.context(), b"news");
            stage.command(1, &["PUBLISH", "news", "x"]).unwrap();
            stage.until(|notes| notes.messages.len() == 1);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// What had not left is not sent behind the subscriptions of the next connection if its owner does not want that.
#[test]
fn unsent_commands_are_reported_as_not_executed() {
    let server = Redis::start(&[]);
    let mut config = ClientConfig { outstanding_max: 1, ..ClientConfig::new(server.addr) };
    config.requeue = false;
    let mut stage = stage(config);
    stage.until(|notes| notes.client.is_ready());
    stage.command(1, &["BLPOP", "nothing", "0"]).unwrap();
    stage.command(2, &["SET", "never", "1"]).unwrap();
    stage.event_loop.turn(&mut stage.notes, Some(Duration::ZERO)).unwrap();
    stage.notes.client.reconnect(stage.event_loop.context());
    stage.until(|notes| notes.greeted == 2);
    assert_eq!(stage.notes.client.poll_lost(), Some(LostCommand { token: 1, sent: true }));
    assert_eq!(stage.notes.client.poll_lost(), Some(LostCommand { token: 2, sent: false }));
    stage.command(3, &["EXISTS", "never"]).unwrap();
    stage.until(|notes| notes.replies.len() == 1);
    assert_eq!(stage.notes.replies[0], (3, "Integer(0)".to_owned()));

    // And it moves to another server.
    let other = Redis::start(&[]);
    let place = ServerAddr::Network { host: "127.0.0.1".to_owned(), port: other.addr.port() };
    let connect = ConnectConfig::default();
    stage.notes.client.move_to(stage.event_loop.context(), place, connect);
    stage.until(|notes| notes.greeted == 3);
    stage.command(4, &["CONFIG", "GET", "port"]).unwrap();
    stage.until(|notes| notes.replies.len() == 2);
    let port = format!("{:?}", other.addr.port().to_string().as_bytes());
    assert!(stage.notes.replies[1].1.contains(&port), "{:?}", stage.notes.replies[1]);
    stage.notes.client.close(stage.event_loop.context());
    assert!(!stage.notes.client.is_ready());
}

#[test]
fn a_command_without_an_end_to_its_answers_is_refused() {
    let mut stage = stage(ClientConfig::new("127.0.0.1:1".parse().unwrap()));
    let refused = stage.command(1, &["UNSUBSCRIBE"]);
    assert!(matches!(refused, Err(CommandError::Invalid(_))), "{refused:?}");
}
