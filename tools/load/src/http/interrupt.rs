//! Ctrl-C: ends a run early, with its results so far.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::say;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C end the run from here on, and a second Ctrl-C the program.
pub(super) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // If this fails, Ctrl-C ends the program as usual.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        let interrupts = {
            let _entered = runtime.enter();
            signal(SignalKind::interrupt())
        };
        let Ok(mut interrupts) = interrupts else { return };
        std::thread::spawn(move || {
            while runtime.block_on(interrupts.recv()).is_some() {
                if ASKED.swap(true, Ordering::Relaxed) {
                    end();
                }
                say("\nending; once more to end at once");
            }
        });
    });
}

/// Exits with a shell's status for a program ended by Ctrl-C.
#[allow(clippy::exit, reason = "somebody wants it to end now")]
fn end() -> ! {
    std::process::exit(130)
}

/// Returns whether Ctrl-C was pressed.
pub(super) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
