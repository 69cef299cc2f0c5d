//! Request methods.

/// A request method (RFC 9110 §9). Methods are case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method<'a> {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `PATCH` (RFC 5789)
    Patch,
    /// `TRACE`
    Trace,
    /// `CONNECT`; [`decode_request`](super::decode_request) refuses it.
    Connect,
    /// Any other token.
    Other(&'a str),
}

impl AsRef<str> for Method<'_> {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl<'a> Method<'a> {
    /// Returns the method with this name.
    pub fn new(token: &'a str) -> Method<'a> {
        match token {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" => Method::Post,
            "PUT" => Method::Put,
            "DELETE" => Method::Delete,
            "OPTIONS" => Method::Options,
            "PATCH" => Method::Patch,
            "TRACE" => Method::Trace,
            "CONNECT" => Method::Connect,
            other => Method::Other(other),
        }
    }

    /// Returns the method as written in a message.
    pub fn as_str(self) -> &'a str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Patch => "PATCH",
            Method::Trace => "TRACE",
            Method::Connect => "CONNECT",
            Method::Other(other) => other,
        }
    }
}
