//! `connections`: a search goes from worker to worker, each of which looks at some of its places, and ends with a page.

use dunlin_hub::{SessionId, TagFilter, tenant};
use dunlin_net::ConnId;
use dunlin_protocol::{Encoding, Format};
use serde_json::{Map, Value};

use super::api::Api;
use super::clients::Clients;
use super::parts::{CommandPlace, Pending};
use super::turn::{Core, Turn};
use crate::api::connections::{
    ClusterCursor, ConnectionCursor, ConnectionFilter, ConnectionPage, ConnectionSearch,
    ConnectionView,
};
use crate::api::request::{ChannelsRequest, ConnectionsRequest};
use crate::api::{ApiError, ApiErrorCode, CommandOutcome, Request, label_filter};
use crate::message::worker::WorkerMessage;

/// Places of sessions that one page looks at: about a millisecond of one worker.
pub(super) const PLACES_PER_PAGE: u32 = 16_384;
const NO_CURSOR: &str = "cursor: is not a cursor of an earlier response";

impl Api {
    /// A search on all nodes, and their numbers.
    pub(super) fn search_of_cluster<'a>(
        &self,
        core: &Core<'_>,
        request: &ConnectionsRequest<'a>,
    ) -> Result<(Request<'a>, Vec<u16>), ApiError> {
        let cursor = cluster_cursor(core, &request.cursor)?;
        let search = ConnectionsRequest { cursor: cursor.to_string().into(), ..request.clone() };
        Ok((Request::Connections(search), cursor.nodes().collect()))
    }

    /// A page of channels on all nodes, and their numbers.
    pub(super) fn channels_of_cluster<'a>(
        &self,
        core: &Core<'_>,
        request: &ChannelsRequest<'a>,
    ) -> Result<(Request<'a>, Vec<u16>), ApiError> {
        let cursor = cluster_cursor(core, &request.cursor)?;
        let page = ChannelsRequest { cursor: cursor.to_string().into(), ..request.clone() };
        Ok((Request::Channels(page), cursor.nodes().collect()))
    }

    /// Where a search begins on this node, how many it may find and in how many bytes.
    pub(super) fn begin_search(
        &self,
        core: &Core<'_>,
        place: CommandPlace,
        cursor: &str,
        limit: u32,
    ) -> Result<SearchPart, ApiError> {
        let bad = |()| ApiErrorCode::BadRequest.with_reason(NO_CURSOR);
        let bytes = core.settings.config.limits.answer_bytes_max;
        let whole = |begin| SearchPart { begin, room: limit, bytes, node: None };
        if self.api_calls.is_of_cluster(place.call) {
            let cursor: ClusterCursor = cursor.parse().map_err(bad)?;
            let node = core.state.node_number(&core.settings.config);
            let (begin, room, bytes) = cursor.part_of(node, (limit, bytes)).ok_or_else(|| {
                ApiErrorCode::Internal.with_reason("a node has another number by now; begin again")
            })?;
            return Ok(SearchPart { begin, room, bytes, node: Some(node) });
        }
        match cursor {
            "" => Ok(whole(ConnectionCursor::default())),
            cursor => Ok(whole(cursor.parse().map_err(bad)?)),
        }
    }

    /// Begins a search.
    pub(super) fn connections(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        request: &ConnectionsRequest<'_>,
    ) -> Result<(), ApiError> {
        let bad = |why: &str| ApiErrorCode::BadRequest.with_reason(why);
        let address = match &*request.address {
            "" => None,
            address => Some(address.parse().map_err(|_| bad("address: is no IP address"))?),
        };
        let client: Option<SessionId> = match &*request.client {
            "" => None,
            client => match client.parse() {
                Ok(client) => Some(client),
                // Dunlin has not issued it.
                Err(_) => {
                    let nobody = CommandOutcome::Connections(ConnectionPage::default());
                    self.api_calls.handle_answer(place, Ok(nobody));
                    return Ok(());
                }
            },
        };
        let info = match &request.info {
            None => Map::new(),
            Some(info) => serde_json::from_slice(info.as_bytes()).map_err(|_| {
                bad("info: should be an object of members that a connection's info has")
            })?,
        };
        let SearchPart { begin, room, bytes, node } = match client {
            Some(client) => SearchPart {
                begin: ConnectionCursor { worker: client.worker().into(), place: 0 },
                room: request.limit,
                bytes: turn.core.settings.config.limits.answer_bytes_max,
                node: None,
            },
            None => self.begin_search(turn.core, place, &request.cursor, request.limit)?,
        };
        let part = node.map(|node| (node, begin));
        let page = ConnectionPage { part, ..ConnectionPage::default() };
        // A tenant without a user is all of its users.
        let (tenant, user) = tenant::split(&request.user);
        let user = if user.is_empty() { "" } else { &request.user };
        let token = self.api_token(turn, place)?;
        let search = ConnectionSearch {
            filter: ConnectionFilter {
                tenant: tenant.map(Into::into),
                user: user.into(),
                client,
                address,
                channel: (&*request.channel).into(),
                info,
                transport: (&*request.transport).into(),
                age_min_s: request.age_min_s,
                outbox_bytes_min: request.outbox_bytes_min,
                labels: label_filter(request.label_filter.as_ref())?,
            },
            origin: turn.core.index,
            token,
            next: (begin.worker < turn.core.state.workers()).then_some(begin),
            room,
            bytes,
            places: PLACES_PER_PAGE,
            page,
        };
        self.go_on_searching(turn, clients, Box::new(search));
        Ok(())
    }

    /// A search has come to this worker, or back to it.
    pub(super) fn go_on_searching(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        mut search: Box<ConnectionSearch>,
    ) {
        while let Some(at) = search.next {
            if at.worker != turn.core.index {
                // Without room the call times out.
                let to = turn.core.state.bus.worker(at.worker);
                let _ = turn.core.endpoint.send(to, WorkerMessage::FindConnections(search));
                return;
            }
            self.search_here(turn, &mut search, at.place);
        }
        if search.origin != turn.core.index {
            let to = turn.core.state.bus.worker(search.origin);
            let _ = turn.core.endpoint.send(to, WorkerMessage::FindConnections(search));
            return;
        }
        if let Some(Pending::Api(place)) = turn.core.pending.take(search.token) {
            self.api_answered(turn, clients, place, Ok(CommandOutcome::Connections(search.page)));
        }
    }

    fn search_here(&mut self, turn: &mut Turn<'_, '_>, search: &mut ConnectionSearch, from: u32) {
        let filter = &search.filter;
        let (found, next) = match (&*filter.user, filter.client) {
            (_, Some(client)) => (vec![client], None),
            ("", None) => {
                // A filter by labels may cost more than all the rest.
                let cost = filter.labels.as_ref().map_or(1, TagFilter::parts) as u32;
                let (found, next) =
                    turn.core.hub.sessions_page(from, (search.places / cost).max(1));
                // A table that ends here was no longer than what is left.
                search.places -= next.map_or(0, |next| search.places.min((next - from) * cost));
                (found, next)
            }
            (user, None) => {
                let mut sessions: Vec<_> =
                    turn.core.hub.sessions_of(user).filter(|of| of.slot() >= from).collect();
                sessions.sort_unstable_by_key(|of| of.slot());
                (sessions, None)
            }
        };
        for session in found {
            let Some(view) = self.connection_view(turn, session, &search.filter) else { continue };
            let bytes = view.bytes();
            let is_first = search.page.connections.is_empty();
            if search.room == 0 || bytes > search.bytes && !is_first {
                // There is more than fits.
                let place = session.slot();
                search.page.next = Some(ConnectionCursor { worker: turn.core.index, place });
                search.next = None;
                return;
            }
            search.room -= 1;
            search.bytes = search.bytes.saturating_sub(bytes);
            search.page.connections.push(view);
        }
        let here = next.map(|place| ConnectionCursor { worker: turn.core.index, place });
        let after = ConnectionCursor { worker: turn.core.index + 1, place: 0 };
        let is_last = search.filter.client.is_some() || after.worker == turn.core.state.workers();
        let next = here.or((!is_last).then_some(after));
        match search.places {
            0 => (search.page.next, search.next) = (next, None),
            _ => search.next = next,
        }
    }

    /// What is said of a connection, if it is one that is looked for.
    fn connection_view(
        &mut self,
        turn: &mut Turn<'_, '_>,
        session: SessionId,
        filter: &ConnectionFilter,
    ) -> Option<ConnectionView> {
        let view = turn.core.hub.session(session).filter(|view| !view.closing)?;
        let info = turn.core.hub.conn_info(session);
        let encoding = Encoding::of(view.encoding)?;
        let age_s = u64::from(view.age_min) * 60;
        let fits = tenant::split(view.user).0 == filter.tenant.as_deref()
            && (filter.user.is_empty() || *view.user == *filter.user)
            && (filter.channel.is_empty() || turn.core.hub.is_subscribed(session, &filter.channel))
            && (filter.transport.is_empty() || *filter.transport == *encoding.transport())
            && age_s >= filter.age_min_s
            && u64::from(view.outbox_bytes) >= filter.outbox_bytes_min
            && has_members(info, &filter.info)
            && filter.labels.as_ref().is_none_or(|of| of.admits(turn.core.hub.labels(session)));
        if !fits {
            return None;
        }
        let link = turn.cx.data(ConnId::from_u64(view.tag));
        let address = link.and_then(|link| turn.core.peers.address(link.peer));
        if filter.address.is_some() && filter.address != address {
            return None;
        }
        Some(ConnectionView {
            client: session,
            user: view.user.into(),
            address,
            transport: encoding.transport(),
            protocol: match encoding.format() {
                Format::Json => "json",
                Format::Protobuf => "protobuf",
            },
            age_s,
            info: info.map(Into::into),
            labels: turn.core.hub.labels(session).clone(),
            channels: turn.core.hub.subscriptions(session).map(Into::into).collect(),
            outbox_bytes: view.outbox_bytes,
            memory_bytes: turn.core.hub.session_bytes(session),
        })
    }
}

/// This node's part of a search.
pub(super) struct SearchPart {
    pub(super) begin: ConnectionCursor,
    pub(super) room: u32,
    pub(super) bytes: usize,
    /// The node, if others search too.
    pub(super) node: Option<u16>,
}

/// Parses the cursor of a search of the cluster; empty: the beginning on each living node.
fn cluster_cursor(core: &Core<'_>, cursor: &str) -> Result<ClusterCursor, ApiError> {
    match cursor {
        "" => Ok(ClusterCursor::of_nodes(core.state.cluster.living())),
        cursor => cursor.parse().map_err(|()| ApiErrorCode::BadRequest.with_reason(NO_CURSOR)),
    }
}

/// Whether raw JSON is an object with these members, among others.
fn has_members(info: Option<&[u8]>, wanted: &Map<String, Value>) -> bool {
    if wanted.is_empty() {
        return true;
    }
    let Some(Ok(has)) = info.map(serde_json::from_slice::<Map<String, Value>>) else {
        return false;
    };
    wanted.iter().all(|(name, value)| has.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_info_has_the_members_that_are_looked_for_or_has_not() {
        let wanted = |text: &str| serde_json::from_str(text).unwrap();
        let info = br#"{"tenant":"acme","n":1}"#;
        assert!(has_members(Some(info), &wanted("{}")));
        assert!(has_members(Some(info), &wanted(r#"{"tenant":"acme"}"#)));
        assert!(!has_members(Some(info), &wanted(r#"{"tenant":"acme","n":2}"#)));
        assert!(!has_members(Some(b"[1]"), &wanted(r#"{"n":1}"#)));
        assert!(!has_members(None, &wanted(r#"{"n":1}"#)));
    }
}
