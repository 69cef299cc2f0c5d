//! `Reply` and its results.

use std::io::Write as _;

use dunlin_hub::{ClientInfo, Epoch, Patch, Publication, SessionId, StreamPosition, tenant};
use dunlin_wire::protobuf::Writer;

use super::super::reply::{ConnectResult, RefreshResult, Reply, SubscribeResult};

/// Writes the reply to command `id`.
pub(crate) fn write_reply(w: &mut Writer<'_>, id: u32, reply: &Reply<'_>) {
    w.unsigned(1, id);
    match *reply {
        Reply::Error(error) => w.message(2, |w| {
            w.unsigned(1, error.code);
            w.string(2, &error.message);
            w.bool(3, error.temporary);
        }),
        Reply::Connect(result) => w.message(5, |w| write_connect(w, result)),
        Reply::Subscribe(result) => w.message(6, |w| write_subscribe(w, result)),
        Reply::Unsubscribe => w.message(7, |_| ()),
        Reply::Publish => w.message(8, |_| ()),
        Reply::Presence(present) => w.message(9, |w| {
            for info in present {
                w.message(1, |w| {
                    write_client(w, 1, info);
                    w.message(2, |w| write_client_info(w, info));
                });
            }
        }),
        Reply::PresenceStats(stats) => w.message(10, |w| {
            w.unsigned(1, stats.clients);
            w.unsigned(2, stats.users);
        }),
        Reply::History(history) => w.message(11, |w| {
            write_publications(w, 1, &history.publications);
            write_epoch(w, 2, history.position.epoch);
            w.unsigned(3, history.position.offset);
        }),
        Reply::Ping => w.message(12, |_| ()),
        Reply::Rpc { data } => w.message(13, |w| w.bytes(1, data)),
        Reply::Refresh(result) => w.message(14, |w| write_refresh(w, result)),
        Reply::SubRefresh { ttl_s } => w.message(15, |w| write_ttl(w, 1, ttl_s)),
    }
}

fn write_connect(w: &mut Writer<'_>, result: &ConnectResult<'_>) {
    if let Some(client) = result.client {
        write_id(w, 1, client);
    }
    w.string(2, result.version);
    write_ttl(w, 3, result.ttl_s);
    w.bytes(5, result.data.unwrap_or_default());
    for (channel, sub) in result.subs {
        w.message(6, |w| {
            w.string(1, tenant::bare(channel));
            w.message(2, |w| write_subscribe(w, sub));
        });
    }
    w.unsigned(7, result.ping_s);
    w.bool(8, result.pong);
    w.string(9, result.session);
    w.string(10, result.node);
}

fn write_subscribe(w: &mut Writer<'_>, result: &SubscribeResult<'_>) {
    let subscribed = result.subscribed;
    write_ttl(w, 1, result.ttl_s);
    w.bool(3, subscribed.recoverable);
    let positioned = subscribed.recoverable || subscribed.positioned;
    if positioned {
        write_epoch(w, 6, subscribed.position.epoch);
    }
    write_publications(w, 7, &subscribed.publications);
    w.bool(8, subscribed.recovered);
    if positioned {
        w.unsigned(9, subscribed.position.offset);
    }
    w.bool(10, positioned);
    w.bytes(11, result.data.unwrap_or_default());
    w.bool(12, subscribed.was_recovering);
    w.bool(13, subscribed.delta);
}

fn write_refresh(w: &mut Writer<'_>, result: &RefreshResult<'_>) {
    write_id(w, 1, result.client);
    w.string(2, result.version);
    write_ttl(w, 3, result.ttl_s);
}

fn write_publications(w: &mut Writer<'_>, number: u32, publications: &[Publication]) {
    for publication in publications {
        w.message(number, |w| write_publication(w, publication));
    }
}

/// Writes a publication, without its channel.
pub(super) fn write_publication(w: &mut Writer<'_>, publication: &Publication) {
    write_difference(w, publication, None);
}

/// Writes a publication; its data is the patch from the previous payload, if there is one.
pub(super) fn write_difference(
    w: &mut Writer<'_>,
    publication: &Publication,
    patch: Option<Patch<'_>>,
) {
    w.bytes(4, patch.map_or(publication.data(), |patch| patch.bytes));
    if let Some(info) = publication.info() {
        w.message(5, |w| write_client_info(w, info));
    }
    w.unsigned(6, publication.offset());
    for (name, value) in publication.tags().iter() {
        w.message(7, |w| {
            w.string(1, name);
            w.string(2, value);
        });
    }
    w.bool(8, patch.is_some());
    w.string(10, tenant::bare(publication.channel().unwrap_or_default()));
    w.string(11, publication.key().unwrap_or_default());
}

/// Writes a client as other clients see it.
pub(super) fn write_client_info(w: &mut Writer<'_>, info: &ClientInfo) {
    w.string(1, tenant::bare(&info.user));
    write_client(w, 2, info);
    w.bytes(3, info.conn_info.as_deref().unwrap_or_default());
    w.bytes(4, info.chan_info.as_deref().unwrap_or_default());
}

/// Writes the position of a subscription as fields of `Subscribe`.
pub(super) fn write_position(w: &mut Writer<'_>, position: StreamPosition) {
    write_epoch(w, 4, position.epoch);
    w.unsigned(5, position.offset);
}

/// Writes the fields `expires` and, directly after it, `ttl` in seconds; 0: no expiry.
pub(super) fn write_ttl(w: &mut Writer<'_>, expires: u32, ttl_s: u32) {
    w.bool(expires, ttl_s > 0);
    w.unsigned(expires + 1, ttl_s);
}

/// Writes the id of a client, which may be connected to another kind of server.
fn write_client(w: &mut Writer<'_>, number: u32, info: &ClientInfo) {
    match &info.foreign_client {
        Some(client) => w.string(number, client),
        None => write_id(w, number, info.client),
    }
}

fn write_id(w: &mut Writer<'_>, number: u32, id: SessionId) {
    w.string(number, itoa::Buffer::new().format(id.to_u64()));
}

fn write_epoch(w: &mut Writer<'_>, number: u32, epoch: Epoch) {
    // The epoch has at most eleven letters and digits, so it fits.
    let mut text = [0u8; 16];
    let mut rest = &mut text[..];
    let _ = write!(rest, "{epoch}");
    let length = 16 - rest.len();
    w.bytes(number, &text[..length]);
}
