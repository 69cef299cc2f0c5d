//! Pages of other sites: what a browser lets them read and send, and whose cookies count.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Mutex;

use serde_json::json;

use super::Cluster;
use super::proxies::{backend, ok, proxy};

const NAMED: &str = "https://app.example.com";
const EVIL: &str = "https://evil.example";

fn admitting(origins: &[&str]) -> Cluster {
    let origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
    Cluster::start_with(1, |config| config.client.allowed_origins = origins)
}

/// Returns the value of a header of a response.
fn header<'a>(answer: &'a str, wanted: &str) -> Option<&'a str> {
    let (head, _) = answer.split_once("\r\n\r\n")?;
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then_some(value))
}

fn from(cluster: &Cluster, line: &str, origin: &str, more: &str) -> String {
    cluster.exchange(line, &format!("Host: 127.0.0.1\r\nOrigin: {origin}\r\n{more}"), "")
}

#[test]
fn a_response_with_credentials_is_for_pages_that_are_named_and_never_for_null() {
    let poll = "GET /connection/poll?channel=news&timeout=0";
    let preflight = "OPTIONS /emulation";
    let sse = "GET /connection/uni_sse?cf_connect=%7B%22token%22%3A%22x%22%7D";
    for origins in [&["*", NAMED][..], &["*"], &["null", NAMED]] {
        let cluster = admitting(origins);
        for line in [poll, preflight, sse] {
            for origin in [EVIL, "null", NAMED] {
                let answer = from(&cluster, line, origin, "");
                let allowed = header(&answer, "Access-Control-Allow-Origin");
                let credentials = header(&answer, "Access-Control-Allow-Credentials");
                let case = format!("{origins:?} {line} {origin}: {answer}");
                if origin == NAMED && origins.contains(&NAMED) {
                    assert_eq!((allowed, credentials), (Some(NAMED), Some("true")), "{case}");
                } else if origins.contains(&"*") || origins.contains(&origin) {
                    assert_eq!((allowed, credentials), (Some("*"), None), "{case}");
                } else {
                    assert!(answer.starts_with("HTTP/1.1 403 ") && allowed.is_none(), "{case}");
                }
            }
        }
    }
    // Its own page is known by its host.
    let own = from(&admitting(&["*"]), poll, "http://127.0.0.1", "");
    assert_eq!(header(&own, "Access-Control-Allow-Origin"), Some("http://127.0.0.1"));
    assert_eq!(header(&own, "Access-Control-Allow-Credentials"), Some("true"));
}

#[test]
fn a_preflight_permits_the_headers_that_an_allowed_page_asks_for() {
    let cluster = admitting(&[NAMED]);
    let allowed = |line: &str, origin: &str, asked: &str| {
        let asked = format!("Access-Control-Request-Headers: {asked}\r\n");
        let answer = from(&cluster, line, origin, &asked);
        header(&answer, "Access-Control-Allow-Headers").map(str::to_owned)
    };
    let paths =
        ["/connection/poll", "/connection/sse", "/connection/uni_http_stream", "/emulation"];
    for path in paths {
        for asked in
            ["last-event-id", "traceparent,tracestate,baggage", "content-type, x-requested-with"]
        {
            let line = format!("OPTIONS {path}");
            assert_eq!(allowed(&line, NAMED, asked).as_deref(), Some(asked), "{path}");
            assert_eq!(allowed(&line, EVIL, asked), None, "{path}");
        }
    }
    let fixed = "Authorization, Content-Type, X-Requested-With";
    let long = vec!["x-a"; 300].join(",");
    for bad in ["", "a b", "x: y", "traceparent,,baggage", "\u{e4}", "a;b", &long] {
        assert_eq!(allowed("OPTIONS /emulation", NAMED, bad).as_deref(), Some(fixed), "{bad}");
    }
}

#[test]
fn a_visitors_cookies_do_not_reach_backends_for_a_page_that_only_a_star_admits() {
    static SEEN: Mutex<Vec<Option<String>>> = Mutex::new(Vec::new());
    let address = backend(|asked| {
        SEEN.lock().unwrap().push(asked.headers.get("cookie").cloned());
        ok(&json!({"result": {"user": "ada"}}))
    });
    let cluster = Cluster::start_with(1, |config| {
        let mut connect = proxy(address, "/connect");
        connect.http_headers = ["Cookie".to_owned()].into();
        config.proxies.insert("connect", connect);
        config.client.anonymous = false;
        config.client.proxy.connect = Some("connect".into());
        config.client.allowed_origins = ["*".to_owned(), NAMED.to_owned()].into();
    });
    let sse = "GET /connection/uni_sse?cf_connect=%7B%7D";
    let mut wanted = Vec::new();
    for (origin, passed) in [
        (Some(EVIL), false),
        (Some("null"), false),
        (Some(NAMED), true),
        (Some("http://127.0.0.1"), true),
        (None, true),
    ] {
        let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
        let headers = format!("Host: 127.0.0.1\r\nCookie: session=1\r\n{origin}");
        let mut stream = TcpStream::connect(cluster.address).unwrap();
        write!(stream, "{sse} HTTP/1.1\r\n{headers}\r\n").unwrap();
        wanted.push(passed.then(|| "session=1".to_owned()));
        let deadline = std::time::Instant::now() + super::TIMEOUT;
        while SEEN.lock().unwrap().len() < wanted.len() {
            assert!(std::time::Instant::now() < deadline, "{headers}");
            std::thread::yield_now();
        }
    }
    assert_eq!(*SEEN.lock().unwrap(), wanted);
}
