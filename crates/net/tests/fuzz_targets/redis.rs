//! A conversation with Redis: commands of several kinds, and whatever the server says to them.

use dunlin_net::redis::{Connection, Event, Value};

use super::{Choices, pieces};

/// The first byte chooses the commands, those sent after each event among them, and the pieces in which the rest arrives:
/// what the server says. No cut changes what it means.
pub(super) fn connection(data: &[u8]) {
    let Some((&seed, input)) = data.split_first() else { return };
    let whole = converse(seed, &[input]);
    for way in [1, Choices::new(seed).next(61) + 2] {
        assert_eq!(converse(seed, &pieces(input, way)), whole, "in pieces, way {way}");
    }
}

/// The events of a conversation, and its error if it ends with one.
fn converse(seed: u8, pieces: &[&[u8]]) -> Vec<String> {
    let (mut choices, mut connection) = (Choices::new(seed), Connection::new());
    for _ in 0..choices.next(4) {
        send(&mut connection, &mut choices);
    }
    let (mut events, mut kept) = (Vec::new(), Vec::new());
    for piece in pieces {
        kept.extend_from_slice(piece);
        while !kept.is_empty() {
            let before = connection.outstanding();
            let length = match connection.handle_input(&kept) {
                Ok(None) => break,
                Ok(Some((Event::Skipped, length))) => {
                    kept.drain(..length);
                    continue;
                }
                Ok(Some((event, length))) => {
                    let ended = before - connection.outstanding();
                    match event {
                        Event::Skipped => unreachable!("handled above"),
                        Event::Reply(_) => assert_eq!(ended, 1, "a reply is of one command"),
                        // `Null` stands for a message beyond the limits, too.
                        Event::Push(Value::Push(_) | Value::Null) => assert!(ended <= 1),
                        Event::Push(_) => assert_eq!(ended, 1, "a refusal is of one command"),
                    }
                    events.push(format!("{event:?}"));
                    length
                }
                Err(error) => {
                    events.push(format!("{error:?}"));
                    return events;
                }
            };
            assert!((1..=kept.len()).contains(&length));
            kept.drain(..length);
            if choices.next(3) == 0 {
                send(&mut connection, &mut choices);
            }
        }
    }
    events
}

/// Sends a command of some kind; what leaves is RESP, and one more is outstanding.
fn send(connection: &mut Connection, choices: &mut Choices) {
    let commands: [&[&[u8]]; 6] = [
        &[b"PING"],
        &[b"SUBSCRIBE", b"x"],
        &[b"ssubscribe", b"x", b"y"],
        &[b"UNSUBSCRIBE", b"x", b"y", b"z"],
        &[b"PSUBSCRIBE"],
        &[],
    ];
    let command = commands[choices.next(6) as usize];
    let (before, mut out) = (connection.outstanding(), Vec::new());
    match connection.encode_command(&mut out, command) {
        Ok(()) => {
            let sent = Value::parse(&out).expect("a command is RESP");
            let sent = sent.elements().expect("a command is an array").iter();
            assert!(sent.map(|argument| argument.bytes()).eq(command.iter().copied().map(Some)));
            assert_eq!(connection.outstanding(), before + 1);
        }
        Err(_) => {
            assert!(command.len() < 2 && command != [b"PING"]);
            assert!(out.is_empty() && connection.outstanding() == before);
        }
    }
}
