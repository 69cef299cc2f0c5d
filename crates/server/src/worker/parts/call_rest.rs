//! The rest of a server API call at the end of a turn: commands that have not begun, and the remaining channels of a broadcast.

use dunlin_hub::NewPublication;

use crate::api::{ApiError, ApiErrorCode, LegacyCommand, LenientReader, Request};

/// The rest of a call.
#[derive(Default)]
pub(crate) struct CallRest {
    pub(crate) commands: RestCommands,
    /// A broadcast that has begun, with its remaining channels.
    pub(crate) broadcast: Option<BroadcastRest>,
}

/// Commands that have not begun.
#[derive(Default)]
pub(crate) enum RestCommands {
    #[default]
    None,
    /// The texts of the commands from `first` on, concatenated, and the end of each.
    Batch { first: usize, text: Vec<u8>, ends: Vec<usize> },
    /// All commands of the call.
    Legacy(Vec<LegacyCommand>),
}

/// The commands of a call, each read when it begins.
#[derive(Clone, Copy)]
pub(crate) enum CallCommands<'a> {
    Legacy(&'a [LegacyCommand]),
    Batch(&'a [&'a [u8]]),
    /// As [`RestCommands::Batch`].
    Kept {
        first: usize,
        text: &'a [u8],
        ends: &'a [usize],
    },
}

impl<'a> From<&'a RestCommands> for CallCommands<'a> {
    fn from(kept: &'a RestCommands) -> Self {
        match kept {
            RestCommands::None => CallCommands::Batch(&[]),
            RestCommands::Batch { first, text, ends } => {
                CallCommands::Kept { first: *first, text, ends }
            }
            RestCommands::Legacy(commands) => CallCommands::Legacy(commands),
        }
    }
}

impl CallCommands<'_> {
    /// Reads the command at this index of the call.
    pub(crate) fn read<'r>(
        &'r self,
        reader: &'r LenientReader,
        at: u32,
    ) -> Result<Request<'r>, ApiError> {
        let at = at as usize;
        let text = match *self {
            CallCommands::Legacy(commands) => {
                return commands.get(at).ok_or(ApiErrorCode::Internal)?.request();
            }
            CallCommands::Batch(texts) => texts.get(at).copied(),
            CallCommands::Kept { first, text, ends } => piece(text, ends, at.wrapping_sub(first)),
        };
        reader.command(at, text.ok_or(ApiErrorCode::Internal)?)
    }
}

/// The rest of a broadcast.
pub(crate) struct BroadcastRest {
    /// The index of the command.
    pub(crate) at: u32,
    /// The index of the first remaining channel among those of the broadcast.
    pub(crate) next: u32,
    pub(crate) publish: NewPublication,
    /// Names of channels, one after the other, and where each ends; `first` is the place of the first of them.
    names: String,
    ends: Vec<usize>,
    first: u32,
}

impl RestCommands {
    pub(crate) fn batch(first: usize, texts: &[&[u8]]) -> RestCommands {
        let mut text = Vec::with_capacity(texts.iter().map(|text| text.len()).sum());
        let ends = texts.iter().map(|each| {
            text.extend_from_slice(each);
            text.len()
        });
        let ends = ends.collect();
        RestCommands::Batch { first, text, ends }
    }
}

impl CallRest {
    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let commands = match &self.commands {
            RestCommands::None => 0,
            RestCommands::Batch { text, ends, .. } => text.len() + size_of_val(&ends[..]),
            RestCommands::Legacy(commands) => commands.iter().map(LegacyCommand::bytes).sum(),
        };
        let broadcast = self.broadcast.as_ref();
        commands + broadcast.map_or(0, |of| of.names.len() + size_of_val(&of.ends[..]))
    }
}

impl BroadcastRest {
    pub(crate) fn new<'n>(
        (at, next): (u32, u32),
        left: impl Iterator<Item = &'n str>,
        publish: NewPublication,
    ) -> BroadcastRest {
        let mut names = String::new();
        let ends = left.map(|name| {
            names.push_str(name);
            names.len()
        });
        let ends = ends.collect();
        BroadcastRest { at, next, publish, names, ends, first: next }
    }

    /// Returns the remaining channels.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &str> {
        let from = (self.next - self.first) as usize;
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).skip(from).map(|(start, &end)| &self.names[start..end])
    }
}

fn piece<'t>(text: &'t [u8], ends: &[usize], at: usize) -> Option<&'t [u8]> {
    let end = *ends.get(at)?;
    let start = if at == 0 { 0 } else { ends[at - 1] };
    text.get(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_have_not_begun_keep_their_places_in_the_call() {
        let texts = [r#"{"info":{}}"#, r#"{"channels":{"pattern":"a*"}}"#, "{"];
        let texts = texts.map(str::as_bytes);
        let commands = RestCommands::batch(3, &texts);
        let (kept, reader) = (CallCommands::from(&commands), LenientReader::default());
        assert!(matches!(kept.read(&reader, 3), Ok(Request::Info)));
        let Ok(Request::Channels(channels)) = kept.read(&reader, 4) else { panic!("the second") };
        assert_eq!(channels.pattern, "a*");
        assert!(kept.read(&reader, 5).is_err(), "malformed");
        for at in [0, 2, 6] {
            assert!(kept.read(&reader, at).is_err(), "{at} is done, or none of the call");
        }
        let rest = CallRest { commands, broadcast: None };
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        assert_eq!(rest.bytes(), bytes + texts.len() * size_of::<usize>());
        assert!(
            CallCommands::from(&RestCommands::None).read(&LenientReader::default(), 0).is_err()
        );
    }

    #[test]
    fn a_broadcast_goes_on_with_the_channels_that_are_left() {
        let publish = NewPublication::default();
        let mut rest = BroadcastRest::new((1, 5), ["e", "", "news"].into_iter(), publish);
        assert_eq!(rest.channels().collect::<Vec<_>>(), ["e", "", "news"]);
        rest.next = 7;
        assert_eq!(rest.channels().collect::<Vec<_>>(), ["news"]);
        rest.next = 8;
        assert_eq!(rest.channels().count(), 0);
        let rest = CallRest { commands: RestCommands::None, broadcast: Some(rest) };
        assert_eq!(rest.bytes(), 5 + 3 * size_of::<usize>());
    }
}
