//! A server whose program decides: who a client is, who may enter a room, what a procedure returns.
//!
//! `cargo run -p dunlin-server --example rooms`, then `curl 127.0.0.1:8000/announce/hello`.

use dunlin_server::{
    Authorizer, Config, Connect, ConnectResult, Decision, Denial, ErrorCode, HttpResponse, Rpc,
    RpcResult, ServeError, Server, Subscribe, SubscribeResult,
};

struct Rooms;

impl Authorizer for Rooms {
    fn connect(&mut self, ask: &Connect<'_>) -> Decision<ConnectResult> {
        let token = ask.token.to_owned();
        // As with a database: the answer comes later, from another thread.
        ask.later(|answer| {
            std::thread::spawn(move || match token.strip_prefix("key of ") {
                Some(user) => answer.send(Ok(ConnectResult::user(user).subscribe("news"))),
                None => answer.send(Err(Denial::disconnect(4501, "nobody has this key"))),
            });
        })
    }

    fn subscribe(&mut self, ask: &Subscribe<'_>) -> Decision<SubscribeResult> {
        match ask.channel.split_once("'s room") {
            Some((owner, _)) if owner == ask.client.user => Decision::grant(Default::default()),
            Some(_) => Decision::deny(ErrorCode::PermissionDenied),
            None => Decision::rules(),
        }
    }

    fn rpc(&mut self, ask: &Rpc<'_>) -> Decision<RpcResult> {
        match ask.method {
            "who am I" => Decision::grant(RpcResult::data(ask.client.user)),
            _ => Decision::rules(),
        }
    }
}

pub(crate) fn server(config: Config) -> Server {
    let server = Server::new(config).authorizer(|| Rooms);
    let handle = server.handle();
    server.route("/announce/{text}", move |request| {
        match handle.publish("news", request.param("text")) {
            Ok(()) => HttpResponse::text("published\n").into(),
            Err(error) => {
                HttpResponse { status: 503, ..HttpResponse::text(error.to_string()) }.into()
            }
        }
    })
}

fn main() -> Result<(), ServeError> {
    let serving = |ready: &dunlin_server::Ready| println!("serving at {}", ready.client_addr);
    server(Config::development()).run(serving)
}
