//! The response: publications, the next cursor, and gaps.

use dunlin_hub::{Outgoing, Publication, StreamPosition, tenant};

use super::cursor::Cursor;
use crate::centrifuge::{write_epoch, write_publication_members};
use crate::json::Object;

/// Why publications between the cursor and the response are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The history no longer has all publications after the cursor. The response has those it still has.
    Expired,
    /// The cursor's stream no longer exists, for example after a restart. The response has the history of the new
    /// stream.
    NewStream,
    /// The channel has no history that the client may read: publications between two polls are lost.
    NoHistory,
}

impl Gap {
    /// Returns the reason's name in the response.
    pub const fn text(self) -> &'static str {
        match self {
            Gap::Expired => "expired",
            Gap::NewStream => "new_stream",
            Gap::NoHistory => "no_history",
        }
    }

    /// Returns why the stream at `now` could not continue from `since`.
    pub fn between(since: StreamPosition, now: StreamPosition) -> Gap {
        if now.epoch.is_none() {
            Gap::NoHistory
        } else if since.epoch != now.epoch {
            Gap::NewStream
        } else {
            Gap::Expired
        }
    }
}

/// A channel in the response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseChannel<'a> {
    /// Its name.
    pub channel: &'a str,
    /// The client's position after this response, or what stands for it in the cursor of a client that may not know it.
    pub position: StreamPosition,
    /// The client may not know its position: it is not listed.
    pub is_sealed: bool,
    /// Whether and why publications before it are missing.
    pub gap: Option<Gap>,
}

/// Writes the body of the response. `items` were written by [`write_publication_item`] and, in the
/// [`Poll`](crate::Encoding::Poll) encoding, by the hub's pushes, in order; `channels` are those of the request.
pub fn write_response(out: &mut Vec<u8>, items: &[u8], channels: &[ResponseChannel<'_>]) {
    out.reserve(items.len() + 64 + 96 * channels.len());
    let mut answer = Object::begin(out);
    let list = answer.key("publications");
    list.push(b'[');
    list.extend_from_slice(items.strip_prefix(b",").unwrap_or(items));
    list.push(b']');
    let cursor = Cursor::new(channels.iter().map(|c| (c.channel, c.position)));
    answer.string("cursor", &cursor.to_string());
    if channels.iter().any(|c| c.gap.is_some()) {
        let gaps = answer.key("gap");
        gaps.push(b'[');
        for (channel, gap) in channels.iter().filter_map(|c| Some((c.channel, c.gap?))) {
            if gaps.last() == Some(&b'}') {
                gaps.push(b',');
            }
            let mut object = Object::begin(gaps);
            object.string("channel", channel).string("reason", gap.text());
            object.end();
        }
        gaps.push(b']');
    }
    let mut positions = Object::begin(answer.key("positions"));
    for channel in channels.iter().filter(|channel| !channel.is_sealed) {
        let mut position = Object::begin(positions.text_key(channel.channel));
        position.integer("offset", channel.position.offset);
        write_epoch(position.key("epoch"), channel.position.epoch);
        position.end();
    }
    positions.end();
    answer.end();
}

/// Appends a publication to the items of a response.
pub fn write_publication_item(out: &mut Vec<u8>, channel: &str, publication: &Publication) {
    out.push(b',');
    let mut item = Object::begin(out);
    match publication.channel() {
        Some(of) => item.string("channel", tenant::bare(of)).string("wildcard", channel),
        None => item.string("channel", channel),
    };
    write_publication_members(&mut item, publication);
    item.end();
}

/// Appends a push to the items of a response: a publication or a count of dropped ones. Other
/// pushes are omitted.
pub fn write_item(out: &mut Vec<u8>, outgoing: &Outgoing<'_>) {
    match *outgoing {
        Outgoing::Publication { channel, publication } => {
            write_publication_item(out, channel, publication);
        }
        Outgoing::Missed { channel, count } => {
            out.push(b',');
            let mut item = Object::begin(out);
            item.string("channel", channel).integer("missed", count);
            item.end();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use dunlin_hub::{Epoch, PayloadFormat, PublicationParts};

    use super::*;

    fn publication(offset: u64, data: &str) -> Publication {
        let data = data.as_bytes().into();
        PublicationParts { offset, data, ..PublicationParts::default() }.into()
    }

    fn position(offset: u64, epoch: u64) -> StreamPosition {
        StreamPosition { offset, epoch: Epoch::from_u64(epoch) }
    }

    #[test]
    fn an_answer_with_news_and_a_gap() {
        let mut items = Vec::new();
        write_publication_item(&mut items, "a", &publication(7, r#"{"n":1}"#));
        write_item(
            &mut items,
            &Outgoing::Publication { channel: "b", publication: &publication(2, "\"x\"") },
        );
        write_item(&mut items, &Outgoing::Missed { channel: "b", count: 3 });
        write_item(&mut items, &Outgoing::Message { data: b"1", format: PayloadFormat::Json });
        let channels = [
            ResponseChannel {
                channel: "a",
                position: position(7, 10),
                is_sealed: false,
                gap: None,
            },
            ResponseChannel {
                channel: "b",
                position: position(5, 11),
                is_sealed: false,
                gap: Some(Gap::NewStream),
            },
            ResponseChannel {
                channel: "c",
                position: position(0, 0),
                is_sealed: false,
                gap: Some(Gap::NoHistory),
            },
        ];
        let mut out = Vec::new();
        write_response(&mut out, &items, &channels);
        let cursor =
            Cursor::new([("a", position(7, 10)), ("b", position(5, 11)), ("c", position(0, 0))]);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!(
                concat!(
                    r#"{{"publications":[{{"channel":"a","data":{{"n":1}},"offset":7}},"#,
                    r#"{{"channel":"b","data":"x","offset":2}},{{"channel":"b","missed":3}}],"#,
                    r#""cursor":"{}","gap":[{{"channel":"b","reason":"new_stream"}},{{"channel":"c","reason":"no_history"}}],"#,
                    r#""positions":{{"a":{{"offset":7,"epoch":"A"}},"b":{{"offset":5,"epoch":"B"}},"c":{{"offset":0,"epoch":""}}}}}}"#
                ),
                cursor
            )
        );
    }

    #[test]
    fn position_that_is_sealed_stands_in_the_cursor_alone() {
        let mut out = Vec::new();
        let channels = [
            ResponseChannel { channel: "a", position: position(7, 10), is_sealed: true, gap: None },
            ResponseChannel {
                channel: "b",
                position: position(5, 11),
                is_sealed: false,
                gap: None,
            },
        ];
        write_response(&mut out, b"", &channels);
        let answer: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(answer["positions"], serde_json::json!({"b": {"offset": 5, "epoch": "B"}}));
        let cursor = Cursor::new([("a", position(7, 10)), ("b", position(5, 11))]);
        assert_eq!(answer["cursor"], cursor.to_string());
    }

    #[test]
    fn an_empty_answer_still_has_a_cursor() {
        let mut out = Vec::new();
        let channels = [ResponseChannel {
            channel: "a",
            position: position(0, 10),
            is_sealed: false,
            gap: None,
        }];
        write_response(&mut out, b"", &channels);
        let answer: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(answer["publications"], serde_json::json!([]));
        assert!(answer.get("gap").is_none());
        assert!(Cursor::parse(answer["cursor"].as_str().unwrap(), 1).is_ok());
    }

    #[test]
    fn why_there_is_a_gap() {
        assert_eq!(Gap::between(position(1, 5), position(9, 5)), Gap::Expired);
        assert_eq!(Gap::between(position(1, 5), position(9, 6)), Gap::NewStream);
        assert_eq!(Gap::between(position(1, 5), StreamPosition::default()), Gap::NoHistory);
    }
}
