//! What stands between us and the service: every waiting push ends at its deadline with the reason, and the sender reports it too.

use std::time::Duration;

use dunlin_push::apns::Apns;
use dunlin_push::{ConnectFault, NotSent, Origin, Outcome, results};
use dunlin_simulate::apns::Behaviour;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::{Connections, nobody, origin, push, sender, simulator, until};

const PUSHES: usize = 20;
/// Longer than any machine takes to find out.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Something that is not what it should be: it does this to each connection.
async fn stranger<F>(play: fn(TcpStream) -> F) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(play(stream));
        }
    });
    at
}

async fn silent(mut stream: TcpStream) {
    let mut buffer = [0; 1_024];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

/// Says something once it has been spoken to, and leaves.
async fn says(mut stream: TcpStream, what: &[u8]) {
    let _ = stream.read(&mut [0; 1_024]).await;
    let _ = stream.write_all(what).await;
    let _ = stream.shutdown().await;
    silent(stream).await;
}

/// Has pushes wait until their deadlines, and gives the last one's reported reason and what the sender says of itself. Again
/// with more time, where the machine needs more of it to find out.
async fn obstacle(
    origin: Origin,
    connections: Connections,
    sentence: &str,
) -> (String, ConnectFault, String) {
    let apns = sender(origin, connections);
    let (begun, mut timeout, mut sent) = (Instant::now(), Duration::from_millis(700), 0);
    loop {
        let (sink, mut ends) = results();
        for number in 0..PUSHES {
            let mut push = push("aaaa", number);
            push.timeout = timeout + Duration::from_millis(10 * number as u64);
            apns.submit(&push, number as u64, &sink).await.unwrap();
        }
        let mut reported = Vec::new();
        for _ in 0..PUSHES {
            let (_, outcome) = ends.recv().await.unwrap();
            let Outcome::NotSent(why) = outcome else { panic!("{outcome}") };
            reported.push(match why {
                NotSent::Connect(why) => why,
                why => why.to_string(),
            });
        }
        sent += PUSHES;
        let metrics = apns.metrics();
        assert_eq!((metrics.not_sent, metrics.queued_bytes), (sent as u64, 0));
        let late = begun.elapsed() > TIMEOUT;
        if late || reported.iter().all(|why| why.contains(sentence)) {
            let error = known(&apns).await;
            return (reported.pop().unwrap(), error.fault, error.why);
        }
        timeout *= 2;
    }
}

/// Why there is no connection, which is shown a moment after it has begun to be so.
async fn known(apns: &Apns) -> dunlin_push::ConnectError {
    until(|| apns.metrics().connect_error.is_some()).await;
    apns.metrics().connect_error.unwrap()
}

#[tokio::test]
async fn what_is_in_the_way_is_reported_to_every_push_and_to_the_operator() {
    let simulator = simulator(Behaviour::default());
    let direct = |address: &str| {
        let mut origin = origin(&simulator);
        origin.address = Some(address.to_owned());
        origin
    };
    let proxied = |proxy: String| {
        let mut origin = origin(&simulator);
        origin.address = None;
        origin.proxy = Some(proxy.parse().unwrap());
        origin
    };
    let nobody = nobody().to_string();
    let mute = stranger(silent).await;
    let forbids =
        stranger(|stream| says(stream, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"))
            .await;
    let wants_login =
        stranger(|stream| says(stream, b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"))
            .await;
    let cut_off = stranger(|stream| says(stream, b"HTTP/1.1 502 Bad Gateway\r\n\r\n")).await;
    let leaves = stranger(|stream| says(stream, b"")).await;
    let web_page = stranger(|stream| says(stream, b"HTTP/1.1 302 Found\r\n\r\n")).await;
    let no_method = stranger(|stream| says(stream, &[5, 0xff])).await;
    let no_socks = stranger(|stream| says(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    let rules = stranger(|mut stream| async move {
        let _ = stream.read_exact(&mut [0; 3]).await;
        let _ = stream.write_all(&[5, 0]).await;
        says(stream, &[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    })
    .await;

    use ConnectFault::{Address, Dns, Proxy, Tls};
    let stories = [
        // No name at all, so that no server of names is asked.
        (direct("no such host:443"), Dns, "is the name right"),
        (direct(&nobody), Address, "cannot be reached: Connection refused"),
        (direct(&mute), Tls, "does not answer a TLS handshake"),
        (direct(&leaves), Tls, "ends the connection in the TLS handshake"),
        (direct(&web_page), Tls, "does not speak TLS: something else answers there"),
        (proxied(format!("http://{nobody}")), Proxy, "proxy: "),
        (proxied("http://no such proxy:1".to_owned()), Proxy, "cannot be looked up"),
        (proxied(format!("http://{mute}")), Proxy, "does not answer CONNECT localhost:"),
        (proxied(format!("http://{forbids}")), Proxy, "its rules forbid connections to localhost:"),
        (proxied(format!("http://{wants_login}")), Proxy, "it wants a login: http://USER"),
        (proxied(format!("http://a:b@{wants_login}")), Proxy, "it does not accept the login"),
        (proxied(format!("http://{cut_off}")), Proxy, "does its own way out work"),
        (proxied(format!("http://{leaves}")), Proxy, "ends the connection without an answer"),
        (proxied(format!("socks5://{mute}")), Proxy, "is it a SOCKS5 proxy"),
        (proxied(format!("socks5://{no_method}")), Proxy, "it wants a login: socks5://USER"),
        (proxied(format!("socks5://a:b@{no_method}")), Proxy, "leave them out"),
        (proxied(format!("socks5://{no_socks}")), Proxy, "it does not speak SOCKS5"),
        (proxied(format!("socks5://{rules}")), Proxy, "its rules forbid connections to localhost:"),
    ];
    let stories = stories.map(|(origin, fault, sentence)| {
        tokio::spawn(async move {
            let (reported, known, why) =
                obstacle(origin, Connections::Auto { max: 4 }, sentence).await;
            assert!(reported.contains(sentence), "{sentence:?}: reported {reported:?}");
            assert!(why.contains(sentence), "{sentence:?}: known {why:?}");
            assert_eq!(known, fault, "{why}");
        })
    });
    for story in stories {
        story.await.unwrap();
    }
    assert_eq!(simulator.counts().received, 0);
}

#[tokio::test]
async fn a_certificate_nobody_trusts_is_reported_with_the_remedy() {
    let (ours, other) = (simulator(Behaviour::default()), simulator(Behaviour::default()));
    let mut origin = origin(&ours);
    origin.address = Some(other.addr().to_string());
    let sentence = "not signed by anybody we trust";
    let (reported, fault, why) = obstacle(origin, Connections::Fixed(2), sentence).await;
    assert!(reported.contains(sentence), "{reported}");
    assert!(reported.contains("name its root certificate"), "{reported}");
    assert_eq!((fault, why), (ConnectFault::Untrusted, reported));
    assert_eq!(other.counts().received, 0, "and nothing was said to it");
}

#[tokio::test]
async fn a_caller_who_waits_for_room_is_reported_why_there_is_none() {
    let simulator = simulator(Behaviour::default());
    let mut origin = origin(&simulator);
    origin.address = Some(nobody().to_string());
    let config = dunlin_push::SenderConfig { queue_bytes_max: 2_000, ..Default::default() };
    let apns = super::sender_with(origin, config);
    let (sink, mut ends) = results();
    let mut first = push("aaaa", 1);
    first.timeout = Duration::from_secs(60);
    apns.submit(&first, 1, &sink).await.unwrap();
    // There is room for two; a third waits in vain.
    apns.submit(&first, 2, &sink).await.unwrap();
    known(&apns).await;
    let mut third = push("aaaa", 3);
    third.timeout = Duration::from_millis(500);
    let outcome = apns.send(&third).await;
    let Outcome::NotSent(NotSent::Connect(why)) = outcome else { panic!("{outcome}") };
    assert!(why.contains("Connection refused"), "{why}");
    assert!(ends.try_recv().is_none(), "those before go on waiting");
}

#[tokio::test]
async fn a_connection_that_comes_at_last_takes_what_waited() {
    let simulator = simulator(Behaviour::default());
    let target = simulator.addr();
    // The address is nobody's at first; a relay opens there later.
    let at = nobody();
    let mut origin = origin(&simulator);
    origin.address = Some(at.to_string());
    let apns = sender(origin, Connections::Fixed(1));
    let (sink, mut ends) = results();
    for number in 0..PUSHES {
        apns.submit(&push("aaaa", number), number as u64, &sink).await.unwrap();
    }
    assert_eq!(known(&apns).await.fault, ConnectFault::Address);
    let relay = TcpListener::bind(at).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = relay.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    for _ in 0..PUSHES {
        let (_, outcome) = ends.recv().await.unwrap();
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
    }
    assert_eq!(apns.metrics().connect_error, None, "and what is over is reported no more");
}
