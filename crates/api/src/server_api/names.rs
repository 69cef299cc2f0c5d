//! The names in a request that are scoped to a tenant.

use std::borrow::Cow;

use super::error::ApiError;
use super::request::{Request, Target};

impl<'a> Request<'a> {
    /// Visits each channel, channel pattern, user and token id.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub fn names(
        &mut self,
        mut visit: impl FnMut(&mut Cow<'a, str>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        match self {
            Request::Publish(of) => visit(&mut of.channel),
            Request::Broadcast(of) => of.channels.iter_mut().try_for_each(|of| visit(&mut of.0)),
            Request::Subscribe(of) => {
                visit(user(&mut of.target))?;
                visit(&mut of.channel)
            }
            Request::Unsubscribe(of) => {
                visit(user(&mut of.target))?;
                visit(&mut of.channel)
            }
            Request::Disconnect(of) => visit(user(&mut of.target)),
            Request::Refresh(of) => visit(user(&mut of.target)),
            Request::Send(of) => visit(user(&mut of.target)),
            Request::Presence(of) | Request::PresenceStats(of) | Request::HistoryRemove(of) => {
                visit(&mut of.channel)
            }
            Request::History(of) => visit(&mut of.channel),
            Request::Ack(of) => {
                visit(&mut of.user)?;
                visit(&mut of.channel)
            }
            Request::Unread(of) => {
                visit(&mut of.user)?;
                visit(&mut of.channel)
            }
            Request::RevokeToken(of) => visit(&mut of.uid),
            Request::InvalidateUserTokens(of) => visit(&mut of.user),
            Request::BlockUser(of) => visit(&mut of.user),
            Request::UnblockUser(of) => visit(&mut of.user),
            Request::Connections(of) => {
                visit(&mut of.user)?;
                // Empty means any channel.
                if of.channel.is_empty() { Ok(()) } else { visit(&mut of.channel) }
            }
            Request::Channels(of) => {
                if of.pattern.is_empty() {
                    of.pattern = Cow::Borrowed("*");
                }
                visit(&mut of.pattern)
            }
            Request::Info => Ok(()),
        }
    }
}

fn user<'t, 'a>(target: &'t mut Target<'a>) -> &'t mut Cow<'a, str> {
    &mut target.user
}
