//! Metrics with labels: which limit, which code, which method.
//!
//! A thread counts into its own [`LabelledCounters`]; they are added up when they are read. Values of labels are what codes,
//! methods and limits are called where they are declared, so that a new one needs no line here.

use dunlin_metrics::labelled_metrics;
use dunlin_protocol::centrifuge::{DisconnectCode, ErrorCode, UnsubscribeCode};

labelled_metrics! {
    /// What one thread has counted by labels: written by that thread alone, read by anyone.
    LabelledCounters;
    connections_refused: ConnectionRefused { reason: &'static str }, Counter,
        "connections_refused_total", "Connections refused, by the limit that was reached.";
    connections_closed: ConnectionClosed { reason: &'static str }, Counter,
        "connections_closed_total", "Connections closed, by the reason.";
    connects: ClientConnect { transport: &'static str }, Histogram,
        "client_connect_duration_seconds", "From a client's connect command to its answer, decisions of backends and programs included.";
    disconnects: ClientDisconnect { code: u32, reason: &'static str, transport: &'static str }, Counter,
        "client_disconnects_total", "Clients disconnected by the server, by the code that they got and its standard text.";
    unsubscribes: ClientUnsubscribe { code: u32, reason: &'static str }, Counter,
        "client_unsubscribes_total", "Subscriptions ended by the server, by the code that the client got and its standard text.";
    commands: ClientCommand { method: &'static str, transport: &'static str }, Counter,
        "client_commands_total", "Commands of clients.";
    command_errors: ClientCommandError { method: &'static str, code: u32, reason: &'static str }, Counter,
        "client_command_errors_total", "Commands of clients answered with an error, by its code and standard text.";
    http_errors: HttpError { status: u32 }, Counter,
        "http_request_errors_total", "HTTP requests answered with a 4xx or 5xx status, malformed ones included.";
    api_commands: ApiCommand { api: &'static str, method: &'static str, result: u32 }, Counter,
        "api_commands_total", "Commands of the server API, of Pusher's and of pushes, each command of a batch counted; result 0 is success, any other is the code of the error, or of Pusher's the status.";
    api_calls: ApiCall { api: &'static str, method: &'static str }, Histogram,
        "api_call_duration_seconds", "From a call of an API to its answer.";
    admin_requests: AdminRequest { endpoint: &'static str, status: u32 }, Counter,
        "admin_requests_total", "Requests to the admin port, by the first part of their path.";
    admin_durations: AdminDuration { endpoint: &'static str }, Histogram,
        "admin_request_duration_seconds", "From a request to the admin port to its answer.";
}

/// What a code that an application has chosen is called.
const APPLICATION: &str = "application";

impl ClientDisconnect {
    pub(crate) fn of(code: u32, transport: &'static str) -> ClientDisconnect {
        let known = u16::try_from(code).ok().and_then(DisconnectCode::from_code);
        let reason = known.map_or(APPLICATION, DisconnectCode::text);
        ClientDisconnect { code, reason, transport }
    }
}

impl ClientUnsubscribe {
    pub(crate) fn of(code: u32) -> ClientUnsubscribe {
        let reason = UnsubscribeCode::from_code(code).map_or(APPLICATION, UnsubscribeCode::text);
        ClientUnsubscribe { code, reason }
    }
}

impl ClientCommandError {
    pub(crate) fn of(method: &'static str, code: u32) -> ClientCommandError {
        let reason = ErrorCode::from_code(code).map_or(APPLICATION, ErrorCode::text);
        ClientCommandError { method, code, reason }
    }
}
