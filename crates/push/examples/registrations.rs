//! What registrations cost that come together: one transaction each, and in groups. Give a directory on the disk in
//! question; 64 callers register one device after the other, five seconds each way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_push::registry::{Change, Device, Platform, Registry, Writer};

const CALLERS: usize = 64;
const TIME: Duration = Duration::from_secs(5);

fn change(caller: usize, n: usize) -> Change {
    let (app, token) = ("com.example.app".to_owned(), format!("{caller:08x}{n:056x}"));
    let devices = vec![Device { platform: Platform::Apns, app, token }];
    Change::Register { user: format!("user-{caller}-{n}"), devices, now_ms: 1 }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    for grouped in [false, true] {
        let file = directory.join(format!("registrations-{}.redb", std::process::id()));
        let registry = Arc::new(Registry::open(&file)?);
        let writer = Writer::start(Arc::clone(&registry));
        let end = Instant::now() + TIME;
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let (registry, writer) = (Arc::clone(&registry), writer.clone());
            callers.spawn(async move {
                let mut n = 0;
                while Instant::now() < end {
                    let change = change(caller, n);
                    if grouped {
                        writer.write(change).await.expect("it is written");
                    } else {
                        let registry = Arc::clone(&registry);
                        let alone = move || registry.apply(&[change]).expect("it is written");
                        tokio::task::spawn_blocking(alone).await.expect("it ends");
                    }
                    n += 1;
                }
                n
            });
        }
        let count: usize = callers.join_all().await.into_iter().sum();
        let how = if grouped { "in groups" } else { "one transaction each" };
        println!("{how}: {} registrations a second", count as u64 / TIME.as_secs());
        drop((registry, writer));
        std::fs::remove_file(&file)?;
    }
    Ok(())
}
