//! The macro that forwards events of the loop to a Redis client.

/// Implements the methods of a [`Handler`](crate::Handler) that a [`Client`](crate::redis::Client) in one of its fields
/// needs. Use it in the `impl` of the handler. `on_data` is not included: the handler implements it to receive replies.
/// The client ignores events of other connections. If the handler needs one of these methods itself, implement all of
/// them manually.
///
/// ```
/// use dunlin_net::redis::{Client, Received};
/// use dunlin_net::{ConnId, Context, Handler, Tcp};
///
/// struct Counter {
///     redis: Client,
///     replies: usize,
/// }
///
/// impl Handler for Counter {
///     type Data = ();
///     type Protocols = Tcp;
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
