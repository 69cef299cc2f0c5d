//! The client's connection against the server of the `h2` crate: two readings of RFC 9113 that agree.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;

use bytes::Bytes;
use dunlin_wire::http2::client::{Config, Connection, Event};
use dunlin_wire::http2::hpack::Indexing;
use h2::Reason;
use http::{Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// How the server answers: by the number of the request, counted from 0.
type Decide = fn(usize) -> ServerReply;

enum ServerReply {
    Status(u16, &'static str),
    Reset(Reason),
}

struct Settings {
    streams: u32,
    stream_window: u32,
    connection_window: u32,
    frame_bytes: u32,
}

/// A server that reads each request whole, gives the windows back and answers; returns the bodies by path.
async fn serve(io: DuplexStream, settings: Settings, decide: Decide) -> HashMap<String, usize> {
    let mut connection = h2::server::Builder::new()
        .max_concurrent_streams(settings.streams)
        .initial_window_size(settings.stream_window)
        .initial_connection_window_size(settings.connection_window)
        .max_frame_size(settings.frame_bytes)
        .handshake::<_, Bytes>(io)
        .await
        .unwrap();
    let (done, mut bodies) = tokio::sync::mpsc::unbounded_channel();
    let mut number = 0;
    while let Some(request) = connection.accept().await {
        let Ok((request, mut respond)) = request else { break };
        let answer = decide(number);
        number += 1;
        let done = done.clone();
        tokio::spawn(async move {
            assert_eq!(request.headers()["apns-topic"], "com.example.dunlin");
            let path = request.uri().path().to_owned();
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(data) = body.data().await {
                let Ok(data) = data else { return };
                assert!(data.iter().all(|byte| *byte == b'x'));
                bytes += data.len();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            done.send((path, bytes)).unwrap();
            match answer {
                ServerReply::Status(status, text) => {
                    let response = Response::builder()
                        .status(StatusCode::from_u16(status).unwrap())
                        .header("apns-id", "D0B2-1")
                        .body(())
                        .unwrap();
                    let mut send = respond.send_response(response, text.is_empty()).unwrap();
                    if !text.is_empty() {
                        send.send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
                    }
                }
                ServerReply::Reset(reason) => respond.send_reset(reason),
            }
        });
    }
    drop(done);
    let mut received = HashMap::new();
    while let Some((path, bytes)) = bodies.recv().await {
        assert_eq!(received.insert(path, bytes), None, "each request once");
    }
    received
}

/// Sends a request for each size and returns how each ended, in the same order.
async fn send(mut io: DuplexStream, sizes: &[usize]) -> Vec<Event> {
    let mut client = Connection::new(Config { streams_before_settings: 1, ..Config::default() });
    let mut streams = HashMap::new();
    let mut ends: Vec<Option<Event>> = sizes.iter().map(|_| None).collect();
    let mut next = 0;
    let mut buffer = vec![0; 64 << 10];
    while ends.iter().any(Option::is_none) {
        while next < sizes.len() && client.capacity().streams > 0 {
            let path = format!("/3/device/{next}");
            let stream = client.open(vec![b'x'; sizes[next]], |field| {
                field(b":method", b"POST", Indexing::Table);
                field(b":scheme", b"https", Indexing::Table);
                field(b":authority", b"push.example.com", Indexing::Table);
                field(b":path", path.as_bytes(), Indexing::None);
                field(b"apns-topic", b"com.example.dunlin", Indexing::Table);
            });
            streams.insert(stream.unwrap(), next);
            next += 1;
        }
        let bytes = client.transmit().len();
        io.write_all(client.transmit()).await.unwrap();
        client.handle_transmitted(bytes);
        let read = io.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the server ended the connection");
        client.handle_bytes(&buffer[..read]).unwrap();
        while let Some(event) = client.poll_event() {
            let (Event::Response { stream, .. }
            | Event::Refused { stream }
            | Event::Reset { stream, .. }) = &event
            else {
                continue;
            };
            let index = streams.remove(stream).unwrap();
            ends[index] = Some(event);
        }
    }
    client.close();
    io.write_all(client.transmit()).await.unwrap();
    ends.into_iter().flatten().collect()
}

async fn talk(settings: Settings, sizes: &[usize], decide: Decide) -> Vec<Event> {
    let (near, far) = tokio::io::duplex(10_000);
    let server = tokio::spawn(serve(far, settings, decide));
    let ends = send(near, sizes).await;
    let received = server.await.unwrap();
    assert_eq!(received.len(), sizes.len());
    for (index, bytes) in sizes.iter().enumerate() {
        assert_eq!(received[&format!("/3/device/{index}")], *bytes);
    }
    ends
}

#[tokio::test]
async fn bodies_of_every_size_pass_through_small_windows() {
    let sizes: Vec<usize> =
        (0..200).map(|index| index * index * 7 % 5_000).chain([150_000]).collect();
    for (streams, stream_window, connection_window, frame_bytes) in
        [(1, 65_535, 65_535, 16_384), (100, 100, 65_535, 16_384), (7, 4_000, 1 << 20, 1 << 20)]
    {
        let settings = Settings { streams, stream_window, connection_window, frame_bytes };
        let ends = talk(settings, &sizes, |_| ServerReply::Status(200, "")).await;
        for end in ends {
            let Event::Response { response, .. } = end else { panic!("{end:?}") };
            assert_eq!((response.status, response.fields.get("apns-id")), (200, Some("D0B2-1")));
        }
    }
}

#[tokio::test]
async fn answers_and_resets_are_reported_apart() {
    let settings = Settings {
        streams: 10,
        stream_window: 65_535,
        connection_window: 65_535,
        frame_bytes: 16_384,
    };
    let ends = talk(settings, &[100; 300], |number| match number % 4 {
        0 => ServerReply::Status(200, ""),
        1 => ServerReply::Status(410, "{\"reason\":\"Unregistered\",\"timestamp\":1}"),
        2 => ServerReply::Reset(Reason::REFUSED_STREAM),
        _ => ServerReply::Reset(Reason::INTERNAL_ERROR),
    })
    .await;
    let count = |test: &dyn Fn(&Event) -> bool| ends.iter().filter(|end| test(end)).count();
    assert_eq!(count(&|end| matches!(end, Event::Refused { .. })), 75);
    assert_eq!(count(&|end| matches!(end, Event::Reset { .. })), 75);
    let status = |status| {
        count(&|end| matches!(end, Event::Response { response, .. } if response.status == status))
    };
    assert_eq!((status(200), status(410)), (75, 75));
}
