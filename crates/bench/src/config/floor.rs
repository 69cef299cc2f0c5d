//! The floors: a ping-pong of HTTP over loopback with nobody doing anything, and the disk's own fsync.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use dunlin_load::{Context, Error};

/// As long as Dunlin's answer to a change.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 13:00:00 GMT\r\n\
    Content-Type: application/json\r\nETag: \"100000\"\r\nContent-Length: 111\r\n\r\n\
    {\"revision\":100000,\"previous\":99999,\"changes\":1,\"durable\":false,\"workers\":{\"total\":2,\"switched\":0,\"asleep\":2}}.\n";

/// Serves one connection after another for as long as the program runs: reads a request as if it had understood
/// it, writes the answer. A thread on `cores`, blocking, which costs less than any loop.
pub(super) fn ping_pong(cores: &[usize]) -> Result<SocketAddr, Error> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for the floor")?;
    let address = listener.local_addr().context("cannot listen for the floor")?;
    let cores = cores.to_vec();
    std::thread::spawn(move || {
        // A floor on another core is still a floor.
        let _ = dunlin_load::system::pin(&cores);
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.set_nodelay(true);
            let mut buffer = [0; 4096];
            // A request of the client is smaller than the buffer and sent with one call.
            while stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                if stream.write_all(ANSWER).is_err() {
                    break;
                }
            }
        }
    });
    Ok(address)
}

/// fsyncs a second in this directory, each behind a record as long as that of a change.
pub(super) fn syncs_per_s(directory: &Path, time: Duration) -> Result<f64, Error> {
    const RECORD: [u8; 256] = [b'x'; 256];
    let path = directory.join("fsync-floor");
    let sentence = || format!("cannot write {}", path.display());
    let mut file = File::create(&path).context(sentence())?;
    // The log reserves its space ahead: neither is a change of the file's size part of each of its syncs.
    file.set_len(16 << 20).context(sentence())?;
    file.sync_all().context(sentence())?;
    let began = Instant::now();
    let mut syncs = 0_u32;
    while began.elapsed() < time {
        file.write_all(&RECORD).context(sentence())?;
        file.sync_data().context(sentence())?;
        syncs += 1;
    }
    let rate = f64::from(syncs) / began.elapsed().as_secs_f64();
    std::fs::remove_file(&path).context(sentence())?;
    Ok(rate)
}
