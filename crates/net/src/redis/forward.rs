//! Forwarding what the loop says to a client that is part of a handler.

/// Forwards to a [`Client`](crate::redis::Client) in a field of a [`Handler`](crate::Handler) what concerns its connection,
/// in the `impl` of that handler: all but `on_data`, which says what becomes of replies. The client ignores what is not
/// its own. A handler that defines one of these methods itself forwards all of them by hand.
///
/// ```
/// use dunlin_net::redis::{Client, Received};
/// use dunlin_net::{ConnId, Context, Handler};
///
/// struct Counter {
///     redis: Client,
///     replies: usize,
/// }
///
/// impl Handler for Counter {
///     type Data = ();
///
///     fn on_data(&mut self, cx: &mut Context<()>, conn: ConnId, bytes: &[u8]) {
///         self.redis.handle_data(cx, conn, bytes, |_, _, received| {
///             if let Received::Reply(_, _) = received {
///                 self.replies += 1;
///             }
///         });
///     }
///
///     fn on_tick(&mut self, _: &mut Context<()>) {
///         while let Some(lost) = self.redis.poll_lost() {
///             eprintln!("command {} has no reply", lost.token);
///         }
///     }
///
///     dunlin_net::forward_to_redis!(redis);
/// }
/// ```
#[macro_export]
macro_rules! forward_to_redis {
    ($client:tt) => {
        fn on_connect(&mut self, cx: &mut $crate::Context<Self::Data>, conn: $crate::ConnId) {
            self.$client.handle_connect(cx, conn);
        }

        fn on_connect_failed(
            &mut self,
            cx: &mut $crate::Context<Self::Data>,
            conn: $crate::ConnId,
            _: Self::Data,
            error: &::std::io::Error,
        ) {
            self.$client.handle_connect_failed(cx, conn, error);
        }

        fn on_writable(&mut self, cx: &mut $crate::Context<Self::Data>, conn: $crate::ConnId) {
            self.$client.handle_writable(cx, conn);
        }

        fn on_close(
            &mut self,
            cx: &mut $crate::Context<Self::Data>,
            conn: $crate::ConnId,
            _: Self::Data,
            _: $crate::CloseReason,
        ) {
            self.$client.handle_close(cx, conn);
        }

        fn on_timer(
            &mut self,
            cx: &mut $crate::Context<Self::Data>,
            timer: $crate::TimerId,
            _: u64,
        ) {
            self.$client.handle_timer(cx, timer);
        }
    };
}
