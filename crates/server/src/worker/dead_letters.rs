//! Messages that were delivered as often as they may be, and were not acknowledged: each goes to the channel for such messages, and
//! then its cursor moves on.

use std::sync::Arc;

use dunlin_hub::{
    ChannelOptions, ChannelRef, CursorOwner, Error as HubError, Event, HistoryFilter,
    NewPublication, Owner, Publication, StreamPosition, Tags, tenant,
};

use super::clients::Clients;
use super::parts::{AckBy, DeadLetter, Pending, PendingAck};
use super::turn::{Core, Turn};
use crate::metrics::Metric;

/// The tags that say where a message comes from.
const TAGS: [&str; 5] = [
    "dead_letter_channel",
    "dead_letter_offset",
    "dead_letter_user",
    "dead_letter_device",
    "dead_letter_deliveries",
];
/// For how long a message that comes again is recognised.
const KEY_TTL_MS: u32 = 600_000;

impl Clients {
    /// Reads a message that cannot be delivered.
    pub(super) fn undeliverable(&mut self, turn: &mut Turn<'_, '_>, letter: DeadLetter) {
        let Ok(options) = turn.core.channel_options(&letter.channel) else { return };
        let StreamPosition { offset, epoch } = letter.position;
        let since = StreamPosition { offset: offset - 1, epoch };
        let filter =
            HistoryFilter { since: Some(since), limit: Some(1), ..HistoryFilter::default() };
        let channel = Arc::clone(&letter.channel);
        if let Some(token) = self.token(turn, Pending::DeadLetter(Box::new(letter))) {
            let (now, channel) = (turn.now(), ChannelRef::new(&channel, &options));
            turn.core.hub.handle_history(now, token, channel, filter, Owner::NONE);
        }
    }

    /// It was read, or published to the channel for such messages.
    pub(super) fn dead_letter_answered(
        &mut self,
        turn: &mut Turn<'_, '_>,
        letter: DeadLetter,
        event: Event,
    ) {
        match event {
            Event::History { result: Ok(history), .. } => {
                let at = letter.position.offset;
                match history.publications.into_iter().find(|of| of.offset() == at) {
                    Some(publication) => self.publish_dead_letter(turn, letter, &publication),
                    // It has expired meanwhile.
                    None => self.move_on(turn, &letter),
                }
            }
            Event::Published { result: Ok(published), .. } => {
                if !published.suppressed {
                    turn.core.count(Metric::DeadLetters);
                    turn.core.dead_letter(&letter, "");
                }
                self.move_on(turn, &letter);
            }
            Event::History { result: Err(error), .. }
            | Event::Published { result: Err(error), .. } => {
                self.dead_letter_failed(turn, &letter, error);
            }
            _ => {}
        }
    }

    /// It stays where it is. The hub reports it again when it would be delivered next.
    pub(super) fn dead_letter_failed(
        &mut self,
        turn: &mut Turn<'_, '_>,
        letter: &DeadLetter,
        error: HubError,
    ) {
        turn.core.count(Metric::DeadLettersFailed);
        turn.core.dead_letter(letter, &error.to_string());
    }

    fn publish_dead_letter(
        &mut self,
        turn: &mut Turn<'_, '_>,
        letter: DeadLetter,
        publication: &Publication,
    ) {
        let Some((channel, options)) = turn.core.dead_letter_channel(&letter.channel) else {
            turn.core.count(Metric::DeadLettersFailed);
            return turn
                .core
                .dead_letter(&letter, "ack_dead_letter names a channel that is unknown");
        };
        let CursorOwner { user, device } = &letter.owner;
        let values = [
            tenant::bare(&letter.channel).to_owned(),
            letter.position.offset.to_string(),
            tenant::bare(user).to_owned(),
            device.to_string(),
            letter.deliveries.to_string(),
        ];
        // Quoted, so that where one name ends is no guess.
        let key = format!("{:?}", &values[..4]);
        let own = publication.tags().iter().cloned();
        let more =
            TAGS.into_iter().map(Box::from).zip(values.into_iter().map(String::into_boxed_str));
        let publish = NewPublication {
            data: publication.data().into(),
            format: publication.format(),
            info: publication.info().cloned(),
            tags: own.chain(more).collect::<Tags>(),
            key: publication.key().map(Into::into),
            idempotency_key: Some(key.into()),
            idempotency_ttl_ms: Some(KEY_TTL_MS),
            ..NewPublication::default()
        };
        if let Some(token) = self.token(turn, Pending::DeadLetter(Box::new(letter))) {
            let (now, channel) = (turn.now(), ChannelRef::new(&channel, &options));
            turn.core.hub.handle_publish(now, token, channel, publish);
        }
    }

    /// Acknowledges up to a message in place of its device.
    fn move_on(&mut self, turn: &mut Turn<'_, '_>, letter: &DeadLetter) {
        let Ok(options) = turn.core.channel_options(&letter.channel) else { return };
        let by_user = options.ack.as_ref().is_some_and(|ack| ack.by_user);
        let (user, channel) = (letter.owner.user.clone(), (&*letter.channel).into());
        let pending = PendingAck { by: AckBy::Nobody, user, channel, by_user };
        if let Some(token) = self.token(turn, Pending::Ack(Box::new(pending))) {
            let (now, channel) = (turn.now(), ChannelRef::new(&letter.channel, &options));
            let (owner, acked) = (letter.owner.clone(), Some(letter.position));
            turn.core.hub.handle_cursor(now, token, channel, owner, acked);
        }
    }
}

impl Core<'_> {
    /// The channel for messages of a channel that cannot be delivered; of the same tenant.
    fn dead_letter_channel(&self, channel: &str) -> Option<(String, Arc<ChannelOptions>)> {
        let bare = self.settings.namespace(channel)?.rules.ack_dead_letter.clone()?;
        let name = match tenant::split(channel).0 {
            Some(tenant) => tenant::qualify(tenant, &bare),
            None => bare.to_string(),
        };
        let options = self.channel_options(&name).ok()?;
        Some((name, options))
    }
}
