//! Ctrl-C: a run ends early, with the result of what it did.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::say;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C asks for the end of a run, and the second Ctrl-C ends the program.
pub(super) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Without either Ctrl-C ends the program, as it always did.
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

/// With a shell's status of a program that Ctrl-C ended.
#[allow(clippy::exit, reason = "somebody wants it to end now")]
fn end() -> ! {
    std::process::exit(130)
}

/// Whether Ctrl-C was pressed.
pub(super) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
