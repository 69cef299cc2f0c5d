//! An endpoint's doorbell in a tokio runtime.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// The doorbell of an [`Endpoint`](crate::Endpoint) whose thread runs a tokio runtime. Created by
/// [`Endpoint::async_doorbell`](crate::Endpoint::async_doorbell); does not borrow the endpoint.
///
/// ```
/// # use dunlin_bus::{MeshConfig, mesh};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let [mut worker, mut endpoint] = mesh(2, &MeshConfig::default())?.try_into().unwrap();
/// # worker.send(1, "stop").unwrap();
/// # std::thread::spawn(move || { worker.send(1, "stop").unwrap(); worker.flush() });
/// let doorbell = endpoint.async_doorbell()?;
/// loop {
///     if endpoint.prepare_sleep() {
///         doorbell.rung().await?; // or in a `select!` with everything else
///     }
///     endpoint.wake();
///     while let Some((_from, message)) = endpoint.recv() {
///         // …
///         if message == "stop" {
///             return Ok(());
///         }
///     }
///     endpoint.flush();
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncDoorbell(AsyncFd<OwnedFd>);

impl AsyncDoorbell {
    pub(crate) fn new(doorbell: OwnedFd) -> io::Result<AsyncDoorbell> {
        // SAFETY: the `AsyncFd` owns the descriptor and never lends it mutably, so it stays open
        // and the same until it is deregistered.
        let doorbell = unsafe { AsyncFd::register_with_interest(doorbell, Interest::READABLE) }?;
        Ok(AsyncDoorbell(doorbell))
    }

    /// Waits until the doorbell rings; returns at once if it rang since the last call. It may have
    /// rung for a sleep that has already ended. Cancel safe.
    ///
    /// # Errors
    /// If the runtime shuts down.
    pub async fn rung(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
