//! NATS: no cut changes what an operation means, and a message that is written is read as it was.

use dunlin_wire::nats::{Limits, Operation, encode_publish, parse};

const LIMITS: Limits = Limits { line_bytes_max: 200, message_bytes_max: 512 };

/// A client reads what a server says.
pub fn operations(data: &[u8]) {
    let mut at = 0;
    while let Ok(Some((operation, length))) = parse(&data[at..], &LIMITS) {
        assert!(length >= 2 && at + length <= data.len());
        for cut in 0..length {
            assert_eq!(parse(&data[at..at + cut], &LIMITS), Ok(None), "cut at {cut}");
        }
        if let Operation::Message(message) = operation {
            let mut written = Vec::new();
            encode_publish(&mut written, message.subject, message.reply, &[], &[message.payload]);
            // What a client sends differs from what a server does by the name and by the subscription's number.
            let head = [b"MSG ", message.subject, b" 7"].concat();
            let said = [&head[..], &written[4 + message.subject.len()..]].concat();
            let (again, _) = parse(&said, &Limits::default()).expect("well formed").expect("whole");
            let Operation::Message(again) = again else { panic!("a message") };
            assert_eq!((again.subject, again.reply), (message.subject, message.reply));
            assert_eq!((again.payload, again.sid), (message.payload, 7));
            let _ = (message.headers.status(), message.headers.get("Nats-Sequence"));
        }
        at += length;
    }
}
