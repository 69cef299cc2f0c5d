//! `channels` with a limit: a search goes from worker to worker, each of which looks at some of the channels at home there, and
//! then once more to each, which adds its subscribers.

use dunlin_hub::{ChannelPattern, ChannelSummary};

use super::api::Api;
use super::clients::Clients;
use super::connections::{PLACES_PER_PAGE, SearchPart};
use super::parts::{CommandPlace, Pending};
use super::turn::{Core, Turn};
use crate::api::connections::{ChannelPage, ChannelSearch, ConnectionCursor};
use crate::api::request::ChannelsRequest;
use crate::api::{ApiError, CommandOutcome};
use crate::message::worker::WorkerMessage;

/// Bytes of a channel in the answer besides its name.
const CHANNEL_BYTES: usize = 32;

impl Api {
    /// Begins a search.
    pub(super) fn channel_page(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        place: CommandPlace,
        request: &ChannelsRequest<'_>,
    ) -> Result<(), ApiError> {
        let pattern = ChannelPattern::parse(&request.pattern)?;
        let SearchPart { begin, room, bytes, node } =
            self.begin_search(turn.core, place, &request.cursor, request.limit)?;
        let token = self.api_token(turn, place)?;
        let search = ChannelSearch {
            pattern,
            idle: request.without_subscribers,
            origin: turn.core.index,
            token,
            next: (begin.worker < turn.core.state.workers()).then_some(begin),
            counting: 0,
            room,
            bytes,
            places: PLACES_PER_PAGE,
            page: ChannelPage { node, ..ChannelPage::default() },
        };
        self.go_on_listing(turn, clients, Box::new(search));
        Ok(())
    }

    /// A search has come to this worker, or back to it.
    pub(super) fn go_on_listing(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        mut search: Box<ChannelSearch>,
    ) {
        let (index, workers) = (turn.core.index, turn.core.state.workers());
        while let Some(at) = search.next {
            if at.worker != index {
                return pass(turn.core, at.worker, search);
            }
            list_here(turn.core, &mut search, at.place);
        }
        while search.counting < workers {
            if search.counting != index {
                let next = search.counting;
                return pass(turn.core, next, search);
            }
            for channel in &mut search.page.channels {
                channel.clients += turn.core.hub.subscriber_count(&channel.name);
            }
            search.counting += 1;
        }
        if search.origin != index {
            let origin = search.origin;
            return pass(turn.core, origin, search);
        }
        if !search.idle {
            // A subscriber may be pending, or have gone meanwhile.
            search.page.channels.retain(|channel| channel.clients > 0);
        }
        if let Some(Pending::Api(place)) = turn.core.pending.take(search.token) {
            self.api_answered(turn, clients, place, Ok(CommandOutcome::ChannelPage(search.page)));
        }
    }
}

fn pass(core: &mut Core<'_>, worker: usize, search: Box<ChannelSearch>) {
    // Without room the call times out.
    let to = core.state.bus.worker(worker);
    let _ = core.endpoint.send(to, WorkerMessage::FindChannels(search));
}

fn list_here(core: &Core<'_>, search: &mut ChannelSearch, from: u32) {
    let cost = search.pattern.alternatives() as u32;
    let places = (search.places / cost).max(1);
    let (found, next) = core.hub.channels_page(from, places, &search.pattern, search.idle);
    search.places -= next.map_or(0, |next| search.places.min((next - from) * cost));
    for (place, name) in found {
        let bytes = name.len() + CHANNEL_BYTES;
        if search.room == 0 || bytes > search.bytes && !search.page.channels.is_empty() {
            // There is more than fits.
            search.page.next = Some(ConnectionCursor { worker: core.index, place });
            search.next = None;
            return;
        }
        search.room -= 1;
        search.bytes = search.bytes.saturating_sub(bytes);
        search.page.channels.push(ChannelSummary { name, clients: 0 });
    }
    let here = next.map(|place| ConnectionCursor { worker: core.index, place });
    let after = ConnectionCursor { worker: core.index + 1, place: 0 };
    let next = here.or((after.worker < core.state.workers()).then_some(after));
    match search.places {
        0 => (search.page.next, search.next) = (next, None),
        _ => search.next = next,
    }
}
