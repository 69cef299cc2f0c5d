//! Responses: the outcomes of commands, written as JSON.

use std::sync::Arc;

use dunlin_hub::{
    ChannelSummary, ClientInfo, CursorState, Durability, History, Info, PresenceStats, Published,
};
use dunlin_protocol::centrifuge::{write_cursor, write_epoch, write_presence, write_publications};
use dunlin_protocol::json::Object;

use super::error::{ApiError, ApiErrorCode};
use super::method::Method;
use crate::server_api::connections::{ChannelPage, ConnectionPage};

/// The outcome of a command that was carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum CommandOutcome {
    /// Done, without a result.
    Done,
    /// The number of sessions whose outboxes have the message.
    Sent(u64),
    /// The position of the publication.
    Published(Published),
    /// The outcome of each publication, in the order of the channels.
    Broadcast(Vec<Result<Published, ApiError>>),
    /// Who is in the channel.
    Presence(Vec<Arc<ClientInfo>>),
    /// How many are in the channel.
    PresenceStats(PresenceStats),
    /// Publications from the channel's history.
    History(History),
    /// Where a cursor stands.
    Cursor(CursorState),
    /// Connections.
    Connections(ConnectionPage),
    /// Channels with subscribers.
    Channels(Vec<ChannelSummary>),
    /// A page of channels.
    ChannelPage(ChannelPage),
    /// The counts of sessions, users, channels and subscriptions of this server.
    Info(Info),
    /// The result as JSON: the combined answers of a cluster's nodes.
    Json(Box<[u8]>),
}

/// The outcome of a command, or the error.
pub type CommandResult = Result<CommandOutcome, ApiError>;

/// What `info` reports about this server beside the counts of [`Info`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeFacts<'a> {
    /// Unique for this run of the server.
    pub uid: &'a str,
    /// A display name.
    pub name: &'a str,
    /// The version of the program.
    pub version: &'a str,
    /// Seconds since the start.
    pub uptime_s: u64,
}

/// Bytes that each command of a call has in the response, at least: enough for [`no_room`].
const ANSWER_BYTES_MIN: usize = 80;
/// Bytes that each channel of a broadcast has in the response, at least: enough for its error code.
const PART_BYTES_MIN: usize = 48;
/// Bytes around the answers.
const FRAME_BYTES: usize = 64;

/// Returns how many commands one call may have: as many as a response of `bytes_max` bytes has room for, whatever comes of them.
pub fn commands_max(bytes_max: usize) -> usize {
    bytes_max.saturating_sub(FRAME_BYTES) / ANSWER_BYTES_MIN
}

/// Checks that a call has at most `max` commands.
///
/// # Errors
/// "limit exceeded".
pub(crate) fn check_commands(commands: usize, max: usize) -> Result<(), ApiError> {
    check_count(commands, max, "commands")
}

/// Checks that a response of `bytes_max` bytes has room for the outcome of so many channels of a broadcast.
///
/// # Errors
/// "limit exceeded".
pub fn check_channels(channels: usize, bytes_max: usize) -> Result<(), ApiError> {
    let max = bytes_max.saturating_sub(FRAME_BYTES) / PART_BYTES_MIN;
    check_count(channels, max, "channels")
}

fn check_count(count: usize, max: usize, what: &str) -> Result<(), ApiError> {
    if count <= max {
        return Ok(());
    }
    let why = format_args!(
        "{count} {what} where limits.answer_bytes_max has room for the answers to {max}; send several requests"
    );
    Err(ApiErrorCode::LimitExceeded.with_reason(why))
}

/// Appends one form of an answer.
type Form<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Several answers that share a response.
struct SharedRoom {
    bytes_max: usize,
    /// Answers that are still to be written, and the least that each of them needs.
    left: usize,
    each_bytes: usize,
}

impl SharedRoom {
    fn new(bytes_max: usize, answers: usize, each_bytes: usize) -> SharedRoom {
        SharedRoom { bytes_max: bytes_max.saturating_sub(FRAME_BYTES), left: answers, each_bytes }
    }

    /// Writes the first form of the next answer that leaves enough room for those behind it, otherwise the last form.
    fn write(&mut self, out: &mut Vec<u8>, forms: &[Form<'_>]) {
        self.left = self.left.saturating_sub(1);
        let before = out.len();
        for form in forms {
            out.truncate(before);
            form(out);
            if out.len() + self.left * self.each_bytes <= self.bytes_max {
                return;
            }
        }
    }
}

/// Writes the response to `POST /api/METHOD`. `bytes_max` bounds the response to a broadcast.
pub fn write_response(
    out: &mut Vec<u8>,
    answer: &CommandResult,
    node: &NodeFacts<'_>,
    bytes_max: usize,
) {
    let mut response = Object::begin(out);
    match answer {
        Ok(outcome) => outcome.write(response.key("result"), node, bytes_max),
        Err(error) => error.write(response.key("error")),
    }
    response.end();
}

/// Writes the response to `POST /api/batch`: a reply for each command, in order. The method is `None` for a command
/// without one. A reply, error or not, that would make the response longer than `bytes_max` bytes is replaced by a short error.
pub fn write_batch(
    out: &mut Vec<u8>,
    replies: &[(Option<Method>, CommandResult)],
    node: &NodeFacts<'_>,
    bytes_max: usize,
) {
    let mut response = Object::begin(out);
    let list = response.key("replies");
    list.push(b'[');
    let mut room = SharedRoom::new(bytes_max, replies.len(), ANSWER_BYTES_MIN);
    for (at, (method, answer)) in replies.iter().enumerate() {
        if at > 0 {
            list.push(b',');
        }
        let reply = |out: &mut Vec<u8>| {
            let mut reply = Object::begin(out);
            match (answer, method) {
                (Ok(outcome), Some(method)) => {
                    outcome.write(reply.key(method.name()), node, bytes_max);
                }
                (Ok(_), None) => {}
                (Err(error), _) => error.write(reply.key("error")),
            }
            reply.end();
        };
        let refused = |error: &ApiError, out: &mut Vec<u8>| {
            let mut reply = Object::begin(out);
            error.write(reply.key("error"));
            reply.end();
        };
        room.write(
            list,
            &[&reply, &|out| refused(&too_long(bytes_max), out), &|out| {
                refused(&no_room(answer), out);
            }],
        );
    }
    list.push(b']');
    response.end();
}

/// Returns the error that replaces a reply for lack of space.
pub fn too_long(bytes_max: usize) -> ApiError {
    let why = format_args!("the answer would have more than {bytes_max} bytes; ask for less");
    ApiErrorCode::LimitExceeded.with_reason(why)
}

/// Returns the shortest error that replaces a reply: a failed command keeps its code.
fn no_room(answer: &CommandResult) -> ApiError {
    match answer {
        Ok(_) => ApiErrorCode::LimitExceeded.into(),
        Err(error) => error.without_message(),
    }
}

/// Writes the response to `POST /api`: one line for each command, in order, with its id. `bytes_max` bounds it as in
/// [`write_batch`].
pub fn write_legacy(
    out: &mut Vec<u8>,
    replies: &[(u32, CommandResult)],
    node: &NodeFacts<'_>,
    bytes_max: usize,
) {
    let mut room = SharedRoom::new(bytes_max, replies.len(), ANSWER_BYTES_MIN);
    for (at, (id, answer)) in replies.iter().enumerate() {
        if at > 0 {
            out.push(b'\n');
        }
        let write = |out: &mut Vec<u8>, answer: Result<&CommandOutcome, &ApiError>| {
            let mut reply = Object::begin(out);
            if *id > 0 {
                reply.integer("id", *id);
            }
            match answer {
                Ok(outcome) => outcome.write(reply.key("result"), node, bytes_max),
                Err(error) => error.write(reply.key("error")),
            }
            reply.end();
        };
        room.write(
            out,
            &[
                &|out| write(out, answer.as_ref()),
                &|out| write(out, Err(&too_long(bytes_max))),
                &|out| write(out, Err(&no_room(answer))),
            ],
        );
    }
}

impl CommandOutcome {
    fn write(&self, out: &mut Vec<u8>, node: &NodeFacts<'_>, bytes_max: usize) {
        match self {
            CommandOutcome::Done => out.extend_from_slice(b"{}"),
            CommandOutcome::Sent(clients) => {
                let mut result = Object::begin(out);
                result.integer("num_clients", *clients);
                result.end();
            }
            CommandOutcome::Json(result) => out.extend_from_slice(result),
            CommandOutcome::Published(published) => write_published(out, published),
            CommandOutcome::Broadcast(responses) => {
                let mut result = Object::begin(out);
                let list = result.key("responses");
                list.push(b'[');
                let mut room = SharedRoom::new(bytes_max, responses.len(), PART_BYTES_MIN);
                for (at, response) in responses.iter().enumerate() {
                    if at > 0 {
                        list.push(b',');
                    }
                    let write = |out: &mut Vec<u8>, response: Result<&Published, &ApiError>| {
                        let mut object = Object::begin(out);
                        match response {
                            Ok(published) => write_published(object.key("result"), published),
                            Err(error) => error.write(object.key("error")),
                        }
                        object.end();
                    };
                    // Without room, where a publication is, and why there is none, is left out.
                    let short = |out: &mut Vec<u8>| match response {
                        Ok(_) => write(out, Ok(&Published::default())),
                        Err(error) => write(out, Err(&error.without_message())),
                    };
                    room.write(list, &[&|out| write(out, response.as_ref()), &short]);
                }
                list.push(b']');
                result.end();
            }
            CommandOutcome::Presence(present) => {
                let mut result = Object::begin(out);
                write_presence(result.key("presence"), present);
                result.end();
            }
            CommandOutcome::PresenceStats(stats) => {
                let mut result = Object::begin(out);
                result.integer("num_clients", stats.clients).integer("num_users", stats.users);
                result.end();
            }
            CommandOutcome::History(history) => {
                let mut result = Object::begin(out);
                write_publications(result.key("publications"), &history.publications);
                write_epoch(result.key("epoch"), history.position.epoch);
                result.integer("offset", history.position.offset);
                result.end();
            }
            CommandOutcome::Cursor(state) => write_cursor(out, None, state),
            CommandOutcome::Connections(page) => page.write(out),
            CommandOutcome::Channels(channels) => {
                let mut result = Object::begin(out);
                write_channels(result.key("channels"), channels);
                result.end();
            }
            CommandOutcome::ChannelPage(page) => {
                let mut result = Object::begin(out);
                write_channels(result.key("channels"), &page.channels);
                let of_node = page.node.map_or_else(String::new, |node| format!("{node}:"));
                if let Some(next) = page.next {
                    result.string("cursor", &format!("{of_node}{next}"));
                }
                result.end();
            }
            CommandOutcome::Info(info) => {
                let mut result = Object::begin(out);
                let list = result.key("nodes");
                list.push(b'[');
                let mut object = Object::begin(list);
                object.string("uid", node.uid).string("name", node.name);
                object.string("version", node.version);
                object.integer("num_clients", info.clients).integer("num_users", info.users);
                object.integer("num_channels", info.channels).integer("uptime", node.uptime_s);
                object.integer("num_subs", info.subscriptions);
                object.end();
                list.push(b']');
                result.end();
            }
        }
    }
}

fn write_channels(out: &mut Vec<u8>, channels: &[ChannelSummary]) {
    let mut object = Object::begin(out);
    for channel in channels {
        let mut info = Object::begin(object.text_key(&channel.name));
        info.integer("num_clients", channel.clients);
        info.end();
    }
    object.end();
}

/// Writes offset, epoch, and what it survives if its engine can tell. Omits both for a publication without a position, whose channel keeps no history.
fn write_published(out: &mut Vec<u8>, published: &Published) {
    let position = published.position;
    let mut result = Object::begin(out);
    if position.offset > 0 {
        result.integer("offset", position.offset);
    }
    if !position.epoch.is_none() {
        write_epoch(result.key("epoch"), position.epoch);
    }
    match published.durability {
        Some(Durability::Written) => drop(result.string("durability", "written")),
        Some(Durability::Synced) => drop(result.string("durability", "synced")),
        None => {}
    }
    result.end();
}
