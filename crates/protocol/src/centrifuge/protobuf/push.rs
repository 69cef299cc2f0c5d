//! `Push`.

use dunlin_hub::Outgoing;
use dunlin_wire::protobuf::Writer;

use super::reply::{
    write_client_info, write_difference, write_position, write_publication, write_ttl,
};

/// Field of a push that is not in client.proto and that client libraries skip. Its field 1 is the number of dropped
/// publications of the channel.
const MISSED: u32 = 1000;

/// Writes a push without the enclosing reply. Writes nothing for a push that this protocol does not support.
pub(crate) fn write_push(w: &mut Writer<'_>, outgoing: &Outgoing<'_>) {
    match *outgoing {
        Outgoing::Publication { channel, publication } => {
            w.string(2, channel);
            w.message(4, |w| write_publication(w, publication));
        }
        Outgoing::Delta { channel, publication, patch } => {
            w.string(2, channel);
            w.message(4, |w| write_difference(w, publication, patch));
        }
        Outgoing::Join { channel, info, .. } => {
            w.string(2, channel);
            w.message(5, |w| w.message(1, |w| write_client_info(w, info)));
        }
        Outgoing::Leave { channel, info, .. } => {
            w.string(2, channel);
            w.message(6, |w| w.message(1, |w| write_client_info(w, info)));
        }
        Outgoing::Unsubscribe { channel, code, reason } => {
            w.string(2, channel);
            w.message(7, |w| {
                w.unsigned(2, code);
                w.string(3, reason);
            });
        }
        Outgoing::Message { data, .. } => w.message(8, |w| w.bytes(1, data)),
        Outgoing::Subscribe { channel, position, recoverable, positioned, data } => {
            w.string(2, channel);
            w.message(9, |w| {
                w.bool(1, recoverable);
                if recoverable || positioned {
                    write_position(w, position);
                }
                w.bool(6, positioned || recoverable);
                w.bytes(7, data.unwrap_or_default());
            });
        }
        Outgoing::Disconnect { code, reason, reconnect } => w.message(11, |w| {
            w.unsigned(1, code);
            w.string(2, reason);
            w.bool(3, reconnect);
        }),
        Outgoing::Missed { channel, count } => {
            w.string(2, channel);
            w.message(MISSED, |w| w.unsigned(1, count));
        }
        _ => {}
    }
}

/// Writes the `refresh` push: the connection expires in `ttl_s` seconds, or never if 0.
pub(crate) fn write_refresh_push(w: &mut Writer<'_>, ttl_s: u32) {
    w.message(12, |w| write_ttl(w, 1, ttl_s));
}
