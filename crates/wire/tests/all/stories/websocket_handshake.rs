//! The opening handshake (RFC 6455 §4) and what it settles on compression (RFC 7692 §5, §7.1).

use dunlin_wire::http1::Method;
use dunlin_wire::websocket::Role;
use dunlin_wire::websocket::deflate::{DeflateConfig, DeflateParams, Direction};
use dunlin_wire::websocket::handshake::{
    self, ClientConfig, ClientHandshake, ClientHandshakeError, HandshakeError, ServerConfig,
    encode_rejection,
};

use super::http1_request::request;
use super::http1_response::response;

const HEADERS: &str = "Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

/// The server's response to a handshake, with what it agreed to on compression.
fn answer(
    headers: &str,
    config: &ServerConfig<'_>,
) -> Result<(String, Option<DeflateParams>), HandshakeError> {
    let bytes = format!("GET /connection/websocket HTTP/1.1\r\n{headers}\r\n");
    request(bytes.as_bytes(), |head, _| {
        let accepted = handshake::accept(&head, config)?;
        let mut out = Vec::new();
        accepted.encode_response(&mut out, &[("Server", "dunlin")]);
        Ok((String::from_utf8(out).unwrap(), accepted.deflate()))
    })
}

fn refusal(headers: &str) -> HandshakeError {
    answer(headers, &ServerConfig::default()).unwrap_err()
}

#[test]
fn the_example_of_the_rfc() {
    let config = ServerConfig { protocols: &["superchat", "chat"], ..ServerConfig::default() };
    let headers =
        format!("{HEADERS}Sec-WebSocket-Protocol: chat, superchat\r\nOrigin: http://b\r\n");
    let (response, deflate) = answer(&headers, &config).unwrap();
    assert_eq!(
        response,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\
         Server: dunlin\r\n\r\n"
    );
    assert_eq!(deflate, None);
}

#[test]
fn each_missing_part_is_named() {
    let without = |name: &str| {
        let lines = HEADERS.split_inclusive("\r\n").filter(|line| !line.starts_with(name));
        refusal(&lines.collect::<String>())
    };
    assert_eq!(without("Upgrade"), HandshakeError::UpgradeMissing);
    assert_eq!(without("Connection"), HandshakeError::UpgradeMissing);
    assert_eq!(without("Sec-WebSocket-Key"), HandshakeError::Key);
    assert_eq!(without("Sec-WebSocket-Version"), HandshakeError::Version);
    let with = |from: &str, to: &str| refusal(&HEADERS.replace(from, to));
    assert_eq!(with("Upgrade: websocket", "Upgrade: h2c"), HandshakeError::UpgradeMissing);
    assert_eq!(with("Version: 13", "Version: 8"), HandshakeError::Version);
    assert_eq!(with("ZQ==", "Z==="), HandshakeError::Key);
    assert_eq!(with("dGhl", "dGh!"), HandshakeError::Key);
    assert_eq!(with("dGhl", ""), HandshakeError::Key);
    assert_eq!(
        refusal(&format!("{HEADERS}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")),
        HandshakeError::Key
    );
    assert_eq!(refusal(&format!("{HEADERS}Content-Length: 1\r\n")), HandshakeError::Request);
    let post = format!("POST / HTTP/1.1\r\n{HEADERS}\r\n");
    request(post.as_bytes(), |head, _| {
        let error = handshake::accept(&head, &ServerConfig::default()).unwrap_err();
        assert_eq!((error, error.status()), (HandshakeError::Method, 405));
    });
    // As browsers write it.
    let config = ServerConfig::default();
    let firefox = HEADERS.replace("Connection: Upgrade", "Connection: keep-alive, Upgrade");
    assert!(answer(&firefox.replace("websocket", "WebSocket"), &config).is_ok());
}

#[test]
fn a_refusal_says_what_is_spoken_here() {
    let mut out = Vec::new();
    encode_rejection(&mut out, HandshakeError::Version, true);
    response(&out, Method::Get, |head, consumed| {
        assert_eq!((head.status, head.keep_alive), (426, true));
        assert_eq!(head.headers.get_str("sec-websocket-version"), Some("13"));
        assert!(head.headers.has_token("connection", "upgrade"));
        assert_eq!(head.body.remaining(), Some((out.len() - consumed) as u64));
    });
    assert_eq!(HandshakeError::Key.status(), 400);
}

/// The value of `Sec-WebSocket-Extensions` that answers an offer.
fn agreed(offer: &str, deflate: DeflateConfig) -> Option<(String, DeflateParams)> {
    let config = ServerConfig { deflate: Some(deflate), ..ServerConfig::default() };
    let headers = format!("{HEADERS}Sec-WebSocket-Extensions: {offer}\r\n");
    let (response, params) = answer(&headers, &config).unwrap();
    let value = response.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "));
    assert_eq!(value.is_some(), params.is_some());
    Some((value?.to_owned(), params?))
}

const TAKEOVER: DeflateConfig = DeflateConfig {
    server_context_takeover: true,
    client_context_takeover: true,
    server_max_window_bits: 15,
    client_max_window_bits: 15,
};

#[test]
fn compression_is_settled_by_offer_and_config() {
    let cases = [
        ("permessage-deflate", "permessage-deflate"),
        ("permessage-deflate; client_max_window_bits", "permessage-deflate"),
        (
            "permessage-deflate; server_no_context_takeover",
            "permessage-deflate; server_no_context_takeover",
        ),
        (
            "permessage-deflate; client_no_context_takeover; client_max_window_bits=10",
            "permessage-deflate; client_no_context_takeover; client_max_window_bits=10",
        ),
        (
            "permessage-deflate; server_max_window_bits=9",
            "permessage-deflate; server_max_window_bits=9",
        ),
        (
            "permessage-deflate; server_max_window_bits=\"15\"",
            "permessage-deflate; server_max_window_bits=15",
        ),
        ("foo, bar; a=\"x,y\", permessage-deflate", "permessage-deflate"),
        ("Permessage-Deflate", "permessage-deflate"),
    ];
    for (offer, answer) in cases {
        assert_eq!(agreed(offer, TAKEOVER).unwrap().0, answer, "{offer}");
    }
}

#[test]
fn by_default_no_context_is_taken_over() {
    let (value, params) =
        agreed("permessage-deflate; client_max_window_bits", DeflateConfig::default()).unwrap();
    assert_eq!(value, "permessage-deflate; server_no_context_takeover; client_no_context_takeover");
    let direction = Direction { context_takeover: false, window_bits: 15 };
    assert_eq!(params.outgoing(Role::Server), direction);
    assert_eq!(params.incoming(Role::Server), direction);
}

#[test]
fn windows_are_the_smaller_of_both() {
    let small =
        DeflateConfig { server_max_window_bits: 11, client_max_window_bits: 10, ..TAKEOVER };
    let bits = |offer| {
        let (value, params) = agreed(offer, small).unwrap();
        (value, params.server_max_window_bits, params.client_max_window_bits)
    };
    let (value, server, client) = bits("permessage-deflate; client_max_window_bits");
    assert_eq!(value, "permessage-deflate; server_max_window_bits=11; client_max_window_bits=10");
    assert_eq!((server, client), (11, 10));
    // A client that cannot limit its window is not asked to.
    let (value, server, client) = bits("permessage-deflate; server_max_window_bits=12");
    assert_eq!((server, client), (11, 15));
    assert_eq!(value, "permessage-deflate; server_max_window_bits=11");
    let (_, server, client) =
        bits("permessage-deflate; server_max_window_bits=9; client_max_window_bits=8");
    assert_eq!((server, client), (9, 8));
}

#[test]
fn a_window_that_cannot_be_compressed_with_comes_last() {
    let eight = "permessage-deflate; server_max_window_bits=8";
    let (value, params) = agreed(eight, TAKEOVER).unwrap();
    assert_eq!(value, eight);
    assert!(!params.outgoing(Role::Server).can_compress());
    assert!(params.incoming(Role::Server).can_compress());
    let (value, params) = agreed(&format!("{eight}, permessage-deflate"), TAKEOVER).unwrap();
    assert_eq!(value, "permessage-deflate");
    assert!(params.outgoing(Role::Server).can_compress());
}

#[test]
fn an_offer_that_makes_no_sense_is_declined_for_the_next() {
    for bad in [
        "permessage-deflate; unknown",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=09",
        "permessage-deflate; client_max_window_bits=1; client_max_window_bits=9",
        "permessage-bzip2",
        "x-webkit-deflate-frame",
    ] {
        assert_eq!(agreed(bad, TAKEOVER), None, "{bad}");
        let next = format!("{bad}, permessage-deflate");
        assert_eq!(agreed(&next, TAKEOVER).unwrap().0, "permessage-deflate", "{bad}");
    }
    let config = ServerConfig { deflate: Some(TAKEOVER), ..ServerConfig::default() };
    for malformed in
        ["a b", "permessage-deflate; =", ";", "a; b=\"c", "a; b=\"c d\", permessage-deflate; ;"]
    {
        let headers = format!("{HEADERS}Sec-WebSocket-Extensions: {malformed}\r\n");
        let result = answer(&headers, &config);
        // Parameters of extensions we do not know are not looked at.
        assert!(matches!(result, Err(HandshakeError::Extensions) | Ok((_, None))), "{malformed}");
    }
}

/// A client's and a server's config, and what both take from the handshake between them.
fn both_ends(
    client: ClientConfig<'_>,
    server: ServerConfig<'_>,
) -> (Option<DeflateParams>, Option<DeflateParams>) {
    let handshake = ClientHandshake::new([7; 16]);
    let mut asked = Vec::new();
    handshake.encode_request(&mut asked, "/ws", "a:1", &[("X-Test", "1")], &client);
    let (answered, servers) = request(&asked, |head, consumed| {
        assert_eq!((consumed, head.headers.get_str("x-test")), (asked.len(), Some("1")));
        let accepted = handshake::accept(&head, &server).unwrap();
        let mut answered = Vec::new();
        accepted.encode_response(&mut answered, &[]);
        (answered, accepted.deflate())
    });
    response(&answered, Method::Get, |head, _| {
        let connected = handshake.check_response(&head, &client).unwrap();
        assert_eq!(connected.protocol, client.protocols.last().copied());
        (connected.deflate, servers)
    })
}

#[test]
fn both_ends_agree() {
    for server_bits in [9, 12, 15] {
        for client_bits in [9, 12, 15] {
            for takeover in [0, 1, 2, 3] {
                let deflate = DeflateConfig {
                    server_context_takeover: takeover & 1 != 0,
                    client_context_takeover: takeover & 2 != 0,
                    server_max_window_bits: server_bits,
                    client_max_window_bits: client_bits,
                };
                for other in [deflate, TAKEOVER, DeflateConfig::default()] {
                    let client = ClientConfig { protocols: &["v1", "v2"], deflate: Some(deflate) };
                    let server = ServerConfig { protocols: &["v2"], deflate: Some(other) };
                    let (clients, servers) = both_ends(client, server);
                    assert_eq!(clients, servers);
                    assert!(clients.is_some());
                    let client = ClientConfig { deflate: Some(other), ..client };
                    let server = ServerConfig { deflate: Some(deflate), ..server };
                    let (clients, servers) = both_ends(client, server);
                    assert_eq!(clients, servers);
                }
            }
        }
    }
    let without = ClientConfig::default();
    let server = ServerConfig { deflate: Some(TAKEOVER), ..ServerConfig::default() };
    assert_eq!(both_ends(without, server), (None, None));
    let client = ClientConfig { deflate: Some(TAKEOVER), ..without };
    assert_eq!(both_ends(client, ServerConfig::default()), (None, None));
}

#[test]
fn a_client_is_not_fooled() {
    let handshake = ClientHandshake::new(*b"the sample nonce");
    let config = ClientConfig {
        protocols: &["chat"],
        deflate: Some(DeflateConfig { server_max_window_bits: 12, ..DeflateConfig::default() }),
    };
    let good = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    let check = |bytes: String| {
        response(bytes.as_bytes(), Method::Get, |head, _| {
            handshake.check_response(&head, &config).map(|_| ())
        })
    };
    assert_eq!(check(format!("{good}\r\n")), Ok(()));
    let replaced = |from, to| check(format!("{}\r\n", good.replace(from, to)));
    use ClientHandshakeError as E;
    assert_eq!(replaced("101", "200"), Err(E::Status(200)));
    assert_eq!(replaced("Upgrade: websocket\r\n", ""), Err(E::Upgrade));
    assert_eq!(replaced("Connection: Upgrade\r\n", ""), Err(E::Upgrade));
    assert_eq!(replaced("s3pP", "s3pQ"), Err(E::AcceptKey));
    let with = |header: &str| check(format!("{good}{header}\r\n\r\n"));
    assert_eq!(with("Sec-WebSocket-Protocol: chat"), Ok(()));
    assert_eq!(with("Sec-WebSocket-Protocol: other"), Err(E::Protocol));
    let extension = |value: &str| with(&format!("Sec-WebSocket-Extensions: {value}"));
    let agreed = "permessage-deflate; server_no_context_takeover; server_max_window_bits=12";
    assert_eq!(extension(agreed), Ok(()));
    // We asked for no takeover and 12 bits: neither is the server's to leave out.
    assert_eq!(extension("permessage-deflate; server_no_context_takeover"), Err(E::Extensions));
    assert_eq!(extension("permessage-deflate; server_max_window_bits=12"), Err(E::Extensions));
    assert_eq!(extension(&agreed.replace("12", "13")), Err(E::Extensions));
    assert_eq!(extension(&format!("{agreed}, {agreed}")), Err(E::Extensions));
    assert_eq!(extension(&format!("{agreed}; client_max_window_bits")), Err(E::Extensions));
    assert_eq!(extension("permessage-bzip2"), Err(E::Extensions));
}
