//! Server API calls over several turns: a call continues in the next turn of the loop, once the subscribers of a channel have
//! caught up, or once its key has the budget.

use dunlin_hub::NewPublication;
use dunlin_net::ConnId;

use super::api::Api;
use super::clients::Clients;
use super::command_timer::CommandTimer;
use super::parts::{BroadcastRest, CallCommands, CallId, CommandPlace, RestCommands};
use super::timer::Timer;
use super::turn::{Core, Turn};
use crate::api::Request;
use crate::limits::budget::{BudgetKey, COMMAND_NS, Rates, Work};
use crate::metrics::Metric;

/// The longest time a call waits for the subscribers of a channel.
pub(super) const BEHIND_MS_MAX: u64 = 1_000;
/// The interval at which it is checked whether they have caught up.
const HELD_POLL_MS: u64 = 1;
/// A call is refused if its key would have to wait longer for its budget.
const CALL_WAIT_MS_MAX: u64 = 10_000;

impl Api {
    /// Starts commands of a call until one must wait or the turn's share is used. Returns the number of commands of the call that
    /// have started.
    pub(super) fn give_out(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        call: CallId,
        commands: CallCommands<'_>,
    ) -> usize {
        let mut timer = CommandTimer::start(&turn.core.state);
        while let Some(at) = self.api_calls.begin_next(call) {
            let reader = self.lenient(turn.core);
            let command = commands.read(&reader, at);
            let method = command.as_ref().ok().map(Request::method);
            let deliveries = match &command {
                Ok(Request::Publish(of)) => {
                    turn.core.deliveries_to(&of.channel, of.message.data.as_bytes().len())
                }
                _ => 0,
            };
            self.execute(turn, clients, call, at, command);
            let place = CommandPlace { call, at, part: None };
            self.api_calls.handle_read(place, method, reader.into_unknown());
            // Deliver its effects before starting more, so that full outboxes are noticed.
            self.settle(turn, clients);
            let spent_ns = timer.lap();
            self.charge_call_time(turn.core, call, spent_ns);
            if self.api_calls.has_broadcast(call)
                || self.api_calls.is_held(call)
                || !turn.core.goes_on(conn, Work { deliveries, spent_ns, ..Work::default() })
            {
                break;
            }
        }
        self.api_calls.begun(call)
    }

    /// Continues the calls that wait for their turn, or for the subscribers of a channel.
    pub(super) fn run_calls(&mut self, turn: &mut Turn<'_, '_>, clients: &mut Clients) {
        if self.api_calls.is_look_due(turn.cx.now_ms()) {
            let (now_ms, pressure) = (turn.cx.now_ms(), &turn.core.state.pressure);
            let released = self.api_calls.release(now_ms, |held| {
                now_ms >= held.until_ms || held.channel.is_some_and(|hash| !pressure.holds(hash))
            });
            for call in released {
                self.respond(turn, clients, call);
            }
        }
        if self.api_calls.arm_timer() {
            turn.cx.run_after(HELD_POLL_MS, Timer::Calls as u64);
        }
        for call in self.api_calls.take_ready() {
            let Some((conn, rest)) = self.api_calls.resume(call) else { continue };
            if let Some(broadcast) = rest.broadcast {
                self.continue_broadcast(turn, clients, conn, call, broadcast);
            }
            if !self.api_calls.has_broadcast(call) {
                self.give_out(turn, clients, conn, call, CallCommands::from(&rest.commands));
            }
            self.keep(turn.core, call, rest.commands);
            self.pause(turn, clients, call);
        }
    }

    /// Keeps the commands of a call that wait for their turn, unless too much waits already.
    pub(super) fn keep(&mut self, core: &mut Core<'_>, call: CallId, commands: RestCommands) {
        if !self.api_calls.keep(call, commands, core.backlog_bytes_max()) {
            self.api_calls.refuse_rest(call, &dunlin_hub::Error::Overloaded.into());
        }
    }

    pub(super) fn continue_broadcast(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        conn: ConnId,
        call: CallId,
        mut broadcast: BroadcastRest,
    ) {
        let place = CommandPlace { call, at: broadcast.at, part: None };
        let from = broadcast.next;
        let publish = &broadcast.publish;
        let given =
            self.give_parts(turn, clients, (conn, place, from), broadcast.channels(), publish);
        broadcast.next += given;
        if broadcast.channels().next().is_some() {
            self.api_calls.keep_broadcast(call, broadcast);
        }
    }

    /// Publishes to the channels of a broadcast, beginning with index `from`, until the turn's share is used. Returns the number
    /// of channels.
    pub(super) fn give_parts<'n>(
        &mut self,
        turn: &mut Turn<'_, '_>,
        clients: &mut Clients,
        (conn, place, from): (ConnId, CommandPlace, u32),
        channels: impl Iterator<Item = &'n str>,
        publish: &NewPublication,
    ) -> u32 {
        let mut given = 0;
        let mut timer = CommandTimer::start(&turn.core.state);
        for channel in channels {
            let part = CommandPlace { part: Some(from + given), ..place };
            let has_room = self.api_calls.begin_part(place.call);
            if let Err(error) = self.publish(turn, part, channel, publish.clone()) {
                self.api_calls.handle_answer(part, Err(error));
            }
            self.settle(turn, clients);
            given += 1;
            let deliveries = turn.core.deliveries_to(channel, publish.data.len());
            let spent_ns = timer.lap();
            self.charge_call_time(turn.core, place.call, spent_ns);
            if !has_room
                || self.api_calls.is_held(place.call)
                || !turn.core.goes_on(conn, Work { deliveries, spent_ns, ..Work::default() })
            {
                break;
            }
        }
        given
    }

    /// How long a key must wait for its budget before its next call, if that is longer than a call may wait.
    pub(super) fn wait_to_call(
        &self,
        core: &Core<'_>,
        (budget_key, rates): (BudgetKey, Rates),
    ) -> Option<u64> {
        let wait_ms = core.charge_shared(budget_key, &rates, Work::default());
        Some(wait_ms).filter(|&wait_ms| wait_ms > CALL_WAIT_MS_MAX)
    }

    /// Charges a call to its key. The rest of the call and its response wait until the key has the budget.
    pub(super) fn charge_call(
        &mut self,
        core: &mut Core<'_>,
        call: CallId,
        (budget_key, rates): (BudgetKey, Rates),
        work: Work,
    ) {
        let wait_ms = core.charge_shared(budget_key, &rates, work);
        if wait_ms > 0 {
            self.hold(core, call, core.clock.now().ms + wait_ms, None);
        }
    }

    /// Charges a call's key the time of a command, beyond that of one at the rate of commands. So the key of a scope pays for
    /// expressions, filters and large answers.
    pub(super) fn charge_call_time(&mut self, core: &mut Core<'_>, call: CallId, spent_ns: u64) {
        if spent_ns >= COMMAND_NS
            && let Some(budget) = self.api_calls.budget(call)
        {
            self.charge_call(core, call, budget, Work { spent_ns, ..Work::default() });
        }
    }

    /// Delays the rest of a call and its response until this time, or until a channel has caught up.
    pub(super) fn hold(
        &mut self,
        core: &mut Core<'_>,
        call: CallId,
        until_ms: u64,
        channel: Option<u64>,
    ) {
        core.count(Metric::CommandsDelayed);
        self.api_calls.hold(call, until_ms, channel);
    }
}
