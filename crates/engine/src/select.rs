//! Selects parts of streams.

use dunlin_hub::engine::Lineage;
use dunlin_hub::{Error, History, HistoryFilter, Publication, PublicationParts, StreamPosition};

use crate::frame::{Frame, FrameError};

/// The position of a stream, and its retention.
pub(crate) struct StreamSlice<'a> {
    pub(crate) position: StreamPosition,
    pub(crate) inherits: &'a Lineage,
    /// The number of stored publications.
    pub(crate) size: u32,
}

/// The requested part of a stream, from its messages.
pub(crate) fn select<'a>(
    position: StreamPosition,
    inherits: &Lineage,
    messages: impl Iterator<Item = &'a [u8]>,
    filter: &HistoryFilter,
    size: u32,
) -> Result<History, Error> {
    let is_wanted =
        |frame: &Frame<'_>| !filter.present_epoch || frame.position.epoch == position.epoch;
    let mut decoded = messages.flat_map(|message| {
        let publications = Frame::parse(message).and_then(|frame| match is_wanted(&frame) {
            true => frame.publications(),
            false => Ok(Vec::new()),
        });
        let (publications, error) = match publications {
            Ok(publications) => (publications, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        };
        publications.into_iter().map(|(publication, _)| Ok(publication)).chain(error)
    });
    select_publications(&StreamSlice { position, inherits, size }, &mut decoded, filter)
}

/// Like [`select`], from publications, oldest first.
pub(crate) fn select_publications(
    part: &StreamSlice<'_>,
    decoded: &mut dyn Iterator<Item = Result<PublicationParts, FrameError>>,
    filter: &HistoryFilter,
) -> Result<History, Error> {
    let &StreamSlice { position, inherits, size } = part;
    let (mut first, mut last) = (position.offset.saturating_sub(u64::from(size)) + 1, u64::MAX);
    if let Some(since) = filter.since {
        if !since.epoch.is_none() && since.epoch != position.epoch && !inherits.contains(since) {
            return Err(Error::UnrecoverablePosition(position));
        }
        match filter.reverse {
            true => last = since.offset - 1,
            false => first = first.max(since.offset.saturating_add(1)),
        }
    }
    let mut publications = Vec::new();
    for publication in decoded {
        let publication = publication.map_err(|_| Error::EngineRefused)?;
        if (first..=last).contains(&publication.offset) {
            publications.push(Publication::from(publication));
        }
    }
    if filter.reverse {
        publications.reverse();
    }
    publications.truncate(filter.limit.map_or(usize::MAX, |limit| limit as usize));
    if let Some(mut room) = filter.bytes_max {
        let fits = publications.iter().take_while(|publication| {
            // The first publication is always returned, or a reader could not advance.
            let had_room = room > 0;
            room = room.saturating_sub(publication.cost());
            had_room
        });
        let fits = fits.count();
        publications.truncate(fits);
    }
    Ok(History { publications, position })
}
