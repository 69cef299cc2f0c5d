//! The bus between the threads: what each of them receives is a type of its own, and an address names that type, so that a message
//! for another thread does not compile.
//!
//! All messages of one sender to one receiver share a ring and arrive in order, whatever they are about.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use dunlin_bus::{MeshConfig, SendError, mesh};
use dunlin_push_service::message::PushMessage;

use super::admin::AdminMessage;
use super::control::ControlMessage;
use super::federation::FederationMessage;
use super::webhooks::WebhooksMessage;
use super::worker::WorkerMessage;

/// Threads with an endpoint on the bus beside the workers.
pub(crate) const OTHER_THREADS: usize = 5;

/// What a ring carries. Only addresses make one.
pub(crate) struct Envelope(Content);

enum Content {
    Worker(WorkerMessage),
    Control(ControlMessage),
    Admin(AdminMessage),
    Push(PushMessage),
    Webhooks(WebhooksMessage),
    Federation(FederationMessage),
}

// The largest message is the hub's. A ring has a slot of this size for each message of a burst.
const _: () = assert!(size_of::<WorkerMessage>() <= 64);
const _: () = assert!(size_of::<Envelope>() <= 64);

/// What one kind of thread receives.
pub(crate) trait Received: Sized {
    fn seal(self) -> Envelope;
    /// `None`: it is for another kind of thread.
    fn open(envelope: Envelope) -> Option<Self>;
}

macro_rules! received {
    ($($message:ident is $content:ident;)*) => {$(
        impl Received for $message {
            #[inline]
            fn seal(self) -> Envelope {
                Envelope(Content::$content(self))
            }

            #[inline]
            fn open(envelope: Envelope) -> Option<Self> {
                match envelope.0 {
                    Content::$content(message) => Some(message),
                    _ => None,
                }
            }
        }
    )*};
}

received! {
    WorkerMessage is Worker;
    ControlMessage is Control;
    AdminMessage is Admin;
    PushMessage is Push;
    WebhooksMessage is Webhooks;
    FederationMessage is Federation;
}

/// The place on the bus of a thread that receives `M`.
pub(crate) struct Address<M> {
    index: usize,
    receives: PhantomData<fn(M)>,
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Address<M> {}

impl<M: Received> Address<M> {
    fn at(index: usize) -> Self {
        Address { index, receives: PhantomData }
    }

    /// Addresses a message that has to wait before it is sent.
    pub(crate) fn seal(self, message: impl Into<M>) -> Addressed {
        Addressed { to: self.index, content: message.into().seal() }
    }
}

/// A message with its address.
pub(crate) struct Addressed {
    to: usize,
    content: Envelope,
}

impl Addressed {
    /// Returns the number of the receiver's endpoint.
    pub(crate) fn to(&self) -> usize {
        self.to
    }
}

/// The addresses of all threads: workers first, then the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    workers: usize,
}

impl Addresses {
    pub(crate) fn new(workers: usize) -> Addresses {
        Addresses { workers }
    }

    pub(crate) fn worker(self, index: usize) -> Address<WorkerMessage> {
        debug_assert!(index < self.workers, "worker {index} of {}", self.workers);
        Address::at(index)
    }

    pub(crate) fn control(self) -> Address<ControlMessage> {
        Address::at(self.workers)
    }

    pub(crate) fn admin(self) -> Address<AdminMessage> {
        Address::at(self.workers + 1)
    }

    pub(crate) fn push(self) -> Address<PushMessage> {
        Address::at(self.workers + 2)
    }

    pub(crate) fn webhooks(self) -> Address<WebhooksMessage> {
        Address::at(self.workers + 3)
    }

    pub(crate) fn federation(self) -> Address<FederationMessage> {
        Address::at(self.workers + 4)
    }
}

/// The endpoint of a thread that receives `R`. Everything but sending and receiving is [`dunlin_bus::Endpoint`]'s.
pub(crate) struct Endpoint<R> {
    bus: dunlin_bus::Endpoint<Envelope>,
    receives: PhantomData<fn(R)>,
}

impl<R: Received> Endpoint<R> {
    fn of(bus: dunlin_bus::Endpoint<Envelope>) -> Self {
        Endpoint { bus, receives: PhantomData }
    }

    /// Sends a message: see [`dunlin_bus::Endpoint::send`].
    #[inline]
    pub(crate) fn send<M: Received>(
        &mut self,
        to: Address<M>,
        message: impl Into<M>,
    ) -> Result<(), SendError<M>> {
        self.bus.send(to.index, message.into().seal()).map_err(opened)
    }

    /// Sends a message that has waited. An error has it, to wait further.
    pub(crate) fn send_addressed(
        &mut self,
        message: Addressed,
    ) -> Result<(), SendError<Addressed>> {
        let Addressed { to, content } = message;
        self.bus
            .send(to, content)
            .map_err(|error| with_value(error, |content| Addressed { to, content }))
    }

    /// Returns the next message and the number of its sender.
    #[inline]
    pub(crate) fn recv(&mut self) -> Option<(usize, R)> {
        let (from, envelope) = self.bus.recv()?;
        let message = R::open(envelope);
        debug_assert!(message.is_some(), "an address has the type that its thread receives");
        message.map(|message| (from, message))
    }
}

impl<R> Deref for Endpoint<R> {
    type Target = dunlin_bus::Endpoint<Envelope>;

    fn deref(&self) -> &Self::Target {
        &self.bus
    }
}

impl<R> DerefMut for Endpoint<R> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.bus
    }
}

#[cold]
fn opened<M: Received>(error: SendError<Envelope>) -> SendError<M> {
    with_value(error, |envelope| {
        M::open(envelope).unwrap_or_else(|| unreachable!("it was given one"))
    })
}

fn with_value<A, B>(error: SendError<A>, map: impl FnOnce(A) -> B) -> SendError<B> {
    match error {
        SendError::Full { to, value } => SendError::Full { to, value: map(value) },
        SendError::Closed { to, value } => SendError::Closed { to, value: map(value) },
        SendError::Unknown { to, value } => SendError::Unknown { to, value: map(value) },
    }
}

/// The endpoints of all threads.
pub(crate) struct Bus {
    pub(crate) workers: Vec<Endpoint<WorkerMessage>>,
    pub(crate) control: Endpoint<ControlMessage>,
    pub(crate) admin: Endpoint<AdminMessage>,
    pub(crate) push: Endpoint<PushMessage>,
    pub(crate) webhooks: Endpoint<WebhooksMessage>,
    pub(crate) federation: Endpoint<FederationMessage>,
}

impl Bus {
    /// Opens the bus, each edge with at most `ring_slots` messages.
    pub(crate) fn open(workers: usize, ring_slots: usize) -> io::Result<Bus> {
        let config = MeshConfig { ring_slots, ..MeshConfig::default() };
        let mut endpoints = mesh(workers + OTHER_THREADS, &config)?;
        let others = endpoints.split_off(workers);
        let others: [_; OTHER_THREADS] =
            others.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"));
        let [control, admin, push, webhooks, federation] = others;
        Ok(Bus {
            workers: endpoints.into_iter().map(Endpoint::of).collect(),
            control: Endpoint::of(control),
            admin: Endpoint::of(admin),
            push: Endpoint::of(push),
            webhooks: Endpoint::of(webhooks),
            federation: Endpoint::of(federation),
        })
    }
}

/// The endpoints of a bus without push thread and webhooks thread, to which sending fails.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) struct SmallBus {
    pub(crate) workers: Vec<Endpoint<WorkerMessage>>,
    pub(crate) control: Endpoint<ControlMessage>,
    pub(crate) admin: Endpoint<AdminMessage>,
}

#[cfg(any(test, feature = "fuzz"))]
impl SmallBus {
    pub(crate) fn open(workers: usize) -> io::Result<SmallBus> {
        let mut endpoints = mesh(workers + 2, &MeshConfig::default())?;
        let mut others = endpoints.split_off(workers).into_iter();
        let mut other = || others.next().unwrap_or_else(|| unreachable!("two were asked for"));
        let (control, admin) = (other(), other());
        let workers = endpoints.into_iter().map(Endpoint::of).collect();
        Ok(SmallBus { workers, control: Endpoint::of(control), admin: Endpoint::of(admin) })
    }
}

#[cfg(test)]
mod tests {
    use dunlin_cluster::message::{ClusterMessage, ClusterToWorker};

    use super::*;

    #[test]
    fn messages_of_one_sender_whatever_their_room_arrive_in_order() {
        let SmallBus { mut workers, mut control, mut admin } = SmallBus::open(2).unwrap();
        let to = Addresses::new(2);
        let one = to.worker(1);
        assert!(control.send(one, WorkerMessage::KeysFetched).is_ok());
        assert!(control.send(one, ClusterToWorker::NodeNumber).is_ok());
        assert!(control.send_addressed(one.seal(ClusterToWorker::ListMembers)).is_ok());
        assert!(control.send(one, WorkerMessage::Drain).is_ok());
        assert!(workers[1].send(to.control(), ControlMessage::WantKeys).is_ok());
        assert!(workers[1].send(to.control(), ClusterMessage::UsersChanged).is_ok());
        assert!(workers[1].send(to.admin(), AdminMessage::SettingsAdopted).is_ok());
        let mut next = || {
            workers[1].recv().map(|(from, message)| {
                assert_eq!(from, 2, "the control thread's endpoint is behind the workers'");
                message
            })
        };
        assert!(matches!(next(), Some(WorkerMessage::KeysFetched)));
        assert!(matches!(next(), Some(WorkerMessage::Cluster(ClusterToWorker::NodeNumber))));
        assert!(matches!(next(), Some(WorkerMessage::Cluster(ClusterToWorker::ListMembers))));
        assert!(matches!(next(), Some(WorkerMessage::Drain)));
        assert!(next().is_none());
        assert!(matches!(control.recv(), Some((1, ControlMessage::WantKeys))));
        let (_, message) = control.recv().unwrap();
        assert!(matches!(message, ControlMessage::Cluster(ClusterMessage::UsersChanged)));
        assert!(matches!(admin.recv(), Some((1, AdminMessage::SettingsAdopted))));
    }

    #[test]
    fn a_refused_message_comes_back_as_the_type_that_was_sent() {
        let SmallBus { mut workers, control: _control, admin: _admin } = SmallBus::open(1).unwrap();
        workers[0].set_ring_slots(1);
        let to = Addresses::new(1);
        assert!(workers[0].send(to.control(), ControlMessage::WantKeys).is_ok());
        let refused = workers[0].send(to.control(), ClusterMessage::UsersChanged).unwrap_err();
        assert!(refused.is_full());
        let refused = refused.into_value();
        assert!(matches!(refused, ControlMessage::Cluster(ClusterMessage::UsersChanged)));
        // There is no push thread.
        assert!(workers[0].send(to.push(), PushMessage::CallerGone { call: 7 }).is_err());
    }
}
