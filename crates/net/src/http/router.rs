//! Selects the route of a request by method and path pattern.

use std::collections::HashMap;

pub use matchit::Params;

/// The routes of a server. Each maps a method and a path pattern to a value of the application, usually a function
/// pointer.
///
/// In a pattern, `{name}` matches one segment and `{*name}` matches all remaining ones. A literal segment takes
/// precedence over a parameter. A `HEAD` request without a route of its own uses the route of `GET`.
///
/// ```
/// use dunlin_net::http::{NoRoute, Router};
///
/// let mut router = Router::new();
/// router.add("GET", "/users/{id}", 1)?.add("POST", "/users", 2)?.add("GET", "/static/{*path}", 3)?;
/// let found = router.find("GET", "/users/7")?;
/// assert_eq!((*found.value, found.params.get("id")), (1, Some("7")));
/// assert_eq!(router.find("GET", "/none").unwrap_err(), NoRoute::NotFound);
/// assert_eq!(router.find("GET", "/users").unwrap_err().status(), 405);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a handler, with functions for values:
///
/// ```
/// use dunlin_net::http::{NoRoute, Params, Request, RequestId, Response, Router};
/// use dunlin_net::{Context, Handler, Http, HttpHandler};
///
/// type Page = fn(&mut Context<()>, RequestId, &Request<'_>, &Params<'_, '_>);
///
/// struct Pages(Router<Page>);
///
/// impl Handler for Pages {
///     type Data = ();
///     type Protocols = Http;
/// }
///
/// impl HttpHandler for Pages {
///     fn on_request(&mut self, cx: &mut Context<()>, id: RequestId, request: &Request<'_>) {
///         let answered = match self.0.find(request.method, request.path) {
///             Ok(found) => return (found.value)(cx, id, request, &found.params),
///             Err(NoRoute::MethodNotAllowed { allow }) => {
///                 let headers = &[("Allow", allow.as_str())];
///                 cx.respond(id, &Response { status: 405, headers, body: b"" })
///             }
///             Err(NoRoute::NotFound) => {
///                 cx.respond(id, &Response { status: 404, headers: &[], body: b"" })
///             }
///         };
///         if answered.is_err() {
///             cx.abort(id.conn());
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Router<T> {
    patterns: matchit::Router<usize>,
    places: HashMap<String, usize>,
    /// The routes of each pattern, by method.
    routes: Vec<Vec<(String, T)>>,
}

/// The route that matches a request.
#[derive(Debug)]
pub struct Match<'r, T> {
    /// The value that was added for the route.
    pub value: &'r T,
    /// The values of the pattern's parameters.
    pub params: Params<'r, 'r>,
}

/// The error for a request that matches no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No pattern matches the path. Respond with 404.
    #[error("no route for this path")]
    NotFound,
    /// A pattern matches the path, but has no route for this method. Respond with 405 and this `Allow` header.
    #[error("the path takes {allow} only")]
    MethodNotAllowed {
        /// The methods that have a route, separated by commas.
        allow: String,
    },
}

/// The error for a route that cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The pattern is malformed, or conflicts with a pattern that matches the same paths.
    #[error("the path pattern cannot be added: {0}")]
    Pattern(String),
    /// The pattern already has a route for this method.
    #[error("method and path have a route already")]
    Duplicate,
}

impl<T> Default for Router<T> {
    fn default() -> Router<T> {
        Router::new()
    }
}

impl<T> Router<T> {
    /// Creates a router without routes.
    pub fn new() -> Router<T> {
        Router { patterns: matchit::Router::new(), places: HashMap::new(), routes: Vec::new() }
    }

    /// Adds a route.
    ///
    /// # Errors
    ///
    /// Returns [`RouteError`] if the route cannot be added; the router is unchanged.
    pub fn add(
        &mut self,
        method: &str,
        pattern: &str,
        value: T,
    ) -> Result<&mut Router<T>, RouteError> {
        let place = match self.places.get(pattern) {
            Some(&place) => place,
            None => {
                let place = self.routes.len();
                let inserted = self.patterns.insert(pattern, place);
                inserted.map_err(|error| RouteError::Pattern(error.to_string()))?;
                self.places.insert(pattern.to_owned(), place);
                self.routes.push(Vec::new());
                place
            }
        };
        if self.routes[place].iter().any(|(other, _)| other == method) {
            return Err(RouteError::Duplicate);
        }
        self.routes[place].push((method.to_owned(), value));
        Ok(self)
    }

    /// Finds the route of a request. `method` is a [`Method`](super::Method) or the name of one.
    ///
    /// # Errors
    ///
    /// Returns [`NoRoute`], which has the status to respond with.
    pub fn find<'r>(
        &'r self,
        method: impl AsRef<str>,
        path: &'r str,
    ) -> Result<Match<'r, T>, NoRoute> {
        let method = method.as_ref();
        let found = self.patterns.at(path).map_err(|_| NoRoute::NotFound)?;
        let routes = &self.routes[*found.value];
        let by = |method: &str| routes.iter().find(|(other, _)| other == method);
        match by(method).or_else(|| by("GET").filter(|_| method == "HEAD")) {
            Some((_, value)) => Ok(Match { value, params: found.params }),
            None => {
                let mut methods: Vec<&str> =
                    routes.iter().map(|(method, _)| method.as_str()).collect();
                if by("GET").is_some() && by("HEAD").is_none() {
                    methods.push("HEAD");
                }
                Err(NoRoute::MethodNotAllowed { allow: methods.join(", ") })
            }
        }
    }
}

impl NoRoute {
    /// Returns the HTTP status to respond with: 404 or 405.
    pub fn status(&self) -> u16 {
        match self {
            NoRoute::NotFound => 404,
            NoRoute::MethodNotAllowed { .. } => 405,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_go_before_parameters_and_head_takes_the_route_of_get() {
        let mut router = Router::new();
        for (method, pattern) in
            [("GET", "/a/{id}"), ("GET", "/a/b"), ("PUT", "/a/{id}"), ("HEAD", "/a/b")]
        {
            router.add(method, pattern, format!("{method} {pattern}")).expect("a new route");
        }
        let found = |method, path| router.find(method, path).expect("a route").value.clone();
        assert_eq!(found("GET", "/a/b"), "GET /a/b");
        assert_eq!(found("GET", "/a/c"), "GET /a/{id}");
        assert_eq!(found("HEAD", "/a/c"), "GET /a/{id}");
        assert_eq!(found("HEAD", "/a/b"), "HEAD /a/b");
        assert_eq!(
            router.find("POST", "/a/c").expect_err("no route"),
            NoRoute::MethodNotAllowed { allow: "GET, PUT, HEAD".to_owned() }
        );
        assert_eq!(router.add("GET", "/a/b", String::new()).err(), Some(RouteError::Duplicate));
        let same = router.add("GET", "/a/{other}", String::new());
        assert!(matches!(same, Err(RouteError::Pattern(_))), "{same:?}");
    }
}
