//! Server-sent events (WHATWG HTML §9.2): `text/event-stream`.
//!
//! ```
//! use dunlin_wire::sse::{Decoder, Event};
//!
//! let mut out = Vec::new();
//! Event { id: Some("7"), data: Some(b"one\ntwo"), ..Event::default() }.encode(&mut out);
//! assert_eq!(out, b"id: 7\ndata: one\ndata: two\n\n");
//!
//! let mut decoder = Decoder::new(1024);
//! let (consumed, event) = decoder.decode(&out)?;
//! let event = event.expect("the event is complete");
//! assert_eq!((event.id, event.event, event.data), ("7", "message", "one\ntwo"));
//! assert_eq!(consumed, out.len());
//! # Ok::<(), dunlin_wire::sse::EventTooLong>(())
//! ```

mod decoder;
mod event;

pub use decoder::{Decoder, EventTooLong, ReceivedEvent};
pub use event::{CONTENT_TYPE, Event, encode_comment};
