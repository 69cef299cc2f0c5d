//! Pushes: messages that the server sends unasked, in JSON.
//!
//! On bidirectional transports a push is a reply without an id, `{"push":{…}}`; on unidirectional
//! ones it is a message by itself.

use dunlin_hub::Outgoing;
use dunlin_hub::tenant::bare;

use super::reply::{
    ConnectResult, write_client_info, write_epoch, write_publication_as_text,
    write_publication_members,
};
use crate::json::{Object, write_string};
use crate::payload::write_data;

/// Writes a push without the enclosing reply. Writes nothing for a push that this protocol does not
/// support.
pub fn write_push(out: &mut Vec<u8>, outgoing: &Outgoing<'_>) {
    match *outgoing {
        // Written without [`Object`] for speed, because this runs for every publication: three
        // copies and two numbers.
        Outgoing::Publication { channel, publication } => {
            out.reserve(publication.data().len() + channel.len() + 64);
            out.extend_from_slice(b"{\"channel\":");
            write_string(out, channel);
            out.extend_from_slice(b",\"pub\":");
            let mut object = Object::begin(out);
            write_publication_members(&mut object, publication);
            if let Some(of) = publication.channel() {
                object.string("channel", bare(of));
            }
            object.end();
            out.push(b'}');
        }
        Outgoing::Delta { channel, publication, patch } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut object = Object::begin(push.key("pub"));
            write_publication_as_text(&mut object, publication, patch);
            object.end();
            push.end();
        }
        Outgoing::Join { channel, info, .. } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut join = Object::begin(push.key("join"));
            write_client_info(join.key("info"), info);
            join.end();
            push.end();
        }
        Outgoing::Leave { channel, info, .. } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut leave = Object::begin(push.key("leave"));
            write_client_info(leave.key("info"), info);
            leave.end();
            push.end();
        }
        Outgoing::Unsubscribe { channel, code, reason } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut unsubscribe = Object::begin(push.key("unsubscribe"));
            unsubscribe.integer("code", code).string("reason", reason);
            unsubscribe.end();
            push.end();
        }
        Outgoing::Subscribe { channel, position, recoverable, positioned, data } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut subscribe = Object::begin(push.key("subscribe"));
            subscribe.flag("recoverable", recoverable);
            if recoverable || positioned {
                write_epoch(subscribe.key("epoch"), position.epoch);
                subscribe.integer("offset", position.offset);
            }
            subscribe.flag("positioned", positioned || recoverable);
            if let Some(data) = data {
                subscribe.raw("data", data);
            }
            subscribe.end();
            push.end();
        }
        // Not part of the protocol: client libraries skip unknown pushes.
        Outgoing::Missed { channel, count } => {
            let mut push = Object::begin(out);
            push.string("channel", channel);
            let mut missed = Object::begin(push.key("missed"));
            missed.integer("count", count);
            missed.end();
            push.end();
        }
        Outgoing::Disconnect { code, reason, reconnect } => {
            let mut push = Object::begin(out);
            let mut disconnect = Object::begin(push.key("disconnect"));
            disconnect.integer("code", code).string("reason", reason);
            disconnect.flag("reconnect", reconnect);
            disconnect.end();
            push.end();
        }
        Outgoing::Message { data, format } => {
            let mut push = Object::begin(out);
            let mut message = Object::begin(push.key("message"));
            write_data(&mut message, data, format);
            message.end();
            push.end();
        }
        _ => {}
    }
}

/// Writes the `connect` push that opens a unidirectional connection.
pub fn write_connect_push(out: &mut Vec<u8>, result: &ConnectResult<'_>) {
    let mut push = Object::begin(out);
    result.write(push.key("connect"));
    push.end();
}

/// Writes the `refresh` push: the connection expires in `ttl_s` seconds, or never if 0.
pub fn write_refresh_push(out: &mut Vec<u8>, ttl_s: u32) {
    let mut push = Object::begin(out);
    let mut refresh = Object::begin(push.key("refresh"));
    if ttl_s > 0 {
        refresh.flag("expires", true).integer("ttl", ttl_s);
    }
    refresh.end();
    push.end();
}
