//! A path of any length: carries TCP both ways, each byte half a round trip late.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use crate::Refusal;

/// Bytes under way in one direction beyond which the sender has to wait.
const PIECES_MAX: usize = 4_096;

/// Listens on a port of its own and carries to `address`; lives as long as the process.
pub(super) fn start(address: String, rtt: Duration) -> Result<SocketAddr, Refusal> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("delay-line".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async move {
            let Ok(listener) = TcpListener::bind("127.0.0.1:0").await else { return };
            if let Ok(at) = listener.local_addr() {
                let _ = sender.send(at);
            }
            while let Ok((near, _)) = listener.accept().await {
                let address = address.clone();
                tokio::spawn(async move {
                    // The handshake takes a round trip too.
                    tokio::time::sleep(rtt).await;
                    let Ok(far) = TcpStream::connect(&address).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    let there = carry(near_read, far_write, rtt / 2);
                    let back = carry(far_read, near_write, rtt / 2);
                    tokio::join!(there, back);
                });
            }
        });
    })?;
    receiver.recv().map_err(|_| "the delay line could not listen on 127.0.0.1".into())
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, late: Duration) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let reading = async move {
        loop {
            let mut piece = Vec::with_capacity(16 << 10);
            match from.read_buf(&mut piece).await {
                Ok(1..) => {}
                _ => return,
            }
            if sender.send((Instant::now() + late, piece)).await.is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((at, piece)) = receiver.recv().await {
            if !late.is_zero() {
                sleep_until(at).await;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}
