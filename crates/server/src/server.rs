//! A server embedded in another program.

use std::path::PathBuf;
use std::rc::Rc;

use dunlin_config::{Config, Log};
use dunlin_protocol::Codec;

use crate::program::{Authorizer, Handle, HttpRequest, Program, Reply};
use crate::{Ready, ServeError, ServeOptions, ValidConfig, serve_program};

/// A server with extensions of a program: an [`Authorizer`], additional routes, a custom protocol
/// ([`Codec`]).
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
    /// Creates a server with these settings. They are validated; [`run`](Server::run) returns their errors. They can be changed live
    /// through the admin port, as with `dunlin serve`.
    pub fn new(config: Config) -> Server {
        let what = ServeOptions {
            reload: None,
            config: ValidConfig::new(config),
            source: "the program".to_owned(),
            state_dir: None,
            on_log: Box::new(|_| {}),
        };
        Server { what, program: Program::default() }
    }

    /// Stores the settings in this directory, so that changes survive a restart.
    #[must_use]
    pub fn state(mut self, directory: impl Into<PathBuf>) -> Server {
        self.what.state_dir = Some(directory.into());
        self
    }

    /// Sets a function that is called with the `log` settings at the start and after each change. The program
    /// decides how to log, with a `tracing` subscriber.
    #[must_use]
    pub fn on_log(mut self, on_log: impl Fn(&Log) + Send + 'static) -> Server {
        self.what.on_log = Box::new(on_log);
        self
    }

    /// Sets the authorizer. `authorizer` is called on each worker's thread, at the start and after a panic
    /// there. State shared by the authorizers is captured by the closure.
    #[must_use]
    pub fn authorizer<A: Authorizer>(
        mut self,
        authorizer: impl Fn() -> A + Send + Sync + 'static,
    ) -> Server {
        self.program.authorizer = Some(Box::new(move || Box::new(authorizer())));
        self
    }

    /// Adds a route on the client port, for every method: `/rooms`, `/rooms/{room}`, `/files/{*path}`. The
    /// server's own paths take precedence. `handler` runs on the worker and must not block; use
    /// [`later`](HttpRequest::later) for responses that take time. A body has at most
    /// `limits.message_bytes_max`.
    ///
    /// # Panics
    ///
    /// Panics if the path is malformed, or has a route already.
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

    /// Adds a custom protocol over WebSockets on this path of the client port: the codec translates messages
    /// of its clients to commands, and replies and pushes to messages. Sessions, permissions, limits and
    /// outboxes are those of every client. `codec` is called on each worker's thread.
    ///
    /// # Panics
    ///
    /// Panics if there is a custom protocol already, or the path does not begin with `/`.
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

    /// The server API for threads, routes and authorizers of the program. The handle can be created before
    /// the server runs, and works while it runs.
    pub fn handle(&self) -> Handle {
        self.program.handle.clone()
    }

    /// Serves until SIGTERM or SIGINT, then drains and returns. `on_ready` is called once connections are
    /// accepted.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot start, or a worker cannot be kept alive.
    pub fn run(self, on_ready: impl FnOnce(&Ready) + 'static) -> Result<(), ServeError> {
        serve_program(self.what, Some(self.program), Box::new(on_ready))
    }
}
