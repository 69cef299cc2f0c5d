//! The floors: an HTTP ping-pong over loopback without any work, and the disk's own fsync.

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

/// Serves one connection after another until the program ends: reads a request without parsing it, writes the answer.
/// Uses a blocking thread on `cores`, which costs less than any event loop.
pub(super) fn ping_pong(cores: &[usize]) -> Result<SocketAddr, Error> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for the floor")?;
    let address = listener.local_addr().context("cannot listen for the floor")?;
    let cores = cores.to_vec();
    std::thread::spawn(move || {
        // A failure to pin still gives a valid floor.
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

/// Measures fsyncs a second in this directory, each after a record as long as that of a change.
pub(super) fn syncs_per_s(directory: &Path, time: Duration) -> Result<f64, Error> {
    const RECORD: [u8; 256] = [b'x'; 256];
    let path = directory.join("fsync-floor");
    let sentence = || format!("cannot write {}", path.display());
    let mut file = File::create(&path).context(sentence())?;
    // The log preallocates its space: neither it nor this floor syncs a change of the file size.
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
