use std::sync::Arc;

use dunlin_federation::{
    CloseCode, Frame, FrameReader, Handshake, HandshakeError, Hello, Identity, Progress, PublicKey,
};

const EXPORTER: [u8; 32] = [7; 32];

fn identity(name: &str, seed: u8) -> Identity {
    Identity::new(name, &format!("{seed:02x}").repeat(32)).unwrap()
}

type Keys = Vec<(&'static str, Vec<PublicKey>)>;

fn lookup(keys: &Keys, name: &str) -> Option<(Arc<str>, Arc<[PublicKey]>)> {
    let found = keys.iter().find(|(of, _)| *of == name)?;
    Some((found.0.into(), found.1.clone().into()))
}

/// Runs a handshake; what each side ends with, and what each has sent.
struct Outcome {
    dialer: Result<String, HandshakeError>,
    listener: Result<String, HandshakeError>,
    listener_sent: Vec<u8>,
    dialer_sent: Vec<u8>,
}

fn shake(
    (dialer, dialer_keys): (&Identity, &Keys),
    (listener, listener_keys): (&Identity, &Keys),
    peer: &str,
    exporters: ([u8; 32], [u8; 32]),
) -> Outcome {
    let mut up = Vec::new();
    let mut dial = Handshake::dial(dialer, &peer.into(), exporters.0, [1; 32], &mut up);
    let mut listen = Handshake::listen(exporters.1, [2; 32]);
    let mut outcome = Outcome {
        dialer: Err(HandshakeError::OutOfTurn),
        listener: Err(HandshakeError::OutOfTurn),
        listener_sent: Vec::new(),
        dialer_sent: up.clone(),
    };
    for _ in 0..4 {
        let mut down = Vec::new();
        let got = listen.handle_data(listener, &up, &|name| lookup(listener_keys, name), &mut down);
        match got {
            Ok(Progress::Done(name, _)) => outcome.listener = Ok(name.to_string()),
            Ok(Progress::Incomplete) => {}
            Err(error) => {
                error.encode_close(listener.name(), &mut down);
                outcome.listener = Err(error);
            }
        }
        outcome.listener_sent.extend_from_slice(&down);
        up.clear();
        if down.is_empty() {
            break;
        }
        match dial.handle_data(dialer, &down, &|name| lookup(dialer_keys, name), &mut up) {
            Ok(Progress::Done(name, _)) => outcome.dialer = Ok(name.to_string()),
            Ok(Progress::Incomplete) => {}
            Err(error) => {
                error.encode_close(dialer.name(), &mut up);
                outcome.dialer = Err(error);
            }
        }
        outcome.dialer_sent.extend_from_slice(&up);
        if up.is_empty() {
            break;
        }
    }
    outcome
}

#[test]
fn peers_with_each_others_keys_know_each_other() {
    let (a, b) = (identity("a.example", 1), identity("b.example", 2));
    let of_a = vec![("b.example", vec![b.public_key()])];
    let of_b = vec![("a.example", vec![a.public_key()])];
    let done = shake((&a, &of_a), (&b, &of_b), "b.example", (EXPORTER, EXPORTER));
    assert_eq!(done.dialer.unwrap(), "b.example");
    assert_eq!(done.listener.unwrap(), "a.example");
}

#[test]
fn rotation_accepts_either_of_two_keys() {
    let (old, new) = (identity("a.example", 1), identity("a.example", 9));
    let b = identity("b.example", 2);
    let of_a = vec![("b.example", vec![b.public_key()])];
    let of_b = vec![("a.example", vec![old.public_key(), new.public_key()])];
    for a in [old, new] {
        let done = shake((&a, &of_a), (&b, &of_b), "b.example", (EXPORTER, EXPORTER));
        assert!(done.dialer.is_ok() && done.listener.is_ok());
    }
}

#[test]
fn wrong_key_on_either_side_is_refused_and_the_error_names_the_setting() {
    let (a, b) = (identity("a.example", 1), identity("b.example", 2));
    let wrong = identity("x", 3).public_key();
    let (right_a, right_b) = (vec![a.public_key()], vec![b.public_key()]);
    let done = shake(
        (&a, &vec![("b.example", right_b)]),
        (&b, &vec![("a.example", vec![wrong])]),
        "b.example",
        (EXPORTER, EXPORTER),
    );
    let error = done.listener.unwrap_err();
    assert_eq!(error, HandshakeError::WrongKey("a.example".into()));
    assert!(error.to_string().contains(r#"federation.peers."a.example".keys"#), "{error}");
    let done = shake(
        (&a, &vec![("b.example", vec![wrong])]),
        (&b, &vec![("a.example", right_a)]),
        "b.example",
        (EXPORTER, EXPORTER),
    );
    assert_eq!(done.dialer.unwrap_err(), HandshakeError::WrongKey("b.example".into()));
    assert!(matches!(done.listener, Err(HandshakeError::Refused(CloseCode::WrongKey, _))));
}

#[test]
fn signature_of_another_connection_is_worth_nothing() {
    let (a, b) = (identity("a.example", 1), identity("b.example", 2));
    let of_a = vec![("b.example", vec![b.public_key()])];
    let of_b = vec![("a.example", vec![a.public_key()])];
    // Somebody in the middle has two connections, which export different keys.
    let done = shake((&a, &of_a), (&b, &of_b), "b.example", (EXPORTER, [8; 32]));
    assert_eq!(done.dialer.unwrap_err(), HandshakeError::WrongKey("b.example".into()));
    // What the dialer has sent on one connection is replayed on another.
    let recorded = shake((&a, &of_a), (&b, &of_b), "b.example", (EXPORTER, EXPORTER)).dialer_sent;
    let mut listen = Handshake::listen([8; 32], [2; 32]);
    let got = listen.handle_data(&b, &recorded, &|name| lookup(&of_b, name), &mut Vec::new());
    assert_eq!(got.unwrap_err(), HandshakeError::WrongKey("a.example".into()));
    let mut listen = Handshake::listen(EXPORTER, [3; 32]);
    let got = listen.handle_data(&b, &recorded, &|name| lookup(&of_b, name), &mut Vec::new());
    assert!(got.is_err(), "with another nonce of the listener neither");
}

#[test]
fn wrong_name_and_unknown_name_are_refused_with_what_to_change() {
    let (a, b) = (identity("a.example", 1), identity("b.example", 2));
    let of_a = vec![("b.example", vec![b.public_key()]), ("c.example", vec![b.public_key()])];
    let of_b = vec![("a.example", vec![a.public_key()])];
    let done = shake((&a, &of_a), (&b, &of_b), "c.example", (EXPORTER, EXPORTER));
    let error = done.listener.unwrap_err();
    assert_eq!(error, HandshakeError::WrongName("b.example".into(), "c.example".into()));
    let stranger = identity("stranger.example", 5);
    let done = shake((&stranger, &of_a), (&b, &of_b), "b.example", (EXPORTER, EXPORTER));
    assert_eq!(done.listener.unwrap_err(), HandshakeError::NotAPeer("stranger.example".into()));
    let Err(HandshakeError::Refused(CloseCode::NotAPeer, text)) = done.dialer else { panic!() };
    assert!(text.contains("federation.peers"), "{text}");
    assert!(!text.contains("a.example"), "a stranger learns of no other peer: {text}");
    // A server that answers under its own name.
    let itself = shake((&b, &of_b), (&b, &of_b), "b.example", (EXPORTER, EXPORTER));
    assert!(matches!(itself.listener, Err(HandshakeError::NotAPeer(_))));
}

#[test]
fn version_99_is_refused_and_the_older_one_is_to_be_updated() {
    let b = identity("b.example", 2);
    let of_b = vec![("a.example", vec![identity("a.example", 1).public_key()])];
    let (mut hello, mut out) = (Vec::new(), Vec::new());
    let (name, peer) = ("a.example", "b.example");
    Frame::Hello(Hello { version_min: 99, version_max: 99, name, peer, nonce: [1; 32] })
        .encode(&mut hello);
    let mut listen = Handshake::listen(EXPORTER, [2; 32]);
    let error = listen.handle_data(&b, &hello, &|name| lookup(&of_b, name), &mut out).unwrap_err();
    assert_eq!(error, HandshakeError::Version(99, 99));
    assert!(error.to_string().contains("update"));
    error.encode_close(b.name(), &mut out);
    let mut reader = FrameReader::default();
    reader.push(&out);
    let Ok(Some(Frame::Close(close))) = reader.next(1_024) else { panic!() };
    assert_eq!(close.code, CloseCode::Version);
}

#[test]
fn what_is_no_link_at_all_takes_no_memory() {
    let b = identity("b.example", 2);
    for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 4, 1, b'x', 0, 0]] {
        let mut listen = Handshake::listen(EXPORTER, [2; 32]);
        let got = listen.handle_data(&b, junk, &|_| None, &mut Vec::new());
        assert!(matches!(got, Err(HandshakeError::Frame(_))), "{junk:?}");
    }
}
