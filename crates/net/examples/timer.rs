//! Timers, a callback from another thread, and signals: Ctrl-C ends it.

use dunlin_net::{Context, EventLoop, Handler, LoopConfig, Tcp, TimerId};

const ONCE: u64 = 1;
const BEAT: u64 = 2;
const SIGINT: i32 = 2;

struct Clock {
    beats: u32,
}
impl Handler for Clock {
    type Data = ();
    type Protocols = Tcp;

    fn on_timer(&mut self, cx: &mut Context<()>, timer: TimerId, data: u64) {
        if data == ONCE {
            return println!("once");
        }
        self.beats += 1;
        println!("beat {}", self.beats);
        if self.beats == 3 {
            cx.cancel(timer);
        }
    }

    fn on_signal(&mut self, cx: &mut Context<()>, signal: i32) {
        println!("signal {signal} after {} beats", self.beats);
        cx.stop();
    }
}

fn main() -> std::io::Result<()> {
    let mut event_loop = EventLoop::new(LoopConfig::default())?;
    event_loop.context().register_signals(&[SIGINT])?;
    event_loop.context().run_every(20, BEAT);
    let remote = event_loop.remote();
    std::thread::spawn(move || remote.run(|_: &mut Clock, cx| _ = cx.run_after(5, ONCE)));
    event_loop.run(&mut Clock { beats: 0 })
}
