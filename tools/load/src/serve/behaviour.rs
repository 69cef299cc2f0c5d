//! How the test server answers a request: flags for all requests, path segments for one.

use std::fmt::Write as _;
use std::time::Duration;

use crate::url::duration;

/// The longest body that the server generates, bytes.
const BODY_BYTES_MAX: usize = 64 << 20;

/// How a request is answered. Flags say it for every request; a path overrides it for its own.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Behaviour {
    /// Delay before each response; later ones on the same connection wait too
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = duration)]
    pub delay: Duration,
    /// Length of each body
    #[arg(long, value_name = "BYTES", default_value_t = HELLO.len(), value_parser = body_bytes)]
    pub bytes: usize,
    /// Status code of each response
    #[arg(long, value_name = "CODE", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..600))]
    pub status: u16,
    /// Send bodies in chunks of this many bytes, with a trailer
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunked: Option<u32>,
    /// Send one byte per interval of this length
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slow: Option<Duration>,
    /// Send the head at once and the body this long after it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub body_after: Option<Duration>,
    /// Send `Connection: close` with the N-th response of a connection, and close
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub close_after: Option<u64>,
    /// Close after the N-th response of a connection, without `Connection: close`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub drop_after: Option<u64>,
    /// Reset the connection after its N-th response
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub reset_after: Option<u64>,
    /// Reset the connection instead of sending one response in N, at random; half of those requests were already processed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub reset_one_in: Option<u64>,
    /// Break the protocol in this way
    #[arg(long, value_enum, value_name = "FAULT")]
    pub broken: Option<BrokenAnswer>,
    /// Only by path: the whole thread of the server stands still for this long.
    #[arg(skip)]
    pub stall: Duration,
    /// Only by path: the id of the request.
    #[arg(skip)]
    pub id: Option<String>,
    /// Only by path: answer with the body of the request.
    #[arg(skip)]
    pub echo: bool,
    /// Only by path: no length, the body ends with the connection.
    #[arg(skip)]
    pub until_close: bool,
    /// Only by path: a 103 first.
    #[arg(skip)]
    pub interim: bool,
}

/// The body, repeated up to the requested length.
pub(super) const HELLO: &str = "Hello, World!";

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            bytes: HELLO.len(),
            status: 200,
            chunked: None,
            slow: None,
            body_after: None,
            close_after: None,
            drop_after: None,
            reset_after: None,
            reset_one_in: None,
            broken: None,
            stall: Duration::ZERO,
            id: None,
            echo: false,
            until_close: false,
            interim: false,
        }
    }
}

/// How a connection ends after its last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The answer says `Connection: close`.
    Said,
    /// FIN without notice.
    Dropped,
    /// RST.
    Reset,
}

/// Invalid answers: a client must detect each, and must not match an answer to the wrong request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BrokenAnswer {
    /// Half a head, then the end
    TruncatedHead,
    /// A head whose headers never end
    HeaderFlood,
    /// Two `Content-Length` that differ
    TwoLengths,
    /// `Content-Length` and `Transfer-Encoding` in one head
    LengthAndChunked,
    /// A negative `Content-Length`
    NegativeLength,
    /// A `Content-Length` beyond 64 bits
    HugeLength,
    /// A chunk whose size is not a number
    BadChunkSize,
    /// A chunk without its line end
    BadChunkEnd,
    /// The end in the middle of the chunks
    CutChunk,
    /// Two responses to one request
    Unasked,
    /// Not HTTP at all
    NotHttp,
    /// A version that does not exist
    BadVersion,
    /// A status code that does not exist
    BadStatus,
    /// The end in the middle of the body
    CutBody,
    /// A reset in the middle of the body
    ResetBody,
    /// No response; the connection stays open
    Never,
    /// No response; the connection is closed at once
    Nothing,
}

impl Behaviour {
    /// Returns the behaviour for one target: pairs of path segments such as `/delay/50ms/bytes/1000` override `self`.
    ///
    /// # Errors
    /// A sentence that names the segment and its valid values; the server answers 404.
    pub(super) fn of_path(&self, path: &str, query: Option<&str>) -> Result<Self, String> {
        let mut this = self.clone();
        let mut segments = path.split('/').skip(1).peekable();
        while let Some(name) = segments.next() {
            let mut value = |what: &str| {
                segments.next().filter(|value| !value.is_empty()).ok_or_else(|| {
                    format!("/{name} needs {what} behind it, as in /{name}/{}", example(name))
                })
            };
            match name {
                "" | "hello" => {}
                "delay" => this.delay = duration(value("a time")?)?,
                "stall" => this.stall = duration(value("a time")?)?,
                "slow" => this.slow = Some(duration(value("a time for each byte")?)?),
                "body-after" => this.body_after = Some(duration(value("a time")?)?),
                "bytes" => this.bytes = body_bytes(value("a number of bytes")?)?,
                "status" => {
                    let text = value("a status code")?;
                    this.status =
                        number(text).ok().filter(|status| (200..600).contains(status)).ok_or_else(
                            || format!("`{text}` is no final status code; use 200 to 599"),
                        )? as u16;
                }
                "chunked" => {
                    this.chunked = Some(number(value("a number of bytes")?)?.max(1) as u32);
                }
                "close" => this.close_after = Some(1),
                "drop" => this.drop_after = Some(1),
                "reset" => this.reset_after = Some(1),
                "close-after" => this.close_after = Some(number(value("a number")?)?.max(1)),
                "drop-after" => this.drop_after = Some(number(value("a number")?)?.max(1)),
                "reset-after" => this.reset_after = Some(number(value("a number")?)?.max(1)),
                "reset-one-in" => this.reset_one_in = Some(number(value("a number")?)?.max(1)),
                "broken" => {
                    let text = value("a fault")?;
                    this.broken = Some(clap::ValueEnum::from_str(text, false).map_err(|_| {
                        format!("there is no fault `{text}`; there are {}", faults())
                    })?);
                }
                "id" => this.id = Some(value("an id")?.to_owned()),
                "echo" => this.echo = true,
                "until-close" => this.until_close = true,
                "interim" => this.interim = true,
                other => {
                    return Err(format!("there is no behaviour `/{other}`; GET / lists them all"));
                }
            }
        }
        if let Some(id) = query.and_then(|query| {
            query.split('&').find_map(|pair| pair.strip_prefix("id=")).filter(|id| !id.is_empty())
        }) {
            this.id = Some(id.to_owned());
        }
        Ok(this)
    }

    /// Returns whether one prebuilt answer serves every request of this target: it does not depend on the time, the
    /// connection or earlier requests.
    pub(super) fn is_constant(&self) -> bool {
        *self
            == Self {
                bytes: self.bytes,
                status: self.status,
                chunked: self.chunked,
                interim: self.interim,
                close_after: self.close_after,
                drop_after: self.drop_after,
                reset_after: self.reset_after,
                ..Self::default()
            }
    }

    /// Returns how the connection ends after its `number`-th answer, if it does.
    pub(super) fn end(&self, number: u64) -> Option<ConnectionEnd> {
        let reached = |limit: Option<u64>| limit.is_some_and(|limit| number >= limit);
        match () {
            () if reached(self.reset_after) => Some(ConnectionEnd::Reset),
            () if reached(self.drop_after) => Some(ConnectionEnd::Dropped),
            () if reached(self.close_after) => Some(ConnectionEnd::Said),
            () => None,
        }
    }

    /// Returns the number of answers before a connection ends.
    pub(super) fn answers_max(&self) -> u64 {
        let limits = [self.close_after, self.drop_after, self.reset_after];
        limits.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

/// Returns the page of `GET /`: every behaviour with an example.
pub(super) fn listing() -> String {
    let mut text = String::from(
        "dunlin bench serve: a test server. What it does with a request stands in the path, and segments combine:\n\
         /delay/50ms/bytes/1000/close-after/100\n\n",
    );
    let rows = [
        ("/hello", "an answer of 13 bytes"),
        ("/delay/50ms", "answer after this time; those behind it wait too"),
        ("/bytes/1000", "a body of this length"),
        ("/status/503", "this status code"),
        ("/chunked/100", "the body in chunks of this many bytes, with a trailer"),
        ("/slow/1s", "one byte in each span of this length"),
        ("/body-after/1s", "the head at once, the body this much later"),
        ("/interim", "a 103 before the answer"),
        ("/until-close", "no length: the body ends with the connection"),
        ("/echo", "the body of the request"),
        ("/id/ID", "X-Request-Id: ID in the answer, as for that header or ?id= in the request"),
        ("/close, /close-after/100", "Connection: close in the N-th answer of the connection"),
        ("/drop, /drop-after/100", "close behind the N-th answer without a word"),
        ("/reset, /reset-after/100", "reset behind the N-th answer"),
        ("/reset-one-in/1000", "reset instead of one answer in N, by chance"),
        ("/stall/1s", "the whole server stands still for this long"),
        ("/broken/FAULT", "an answer that no server may give; the faults are:"),
    ];
    for (path, what) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {path:<26} {what}");
    }
    for fault in <BrokenAnswer as clap::ValueEnum>::value_variants() {
        if let Some(value) = clap::ValueEnum::to_possible_value(fault) {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "    /broken/{:<18} {help}", value.get_name());
        }
    }
    text
}

fn faults() -> String {
    let names = <BrokenAnswer as clap::ValueEnum>::value_variants().iter();
    let names = names.filter_map(clap::ValueEnum::to_possible_value);
    names.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

fn example(name: &str) -> &'static str {
    match name {
        "status" => "503",
        "broken" => "cut-body",
        "id" => "42",
        "delay" | "stall" | "slow" | "body-after" => "50ms",
        _ => "100",
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is no whole number; write it in digits, as in 100"))
}

fn body_bytes(text: &str) -> Result<usize, String> {
    let bytes = number(text)?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX).ok_or_else(|| {
        format!("{bytes} bytes are too many; a body here has at most {BODY_BYTES_MAX}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_a_path_combine() {
        let flags = Behaviour { close_after: Some(7), ..Behaviour::default() };
        let behaviour = flags.of_path("/delay/50ms/bytes/1000/id/a7", None).unwrap();
        assert_eq!(behaviour.delay, Duration::from_millis(50));
        assert_eq!((behaviour.bytes, behaviour.close_after), (1000, Some(7)));
        assert_eq!(behaviour.id.as_deref(), Some("a7"));
        assert_eq!(flags.of_path("/hello", Some("x=1&id=9")).unwrap().id.as_deref(), Some("9"));
        assert!(flags.of_path("/hello", None).unwrap().is_constant());
        assert!(!behaviour.is_constant());
    }

    #[test]
    fn a_wrong_segment_is_reported_with_what_may_stand_there() {
        let wrong = |path: &str| Behaviour::default().of_path(path, None).unwrap_err();
        assert!(wrong("/delay").contains("/delay/50ms"));
        assert!(wrong("/delay/soon").contains("write 500ms"));
        assert!(wrong("/broken/leg").contains("cut-body"));
        assert!(wrong("/status/42").contains("200 to 599"));
        assert!(wrong("/nonsense").contains("GET / lists"));
        assert!(wrong("/bytes/99999999999").contains("at most"));
    }

    #[test]
    fn the_listing_names_every_fault() {
        let listing = listing();
        for fault in <BrokenAnswer as clap::ValueEnum>::value_variants() {
            let value = clap::ValueEnum::to_possible_value(fault).unwrap();
            let path = format!("/broken/{}", value.get_name());
            assert!(listing.contains(&path), "{path}");
            let behaviour = Behaviour::default().of_path(&path, None).unwrap();
            assert_eq!(behaviour.broken, Some(*fault));
        }
    }
}
