//! Programs that speak protocols, over sockets of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_config::{ChannelOptions, Config, Framing, OnError, Program, Snapshot};

use super::*;
use crate::programs::ProgramMetric;
use crate::state::settings::Settings;

const IRC: &str = include_str!("../../../program/examples/irc.luau");

/// An address that is free.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn add_program(config: &mut Config, source: &str, framing: Framing, address: SocketAddr) {
    let program = Program {
        source: source.into(),
        on_error: OnError::Deny,
        framing,
        websocket_path: "/own".into(),
        ..Program::default()
    };
    config.programs.insert("p", program);
    let listener = dunlin_config::Listener {
        addr: address,
        program: Some("p".into()),
        ..dunlin_config::Listener::default()
    };
    config.listeners.insert("p", listener);
    let open = ChannelOptions {
        allow_subscribe_for_client: true,
        allow_publish_for_subscriber: true,
        allow_presence_for_subscriber: true,
        presence: true,
        join_leave: true,
        ..ChannelOptions::default()
    };
    config.channel.namespaces.insert("irc", open);
    config.channel.namespaces.insert("closed", ChannelOptions::default());
}

fn start(workers: usize, source: &str, framing: Framing) -> (Cluster, SocketAddr) {
    let address = free_address();
    let cluster =
        Cluster::start_with(workers, |config| add_program(config, source, framing, address));
    (cluster, address)
}

/// A client that sends and gets lines.
struct Peer {
    lines: BufReader<TcpStream>,
}

impl Peer {
    fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Peer { lines: BufReader::new(stream) }
    }

    fn irc(address: SocketAddr, nick: &str) -> Peer {
        let mut peer = Peer::connect(address);
        peer.say(&format!("NICK {nick}\r\nUSER {nick} 0 * :{nick}"));
        assert_eq!(peer.hear(), format!(":dunlin 001 {nick} :Welcome to Dunlin, {nick}"));
        assert!(peer.hear().starts_with(":dunlin 422"));
        peer
    }

    fn say(&mut self, line: &str) {
        self.lines.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// The next line; empty at the end.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }
}

#[test]
fn irc_clients_of_two_workers_and_a_client_of_the_api_talk_to_each_other() {
    let (cluster, address) = start(2, IRC, Framing::Lines);
    let mut peers: Vec<Peer> = (0..8).map(|at| Peer::irc(address, &format!("nick{at}"))).collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        assert_eq!(peer.ask("JOIN #room"), format!(":nick{at}!nick{at}@dunlin JOIN #room"));
        loop {
            if peer.hear().contains(" 366 ") {
                break;
            }
        }
    }
    peers[0].say("PRIVMSG #room :hello, all");
    for peer in &mut peers[1..] {
        let heard = std::iter::repeat_with(|| peer.hear()).find(|line| !line.contains("JOIN"));
        assert_eq!(heard.unwrap(), ":nick0!nick0@dunlin PRIVMSG #room :hello, all");
    }
    peers[1].say("PRIVMSG nick2 :just you");
    let heard = std::iter::repeat_with(|| peers[2].hear()).find(|line| !line.contains("JOIN"));
    assert_eq!(heard.unwrap(), ":nick1!nick1@dunlin PRIVMSG nick2 :just you");
    cluster.post("/api/publish", r##"{"channel":"irc:room","data":{"text":"news\r\nQUIT"}}"##);
    let heard = std::iter::repeat_with(|| peers[0].hear()).find(|line| !line.contains("JOIN"));
    assert_eq!(heard.unwrap(), ":dunlin!dunlin@dunlin PRIVMSG #room :news  QUIT");
    let mut other = Peer::connect(address);
    other.say("NICK nick3\r\nUSER x");
    assert_eq!(other.hear(), ":dunlin 433 * nick3 :Nickname is already in use");
    assert_eq!(other.ask("NICK nick_9"), ":dunlin 001 nick_9 :Welcome to Dunlin, nick_9");
    drop(peers);
    // A name is free again when its client is gone.
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut again = Peer::connect(address);
        again.say("NICK nick3\r\nUSER x");
        if again.hear().contains("001") {
            break;
        }
        assert!(Instant::now() < deadline, "the name stays taken");
    }
}

const COMMANDS: &str = r#"
local p = {}
function p.open(conn) conn:connect({ user = "ann" }) end
function p.frame(conn, frame)
    local word, rest = string.match(frame, "^(%S+) ?(.*)$")
    local result, failure
    if word == "subscribe" then result, failure = conn:subscribe(rest)
    elseif word == "publish" then result, failure = conn:publish(rest, { n = 1 })
    elseif word == "server" then result, failure = dunlin.publish(rest, { n = 2 })
    elseif word == "rpc" then result, failure = conn:rpc("nothing", {})
    elseif word == "loop" then while true do end
    elseif word == "fill" then local all = {} while true do table.insert(all, string.rep("x", 4e6)) end
    elseif word == "recurse" then local function f() return 1 + f() end f()
    elseif word == "crash" then error("as asked")
    elseif word == "pattern" then string.find(string.rep("a", 1e5), string.rep("a*", 100) .. "b")
    elseif word == "yield" then coroutine.yield()
    elseif word == "wrapped" then coroutine.wrap(function() conn:publish("irc:a", 1) end)()
    elseif word == "state" then conn.state = { text = string.rep("x", 20000) }
    elseif word == "much" then for _ = 1, tonumber(rest) do conn:send(string.rep("y", 1000)) end return
    elseif word == "count" then result = dunlin.kv.incr("n")
    elseif word == "shared" then result = dunlin.shared.incr(rest)
    else result = frame end
    conn:send((if failure then `{failure.code} {failure.message}` else dunlin.json.encode(result)) .. "\n")
end
function p.push(conn, push) conn:send(`push {push.channel} {push.raw}\n`) end
function p.close(conn, code, reason) dunlin.log(`{code} {reason}`) end
return p
"#;

#[test]
fn a_program_may_what_its_user_may_and_the_server_may_more() {
    let (cluster, address) = start(2, COMMANDS, Framing::Lines);
    let mut peer = Peer::connect(address);
    for refused in ["publish irc:a", "subscribe closed:a"] {
        assert!(peer.ask(refused).starts_with("103 permission denied: "), "{refused}");
    }
    assert!(peer.ask("subscribe irc:a").starts_with('{'));
    peer.say("publish irc:a");
    let mut heard = [peer.hear(), peer.hear()];
    heard.sort();
    // The push may come first, and so may that of the own join.
    assert!(
        heard.iter().any(|line| line == "push irc:a {\"n\":1}") || peer.hear().contains("\"n\":1")
    );
    assert!(peer.ask("rpc").starts_with("108 not available"));
    // Nobody may publish there but backends, and the program itself.
    assert!(peer.ask("server closed:b").starts_with('{'));
    let sums: Vec<String> = (0..4).map(|_| peer.ask("count")).collect();
    assert_eq!(sums, ["1", "2", "3", "4"]);
    drop(cluster);
}

#[test]
fn a_shared_value_is_one_on_all_workers() {
    let (_cluster, address) = start(3, COMMANDS, Framing::Lines);
    let mut peers: Vec<Peer> = (0..12).map(|_| Peer::connect(address)).collect();
    let mut sums: Vec<u32> =
        peers.iter_mut().map(|peer| peer.ask("shared key").parse().unwrap()).collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=12).collect::<Vec<u32>>());
}

#[test]
fn a_program_that_fails_ends_the_connection_and_no_other() {
    let (cluster, address) = start(1, COMMANDS, Framing::Lines);
    let mut bystander = Listener::connect(cluster.address, "news");
    let faults = |cluster: &Cluster| -> [u64; 2] {
        // On a machine that is slow, the time ends first.
        let of = |metric| cluster.state.programs.sum("p", metric);
        [of(ProgramMetric::TimedOut) + of(ProgramMetric::OutOfMemory), of(ProgramMetric::Errors)]
    };
    for (word, bounds, errors) in [("loop", 1, 0), ("fill", 1, 0), ("crash", 0, 1), ("yield", 0, 1)]
    {
        let before = faults(&cluster);
        let mut peer = Peer::connect(address);
        assert_eq!(peer.ask(word), "", "{word}: the connection ends");
        assert_eq!(faults(&cluster), [before[0] + bounds, before[1] + errors], "{word}");
    }
    cluster.post("/api/publish", r#"{"channel":"news","data":1}"#);
    assert_eq!(bystander.next().unwrap()["pub"]["data"], 1);
    let mut peer = Peer::connect(address);
    assert_eq!(peer.ask("hello"), "\"hello\"");
    // The fifth fault of the minute ends all that this machine has.
    let mut last = Peer::connect(address);
    assert_eq!(last.ask("crash"), "");
    assert_eq!(peer.hear(), "");
    assert_eq!(cluster.state.programs.sum("p", ProgramMetric::Restarts), 1);
    cluster.post("/api/publish", r#"{"channel":"news","data":2}"#);
    assert_eq!(bystander.next().unwrap()["pub"]["data"], 2);
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(Peer::connect(address).ask("again"), "\"again\"");
}

#[test]
fn a_program_that_recurses_or_waits_in_a_coroutine_of_its_own_or_has_too_much_state_fails() {
    for word in ["recurse", "wrapped", "state", "pattern"] {
        let (_cluster, address) = start(1, COMMANDS, Framing::Lines);
        let mut peer = Peer::connect(address);
        assert_eq!(peer.ask("hello"), "\"hello\"");
        assert!(!peer.ask(word).starts_with('{'), "{word}");
        assert_eq!(peer.hear(), "", "{word}: the connection ends");
    }
}

#[test]
fn a_line_that_never_ends_disconnects_and_many_short_ones_are_all_handled() {
    let (_cluster, address) = start(1, COMMANDS, Framing::Lines);
    let mut peer = Peer::connect(address);
    let written = peer.lines.get_mut().write_all(&[b'x'; 100_000]);
    // It may be closed before all is written.
    let _ = written;
    let mut rest = Vec::new();
    let _ = peer.lines.read_to_end(&mut rest);
    assert_eq!(rest, b"");
    let mut peer = Peer::connect(address);
    let mut writer = peer.lines.get_ref().try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..5 {
            writer.write_all("a\n".repeat(2_000).as_bytes()).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut all = Vec::new();
    peer.lines.read_to_end(&mut all).unwrap();
    sender.join().unwrap();
    assert_eq!(all.len(), 10_000 * "\"a\"\n".len());
}

#[test]
fn a_client_that_does_not_read_waits_and_gets_everything_when_it_does() {
    let (_cluster, address) = start(1, COMMANDS, Framing::Lines);
    let mut peer = Peer::connect(address);
    for _ in 0..64 {
        peer.say("much 200");
    }
    let mut other = Peer::connect(address);
    assert_eq!(other.ask("hello"), "\"hello\"");
    peer.lines.get_mut().shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    peer.lines.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 64 * 200 * 1_000);
}

#[test]
fn a_message_of_a_websocket_is_a_frame() {
    let (cluster, _) = start(1, COMMANDS, Framing::Raw);
    let mut stream = TcpStream::connect(cluster.address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(
        stream,
        "GET /own HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
    }
    // Masked with zeros.
    lines.get_mut().write_all(b"\x81\x82\0\0\0\0hi\x81\x83\0\0\0\0two").unwrap();
    let mut heard = [0; 14];
    lines.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"\x81\x05\"hi\"\n\x81\x06\"two\"");
}

#[test]
fn a_program_that_cuts_by_itself_gets_what_it_has_left_with_more() {
    let source = r#"
return {
    open = function(conn) conn:connect({ user = "ann" }) end,
    frame = function(conn, bytes)
        if #bytes < 3 then return 0 end
        conn:send(string.sub(bytes, 1, 3) .. "\n")
        return 3
    end,
}"#;
    let (_cluster, address) = start(1, source, Framing::Raw);
    let mut peer = Peer::connect(address);
    peer.lines.get_mut().write_all(b"ab").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    peer.lines.get_mut().write_all(b"cd").unwrap();
    assert_eq!(peer.hear(), "abc");
    peer.lines.get_mut().write_all(b"ef").unwrap();
    assert_eq!(peer.hear(), "def");
}

/// Settings with other code of the program, in effect.
fn swap(cluster: &mut Cluster, change: impl FnOnce(&mut Config)) {
    let mut config = cluster.state.newest_for(0).config.clone();
    change(&mut config);
    let revision = cluster.state.newest_for(0).revision + 1;
    let snapshot = Arc::new(Snapshot::new(revision, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    for worker in 0..cluster.state.counters.len() {
        cluster.send(worker, WorkerMessage::AdoptSettings);
    }
    // Who has answered a request since has adopted them.
    cluster.post("/api/publish", r#"{"channel":"x","data":1}"#);
}

#[test]
fn connections_stay_with_old_code_or_are_given_to_the_new() {
    let version = |name: &str, upgrade: &str| {
        format!(
            "return {{ open = function(conn) conn:connect({{ user = 'ann' }}) end,
            frame = function(conn, frame) conn.state.n = (conn.state.n or 0) + 1
                conn:send(`{name} {{conn.state.n}} {{conn.user}}\\n`) end{upgrade} }}"
        )
    };
    let (mut cluster, address) = start(1, &version("one", ""), Framing::Lines);
    let mut old = Peer::connect(address);
    assert_eq!(old.ask("x"), "one 1 ann");
    let source = |config: &mut Config, source: &str| {
        let program = config.programs.get("p").unwrap().clone();
        config.programs.insert("p", Program { source: source.into(), ..program });
    };
    swap(&mut cluster, |config| source(config, &version("two", "")));
    let mut new = Peer::connect(address);
    assert_eq!(new.ask("x"), "two 1 ann");
    assert_eq!(old.ask("x"), "one 2 ann", "it stays with the code that it began with");
    // A third version: those of the first have to go, those of the second stay.
    swap(&mut cluster, |config| source(config, &version("three", "")));
    assert_eq!(old.hear(), "");
    assert_eq!(new.ask("x"), "two 2 ann");
    let upgrade = ", upgrade = function(state) state.n += 100 return state end";
    drop(old);
    let mut third = Peer::connect(address);
    assert_eq!(third.ask("x"), "three 1 ann");
    swap(&mut cluster, |config| source(config, &version("four", upgrade)));
    assert_eq!(third.ask("x"), "four 102 ann");
    assert_eq!(new.ask("x"), "four 103 ann", "code that takes connections over takes all");
    swap(&mut cluster, |config| {
        config.listeners.remove("p");
        config.programs.remove("p");
    });
    assert_eq!((third.hear(), new.hear()), (String::new(), String::new()));
}

#[test]
fn code_that_is_replaced_a_hundred_times_under_load_loses_no_connection_and_no_state() {
    let source = |version: usize| -> Arc<str> {
        format!(
            "local version = {version}
            return {{ open = function(conn) conn:connect({{ user = 'ann' }}) conn.state.n = 0 end,
            frame = function(conn, frame)
                conn:subscribe('irc:room')
                conn.state.n += 1
                conn:send(`{{conn.state.n}} {{frame}}\\n`)
            end,
            push = function() end,
            upgrade = function(state) return state end }}"
        )
        .into()
    };
    let (mut cluster, address) = start(2, &source(0), Framing::Lines);
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let peers: Vec<_> = (0..16)
        .map(|_| {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                let mut peer = Peer::connect(address);
                let mut asked = 0;
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    asked += 1;
                    assert_eq!(peer.ask("x"), format!("{asked} x"));
                }
                asked
            })
        })
        .collect();
    for version in 1..=100 {
        swap(&mut cluster, |config| {
            let program = config.programs.get("p").unwrap().clone();
            config.programs.insert("p", Program { source: source(version), ..program });
        });
    }
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    let asked: Vec<u32> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
    assert!(asked.iter().all(|asked| *asked > 0), "{asked:?}");
    assert_eq!(cluster.state.programs.sum("p", ProgramMetric::Errors), 0);
}
