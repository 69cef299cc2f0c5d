//! Name lookups in separate threads: the system's resolver may block a thread for half a minute. Results are not
//! cached.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::connect::{ConnectError, ConnectFault, Stage};

/// Most lookups at the same time in the process. Further ones wait.
const LOOKUPS_MAX: usize = 32;
const LOOKUP_WITHIN: Duration = Duration::from_secs(10);
/// The resolver of the C library needs less.
const STACK_BYTES: usize = 256 << 10;

static ROOM: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// Looks up the addresses of `HOST:PORT`.
pub(crate) async fn look_up(name: &str, stage: &Stage) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(address) = name.parse() {
        return Ok(vec![address]);
    }
    look_up_by(name, stage, LOOKUP_WITHIN, |name| Ok(name.to_socket_addrs()?.collect())).await
}

async fn look_up_by(
    name: &str,
    stage: &Stage,
    within: Duration,
    resolve: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let silent = format!(
        "{name} cannot be looked up: the DNS does not answer; can this machine reach its name servers?"
    );
    let (reported, found) = oneshot::channel();
    let asked = async {
        let room = ROOM.acquire().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        std::thread::Builder::new()
            .name("dunlin-push-name".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Held until the resolver returns, even if the caller has stopped waiting.
                let _room = room;
                let _ = reported.send(resolve(&name));
            })?;
        found.await.map_err(io::Error::other)?
    };
    let found = stage.within(within, ConnectFault::Dns, silent, asked).await?;
    found.map_err(|error| {
        let why = format!(
            "{name} cannot be looked up ({error}); is the name right, and does the DNS of this machine work?"
        );
        ConnectError::new(ConnectFault::Dns, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_no_name_and_a_name_becomes_addresses() {
        let stage = Stage::default();
        assert_eq!(look_up("[::1]:443", &stage).await.unwrap(), ["[::1]:443".parse().unwrap()]);
        let addresses = look_up("localhost:443", &stage).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback()), "{addresses:?}");
        let error = look_up("no such name:443", &stage).await.unwrap_err();
        assert_eq!(error.fault, ConnectFault::Dns);
        assert!(error.why.contains("is the name right"), "{error}");
    }

    #[tokio::test]
    async fn a_resolver_that_does_not_come_back_keeps_nobody_waiting() {
        let (release, hold) = std::sync::mpsc::channel::<()>();
        let hang = move |_: &str| {
            let _ = hold.recv();
            Ok(Vec::new())
        };
        let stage = Stage::default();
        let error = look_up_by("push.test:443", &stage, Duration::ZERO, hang).await.unwrap_err();
        assert_eq!(error.fault, ConnectFault::Dns);
        assert!(error.why.contains("the DNS does not answer"), "{error}");
        drop(release);
    }
}
