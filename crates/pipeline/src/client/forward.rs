//! The macro that forwards events of the loop to a client.

/// Implements the methods of a [`Handler`](dunlin_net::Handler) that a [`Client`](crate::Client) in one of its fields
/// needs. Use it in the `impl` of the handler. The client ignores events of other connections, so both share one
/// loop. If the handler needs one of these methods for itself, list the others in the macro, and forward every event
/// of a connection that the handler does not own: [`Client::owns`](crate::Client::owns) knows a connection only after
/// its `on_connect` was forwarded.
///
/// ```
/// use dunlin_net::http::{self, Request, Response};
/// use dunlin_net::{Context, Handler, Http, HttpHandler};
/// use dunlin_pipeline::{Caller, Client, HostId, Outcome, Prepared, RequestId, Requests};
///
/// /// Answers every request with what the backend answers to a `GET /`.
/// struct Gateway {
///     client: Client<Answers>,
///     backend: HostId,
///     get: Prepared,
/// }
///
/// impl Handler for Gateway {
///     type Data = ();
///     type Protocols = Http;
///
///     dunlin_pipeline::forward_to_client!(client);
/// }
///
/// impl HttpHandler for Gateway {
///     fn on_request(&mut self, cx: &mut Context<()>, id: http::RequestId, _: &Request<'_>) {
///         if self.client.requests().send(self.backend, &self.get, id.to_u64()).is_err() {
///             let _ = cx.respond(id, &Response::new(503));
///         }
///     }
/// }
///
/// struct Answers;
///
/// impl Caller for Answers {
///     type Data = ();
///
///     fn on_outcome(&mut self, cx: &mut Context<()>, _: &mut Requests<'_>, _: RequestId, tag: u64, outcome: &Outcome<'_>) {
///         let _ = match outcome {
///             Outcome::Answered(answer) => {
///                 let body = answer.body;
///                 cx.respond(http::RequestId::from_u64(tag), &Response { body, ..Response::new(answer.status) })
///             }
///             _ => cx.respond(http::RequestId::from_u64(tag), &Response::new(502)),
///         };
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_to_client {
    ($client:ident) => {
        fn on_connect(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
        ) {
            $crate::net::Handler::on_connect(&mut self.$client, cx, conn);
        }

        fn on_connect_failed(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
            data: Self::Data,
            error: &::std::io::Error,
        ) {
            $crate::net::Handler::on_connect_failed(&mut self.$client, cx, conn, data, error);
        }

        fn on_data(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
            bytes: &[u8],
        ) {
            $crate::net::Handler::on_data(&mut self.$client, cx, conn, bytes);
        }

        fn on_eof(&mut self, cx: &mut $crate::net::Context<Self::Data>, conn: $crate::net::ConnId) {
            $crate::net::Handler::on_eof(&mut self.$client, cx, conn);
        }

        fn on_close(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
            data: Self::Data,
            reason: $crate::net::CloseReason,
        ) {
            $crate::net::Handler::on_close(&mut self.$client, cx, conn, data, reason);
        }

        fn on_writable(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
        ) {
            $crate::net::Handler::on_writable(&mut self.$client, cx, conn);
        }

        fn on_deadline(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            conn: $crate::net::ConnId,
        ) {
            $crate::net::Handler::on_deadline(&mut self.$client, cx, conn);
        }

        fn on_timer(
            &mut self,
            cx: &mut $crate::net::Context<Self::Data>,
            timer: $crate::net::TimerId,
            data: u64,
        ) {
            $crate::net::Handler::on_timer(&mut self.$client, cx, timer, data);
        }

        fn on_tick(&mut self, cx: &mut $crate::net::Context<Self::Data>) {
            $crate::net::Handler::on_tick(&mut self.$client, cx);
        }
    };
}
