//! A server within another program.

use std::path::PathBuf;
use std::rc::Rc;

use dunlin_config::{Config, Log};
use dunlin_protocol::Codec;

use crate::program::{Authorizer, Handle, HttpRequest, Program, Reply};
use crate::{Ready, ServeError, ServeOptions, serve_program};

/// A server with what a program brings along: an [`Authorizer`], further routes, a protocol of its own ([`Codec`]).
///
/// ```no_run
/// use dunlin_server::{Config, HttpResponse, Server};
///
/// # fn main() -> Result<(), dunlin_server::ServeError> {
/// Server::new(Config::development())
///     .route("/hello/{name}", |request| HttpResponse::text(request.param("name")).into())
///     .run(|ready| println!("http://{}/hello/you", ready.client_addr))
/// # }
/// ```
pub struct Server {
    what: ServeOptions,
    program: Program,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// A server with these settings, which are validated when it runs. They change live through the admin port, as those of
    /// `dunlin serve` do.
    pub fn new(config: Config) -> Server {
        let what = ServeOptions {
            config: config.validate().map(|()| config),
            source: "the program".to_owned(),
            state_dir: None,
            on_log: Box::new(|_| {}),
        };
        Server { what, program: Program::default() }
    }

    /// Keeps the settings in this directory, so that changes outlive the process.
    #[must_use]
    pub fn state(mut self, directory: impl Into<PathBuf>) -> Server {
        self.what.state_dir = Some(directory.into());
        self
    }

    /// Called with `log` of the settings at the start and whenever it has changed: the program decides how to log, by a
    /// subscriber of `tracing`.
    #[must_use]
    pub fn on_log(mut self, on_log: impl Fn(&Log) + Send + 'static) -> Server {
        self.what.on_log = Box::new(on_log);
        self
    }

    /// Has the program decide. `authorizer` is called on each worker's thread, once and after a panic there; what the
    /// authorizers share, the closure brings along.
    #[must_use]
    pub fn authorizer<A: Authorizer>(
        mut self,
        authorizer: impl Fn() -> A + Send + Sync + 'static,
    ) -> Server {
        self.program.authorizer = Some(Box::new(move || Box::new(authorizer())));
        self
    }

    /// One more route on the client port, for every method: `/rooms`, `/rooms/{room}`, `/files/{*path}`. The server's own
    /// paths go first. `handler` runs on the worker and must not block; what takes longer is answered
    /// [later](HttpRequest::later). A body has at most `limits.message_bytes_max`.
    ///
    /// # Panics
    /// The path is malformed, or there is such a route already.
    #[must_use]
    pub fn route(
        mut self,
        path: &str,
        handler: impl Fn(&HttpRequest<'_>) -> Reply + Send + Sync + 'static,
    ) -> Server {
        if let Err(error) = self.program.routes.insert(path, Box::new(handler)) {
            panic!("the route {path:?}: {error}");
        }
        self
    }

    /// A protocol of the program's own, over WebSockets on this path of the client port: what its clients say becomes commands,
    /// and what the server sends becomes its messages. Sessions, permissions, limits and bounded outboxes are those of every client.
    /// `codec` is called on each worker's thread.
    ///
    /// # Panics
    /// There is one already, or the path does not begin with `/`.
    #[must_use]
    pub fn protocol<C: Codec>(
        mut self,
        path: &str,
        codec: impl Fn() -> C + Send + Sync + 'static,
    ) -> Server {
        assert!(path.starts_with('/'), "the path {path:?} of a protocol begins with /");
        assert!(self.program.protocol.is_none(), "one protocol beside ours");
        self.program.protocol = Some((path.to_owned(), Box::new(move || Rc::new(codec()))));
        self
    }

    /// The server API for the program's own threads, routes and authorizers. It can be had before the server runs, and is of
    /// use from then on.
    pub fn handle(&self) -> Handle {
        self.program.handle.clone()
    }

    /// Serves until SIGTERM or SIGINT, then drains and returns. `on_ready` is called once connections are accepted.
    ///
    /// # Errors
    /// What kept the server from starting, or a worker that could not be kept alive.
    pub fn run(self, on_ready: impl FnOnce(&Ready) + 'static) -> Result<(), ServeError> {
        serve_program(self.what, Some(self.program), Box::new(on_ready))
    }
}
