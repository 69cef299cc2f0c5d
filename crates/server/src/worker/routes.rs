//! Maps the path of a request to its handler.

use dunlin_config::Serves;
use dunlin_net::{ConnId, Context, http};
use dunlin_protocol::stream::StreamTransport;

use super::Worker;
use super::clients::Clients;
use super::link::Link;
use super::reply::{ANYBODY, PlainResponse};
use super::sessions::Sessions;
use super::turn::{Core, Turn};
use crate::request::origin::Admitted;
use crate::request::{local_host, origin, page};

/// The most bytes of an emulation request beside its commands.
const EMULATION_BYTES: usize = 4096;
const CONNECTION_PATHS: &str = "/connection/websocket, /connection/sse, /connection/http_stream, \
    /connection/uni_websocket, /connection/uni_sse, /connection/uni_http_stream, /connection/poll, /emulation, \
    /app/{key}, /apps/{id}/{call}, /api/{method}";
const EMULATION: &str = "/emulation";
/// The API that Pusher's server libraries call.
const PUSHER_API: &str = "/apps/";
/// Headers that a page may send if its preflight names none that can be repeated.
const ALLOWED_HEADERS: &str = "Authorization, Content-Type, X-Requested-With";
/// The longest list of headers that a preflight may ask for, in bytes.
const ASKED_BYTES_MAX: usize = 1_024;
const SERVED_ELSEWHERE: &str = "this address does not serve that: see `serves` of its listener";

impl Worker<'_> {
    /// How much is taken of a body of which not all is here; `None`: the request is answered already.
    pub(super) fn takes_body(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<u64> {
        if let Some(refusal) = self.refuse_by_head(cx, conn, head) {
            self.core.turn(cx).answer(conn, &refusal);
            return None;
        }
        let turn = &mut self.core.turn(cx);
        if head.path == "/api" || head.path.starts_with("/api/") {
            return self.api.takes_api_body(turn, conn, head);
        }
        if head.path.starts_with(PUSHER_API) {
            return self.api.takes_pusher_body(turn, conn, head);
        }
        // What is sent without a key has commands of a client, as a WebSocket's message has.
        Some((self.core.settings.config.limits.message_bytes_max + EMULATION_BYTES) as u64)
    }

    /// Whether the address that a connection came through does not serve a path.
    fn is_served_elsewhere(&self, cx: &Context<Link>, conn: ConnId, path: &str) -> bool {
        let is_api = path == "/api" || path.starts_with("/api/") || path.starts_with(PUSHER_API);
        match cx.local_addr(conn).map(|local| self.core.settings.serves(local)) {
            Some(Serves::Clients) => is_api,
            Some(Serves::Api) => !is_api,
            Some(Serves::All) => false,
            // It has gone.
            None => true,
        }
    }

    /// The answer to a request that its head alone refuses, whatever its path serves.
    fn refuse_by_head(
        &self,
        cx: &Context<Link>,
        conn: ConnId,
        head: &http::RequestHead<'_>,
    ) -> Option<PlainResponse<'static>> {
        // Clients that have not been asked to leave yet go on, on every transport.
        if self.drain.is_some() && head.path != EMULATION {
            // A caller that does not know would have to call with an idempotency key, or twice.
            let answer = PlainResponse::error(
                503,
                "the server is going down, and nothing was stored or changed; connect to another, or again in a moment",
            );
            return Some(answer.header("Retry-After", "1"));
        }
        // Where no key is asked for, only being on this machine lets in, and any name may have been led here. The
        // answer gives the page no permission to read it.
        if self.core.settings.config.api.without_key && !local_host::is_local(head.host) {
            let why = "in development mode this server is called by its address or as localhost, by no other name";
            return Some(PlainResponse::error(403, why));
        }
        // What would tell a key that is right from one that is wrong is served where keys are.
        if self.core.settings.serves_apart && self.is_served_elsewhere(cx, conn, head.path) {
            return Some(PlainResponse::error(404, SERVED_ELSEWHERE));
        }
        let is_of_clients = head.path == EMULATION || head.path.starts_with("/connection/");
        (is_of_clients && !self.core.is_same_or_allowed_origin(head)).then(origin_refused)
    }

    /// Serves a request, or answers with an error.
    pub(super) fn route(
        &mut self,
        cx: &mut Context<Link>,
        conn: ConnId,
        request: &http::Request<'_>,
    ) {
        if let Some(refusal) = self.refuse_by_head(cx, conn, request) {
            return self.core.turn(cx).answer(conn, &refusal);
        }
        let turn = &mut self.core.turn(cx);
        let path = request.path;
        if let Some(method) =
            path.strip_prefix("/api").filter(|rest| rest.is_empty() || rest.starts_with('/'))
        {
            let method = method.trim_start_matches('/');
            if self.api.api(turn, &mut self.clients, conn, method, request) {
                self.push.push_api(turn, conn, method, request);
            }
            return;
        }
        if let Some(key) = path.strip_prefix("/app/") {
            return self.clients.open_pusher(turn, conn, key, request);
        }
        if path.starts_with(PUSHER_API) {
            return self.api.pusher_api(turn, &mut self.clients, conn, request);
        }
        let stream = match path {
            "/connection/websocket" => {
                return self.clients.open_websocket(turn, conn, request, false);
            }
            "/connection/uni_websocket" => {
                return self.clients.open_websocket(turn, conn, request, true);
            }
            "/connection/sse" => StreamTransport::Sse,
            "/connection/http_stream" => StreamTransport::HttpStream,
            "/connection/uni_sse" => StreamTransport::UniSse,
            "/connection/uni_http_stream" => StreamTransport::UniHttpStream,
            "/connection/poll" => return self.clients.open_poll(turn, conn, request),
            EMULATION => return self.clients.emulation(turn, conn, request),
            _ => return self.clients.serve_page(turn, conn, request),
        };
        self.clients.open_stream(turn, conn, request, stream);
    }
}

impl Clients {
    fn open_poll(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, request: &http::Request<'_>) {
        if let Some(answer) = preflight(request, "GET, OPTIONS") {
            return turn.answer_to(conn, turn.core.reader_of(request), answer);
        }
        if request.method != http::Method::Get {
            return turn.answer(conn, &method_refused("GET, OPTIONS"));
        }
        let credentials = request.headers.get_str("Authorization").and_then(bearer);
        let reader = turn.core.reader_of(request);
        self.poll(turn, conn, request.query.unwrap_or(""), credentials, reader);
    }

    fn serve_page(&mut self, turn: &mut Turn<'_, '_>, conn: ConnId, request: &http::Request<'_>) {
        if self.deciders.program.is_some()
            && (self.open_protocol(turn, conn, request)
                || self.deciders.serve_route(turn, conn, request))
        {
            return;
        }
        if self.open_program_websocket(turn, conn, request) {
            return;
        }
        let config = &turn.core.settings.config;
        if let Some(asset) = config.client.demo_page.then(|| page::asset(request.path)).flatten() {
            if !matches!(request.method, http::Method::Get | http::Method::Head) {
                return turn.answer(conn, &method_refused("GET, HEAD"));
            }
            let answer = PlainResponse {
                status: 200,
                content_type: asset.content_type,
                headers: vec![("Cache-Control", "no-cache"), ("X-Content-Type-Options", "nosniff")],
                body: asset.body,
            };
            return turn.answer(conn, &answer);
        }
        let why = if request.path == "/" {
            format!("the demo page is off (client.demo_page); the paths are {CONNECTION_PATHS}")
        } else {
            format!("{} is not here; the paths are {CONNECTION_PATHS}", request.path)
        };
        turn.answer(conn, &PlainResponse::error(404, why));
    }
}

impl Core<'_> {
    /// Whether the page a request comes from, if it comes from one, may connect, and why.
    fn admitted(&self, request: &http::RequestHead<'_>) -> Option<Admitted> {
        let patterns = &self.settings.config.client.allowed_origins;
        origin::admitted(patterns, origin_of(request), request.host)
    }

    /// Whether the page a request comes from, if it comes from one, may connect.
    pub(super) fn is_same_or_allowed_origin(&self, request: &http::RequestHead<'_>) -> bool {
        self.admitted(request).is_some()
    }

    /// Returns the origin whose pages may read the response: that of the page, or [`ANYBODY`].
    pub(super) fn reader_of<'a>(&self, request: &http::RequestHead<'a>) -> Option<&'a str> {
        match self.admitted(request)? {
            Admitted::NoPage => None,
            Admitted::Named => origin_of(request),
            Admitted::Anybody => Some(ANYBODY),
        }
    }
}

impl Sessions {
    /// Keeps the headers of a request that backends and the program get. The cookies of a visitor are not passed on for a
    /// page that only `*` or `null` admits: it may be any page, and would act in its visitor's name.
    pub(super) fn keep_headers(
        &mut self,
        core: &mut Core<'_>,
        conn: ConnId,
        request: &http::RequestHead<'_>,
    ) {
        let is_anybody = core.admitted(request) == Some(Admitted::Anybody);
        let passes = |name: &str| !(is_anybody && name.eq_ignore_ascii_case("Cookie"));
        self.forwarded.keep_headers(conn, request.headers, passes);
    }
}

/// The `Origin` header; one that is not text names no page of ours.
pub(super) fn origin_of<'a>(request: &http::RequestHead<'a>) -> Option<&'a str> {
    request.headers.get("Origin").map(|value| std::str::from_utf8(value).unwrap_or("null"))
}

pub(super) fn origin_refused() -> PlainResponse<'static> {
    PlainResponse::error(
        403,
        "this page's origin may not connect; add it to client.allowed_origins",
    )
}

pub(super) fn method_refused(allow: &'static str) -> PlainResponse<'static> {
    PlainResponse::error(405, format_args!("use one of {allow}")).header("Allow", allow)
}

/// The answer to a browser that asks before it sends (Fetch standard, CORS preflight). The page may send the headers that it
/// asks for: no permission depends on whether a header is there.
pub(super) fn preflight<'a>(
    request: &http::Request<'a>,
    methods: &'static str,
) -> Option<PlainResponse<'a>> {
    let asked = request.headers.get_str("Access-Control-Request-Headers");
    (request.method == http::Method::Options).then(|| {
        PlainResponse::empty(204)
            .header("Access-Control-Allow-Methods", methods)
            .header(
                "Access-Control-Allow-Headers",
                asked.filter(|asked| is_list_of_names(asked)).unwrap_or(ALLOWED_HEADERS),
            )
            .header("Access-Control-Max-Age", "300")
    })
}

/// Whether this is a list of header names (RFC 9110 §5.6.1), none of them empty, and short.
fn is_list_of_names(list: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = |name: &str| {
        let name = name.trim_matches([' ', '\t']);
        !name.is_empty() && name.bytes().all(is_token)
    };
    list.len() <= ASKED_BYTES_MAX && list.split(',').all(is_name)
}

/// Returns the token of `Authorization: Bearer …`.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
