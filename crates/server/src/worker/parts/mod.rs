//! The parts of a worker's machines. Each owns its fields, takes input through `&mut self` and returns what is to be done.
//!
//! None of them knows the worker, a socket, the bus or a clock, so their tests run in virtual time. A machine
//! owns some of them: see [`turn`](super::turn).

mod accept_gate;
mod accept_limits;
mod address_rates;
mod adopted_settings;
mod affected_counter;
mod api_calls;
mod backlogs;
mod budgets;
mod buffer_gate;
mod call_rest;
mod capability_table;
mod clock;
mod connects;
mod decisions;
mod drain;
mod fanout_gate;
mod flow_bytes;
mod grants;
mod heartbeat;
mod large_answers;
mod peer_addresses;
mod pending;
mod polls;
mod program_conns;
mod proxy_calls;
mod push_calls;
mod pusher_sessions;
mod session_params;
mod sweeps;
mod token_table;
mod webhook_emitter;

use dunlin_wire::backoff::Jitter;
use hashbrown::HashMap;

use self::accept_gate::AcceptGate;
pub(super) use self::accept_limits::{AcceptLimits, Handshake};
use self::address_rates::AddressRates;
pub(super) use self::adopted_settings::AdoptedSettings;
pub(super) use self::affected_counter::AffectedCounter;
pub(super) use self::api_calls::{ApiCalls, CallForm, CallId, CommandSlot, KeyScope, NewCall};
pub(super) use self::backlogs::{Backlogs, Frames, ONCE_ANSWERED};
pub(super) use self::budgets::Budgets;
pub(super) use self::buffer_gate::{BufferGate, BufferHolder};
pub(super) use self::call_rest::{BroadcastRest, CallCommands, RestCommands};
pub(super) use self::capability_table::CapabilityTable;
pub(super) use self::clock::Clock;
pub(super) use self::connects::{Connected, Connects, NewConnect};
pub(super) use self::decisions::{DecisionKey, Decisions};
pub(super) use self::drain::{Drain, STEP_MS as DRAIN_STEP_MS};
pub(super) use self::fanout_gate::FanoutGate;
pub(super) use self::grants::{Grant, GrantKey, GrantSource, GrantToken, Grants};
pub(super) use self::heartbeat::{Heartbeat, TokenFacts, first_ping_ms};
pub(super) use self::large_answers::LargeAnswers;
pub(super) use self::peer_addresses::PeerAddresses;
pub(super) use self::pending::{
    AckBy, CommandPlace, DeadLetter, Pending, PendingAck, PendingRequests,
};
pub(super) use self::polls::{Missed, Poll, PollStep, Polls};
pub(super) use self::program_conns::{CallAnswer, ProgramConn, ProgramConns, Stage};
pub(super) use self::proxy_calls::{
    ForwardedData, ForwardedFields, ForwardedTable, ProxyCall, ProxyCalls,
};
pub(super) use self::push_calls::{PushCalls, PushStep};
pub(super) use self::pusher_sessions::PusherSessions;
pub(super) use self::session_params::SessionParams;
pub(super) use self::sweeps::{Sweeps, TenantSweep};
pub(super) use self::webhook_emitter::{Emitted, WebhookEmitter};

/// Keys are this process's own numbers: clients do not choose them.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
