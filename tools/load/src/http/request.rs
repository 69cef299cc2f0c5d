//! The requests of a run. Each is a number, from which its bytes are derived.

use dunlin_pipeline::Kind;

use super::address::Address;
use super::template::{Template, decimal};
use crate::Error;

/// A request as given on the command line or in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestSpec {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<String>,
}

/// The requests of a run, taken in turn: request `n` is the one at index `n` modulo their number.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    requests: Vec<Request>,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) kind: Kind,
    pub(crate) target: Template,
    pub(crate) headers: Vec<(String, Template)>,
    pub(crate) body: Option<Template>,
}

/// Options of all requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOptions<'a> {
    /// Header that carries the request's number, for checks and ledgers.
    pub(crate) id_header: Option<&'a str>,
    pub(crate) templates: bool,
    /// Requests may be sent again, whatever their method.
    pub(crate) idempotent: bool,
}

impl Requests {
    /// Validates and compiles the requests.
    ///
    /// # Errors
    /// An invalid request; the message says how to correct it.
    pub(crate) fn new(
        specs: &[RequestSpec],
        address: &Address,
        options: RequestOptions<'_>,
    ) -> Result<Self, Error> {
        let mut salt = 0;
        let mut template = |text: &str| {
            salt += 1000;
            if options.templates {
                Template::parse(text, salt)
            } else {
                Ok(Template::literal(text))
            }
        };
        let mut requests = Vec::new();
        for spec in specs {
            let wrong =
                |what: String| Error::new(format!("{} {}: {what}", spec.method, spec.target));
            if !is_token(&spec.method) || spec.method == "CONNECT" {
                return Err(wrong(
                    "this is no method to load a server with; use GET, POST, …".into(),
                ));
            }
            if !spec.target.starts_with('/')
                || spec.target.contains(|c: char| c.is_ascii_whitespace() || c.is_control())
            {
                return Err(wrong(
                    "a path begins with / and has no blanks; write %20 for one".into(),
                ));
            }
            let mut headers = vec![("Host".to_owned(), Template::literal(&*address.authority))];
            for (name, value) in &spec.headers {
                if !is_token(name) || value.contains(['\r', '\n', '\0']) {
                    return Err(wrong(format!(
                        "`{name}: {value}` is no header; write -H 'Name: value'"
                    )));
                }
                // The Content-Length is computed from the body, and a request has one Host.
                if ["content-length", "transfer-encoding"]
                    .iter()
                    .any(|own| name.eq_ignore_ascii_case(own))
                {
                    return Err(wrong(format!("leave out {name}: it is written from the body")));
                }
                let value = template(value).map_err(&wrong)?;
                match headers
                    .iter_mut()
                    .find(|(there, _)| there == "Host" && name.eq_ignore_ascii_case("host"))
                {
                    Some(host) => host.1 = value,
                    None => headers.push((name.clone(), value)),
                }
            }
            if let Some(name) = options.id_header {
                headers.retain(|(there, _)| !there.eq_ignore_ascii_case(name));
                headers.push((name.to_owned(), Template::parse("{n}", 0).map_err(&wrong)?));
            }
            let kind = Kind::of_method(&spec.method);
            let has_key =
                spec.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"));
            requests.push(Request {
                method: spec.method.clone(),
                kind: if options.idempotent || has_key { kind.idempotent(true) } else { kind },
                target: template(&spec.target).map_err(&wrong)?,
                headers,
                body: spec.body.as_deref().map(&mut template).transpose().map_err(&wrong)?,
            });
        }
        if requests.is_empty() {
            return Err(Error::new("there is no request to send"));
        }
        Ok(Self { requests })
    }

    pub(crate) fn get(&self, number: u64) -> &Request {
        let length = self.requests.len() as u64;
        &self.requests[(number % length) as usize]
    }

    /// Returns the kind of all requests if they share one.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let first = self.requests.first()?.kind;
        self.requests.iter().all(|request| request.kind == first).then_some(first)
    }

    /// Returns a request that is not idempotent, if there is one.
    pub(crate) fn not_idempotent(&self) -> Option<&Request> {
        self.requests.iter().find(|request| !request.kind.is_idempotent())
    }

    /// Returns the bytes of a request if they are the same for all.
    pub(crate) fn constant(&self) -> Option<Vec<u8>> {
        let [request] = &self.requests[..] else { return None };
        let constant = request.target.is_constant()
            && request.headers.iter().all(|(_, value)| value.is_constant())
            && request.body.as_ref().is_none_or(Template::is_constant);
        constant.then(|| {
            let mut bytes = Vec::new();
            self.write(0, &mut Vec::new(), &mut bytes);
            bytes
        })
    }

    /// Appends request `number` as HTTP/1.1. `body` is scratch space.
    pub(crate) fn write(&self, number: u64, body: &mut Vec<u8>, out: &mut Vec<u8>) {
        let request = self.get(number);
        out.extend_from_slice(request.method.as_bytes());
        out.push(b' ');
        request.target.render(number, out);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        for (name, value) in &request.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            value.render(number, out);
            out.extend_from_slice(b"\r\n");
        }
        if let Some(template) = &request.body {
            body.clear();
            template.render(number, body);
            out.extend_from_slice(b"Content-Length: ");
            decimal(body.len() as u64, out);
            out.extend_from_slice(b"\r\n\r\n");
            out.extend_from_slice(body);
        } else {
            // A server may wait for the body of a POST without a Content-Length (RFC 9110 §8.6).
            if ["POST", "PUT", "PATCH"].contains(&request.method.as_str()) {
                out.extend_from_slice(b"Content-Length: 0\r\n");
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn is_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRESS: RequestOptions<'_> =
        RequestOptions { id_header: None, templates: true, idempotent: false };

    fn address() -> Address {
        Address::parse("http://127.0.0.1:8500/").unwrap()
    }

    fn spec(method: &str, target: &str) -> RequestSpec {
        RequestSpec { method: method.into(), target: target.into(), ..RequestSpec::default() }
    }

    fn written(requests: &Requests, number: u64) -> String {
        let mut out = Vec::new();
        requests.write(number, &mut Vec::new(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_plain_get_is_constant_and_short() {
        let requests = Requests::new(&[spec("GET", "/hello")], &address(), DRESS).unwrap();
        let bytes = requests.constant().unwrap();
        assert_eq!(bytes, b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1:8500\r\n\r\n");
    }

    #[test]
    fn a_body_says_how_long_it_is_after_its_places_are_filled() {
        let post = RequestSpec {
            headers: vec![("Host".into(), "a.example".into()), ("X-N".into(), "{n%3}".into())],
            body: Some("n={n}".into()),
            ..spec("POST", "/p/{n}")
        };
        let options = RequestOptions { id_header: Some("X-Request-Id"), ..DRESS };
        let requests = Requests::new(&[post], &address(), options).unwrap();
        assert!(requests.constant().is_none() && requests.not_idempotent().is_some());
        assert_eq!(
            written(&requests, 100),
            "POST /p/100 HTTP/1.1\r\nHost: a.example\r\nX-N: 1\r\nX-Request-Id: 100\r\nContent-Length: 5\r\n\r\nn=100"
        );
    }

    #[test]
    fn several_requests_take_turns_and_a_key_makes_a_post_idempotent() {
        let keyed = RequestSpec {
            headers: vec![("Idempotency-Key".into(), "{uuid}".into())],
            ..spec("POST", "/b")
        };
        let requests = Requests::new(&[spec("GET", "/a"), keyed], &address(), DRESS).unwrap();
        assert!(written(&requests, 2).starts_with("GET /a "));
        let post = written(&requests, 3);
        assert!(
            post.starts_with("POST /b ") && post.ends_with("Content-Length: 0\r\n\r\n"),
            "{post}"
        );
        assert!(requests.not_idempotent().is_none());
    }

    #[test]
    fn forbidden_request_field_is_reported_with_the_right_form() {
        let header = |name: &str, value: &str| RequestSpec {
            headers: vec![(name.into(), value.into())],
            ..spec("GET", "/")
        };
        for (spec, reported) in [
            (spec("GE T", "/"), "no method"),
            (spec("GET", "/a b"), "%20"),
            (header("Content-Length", "5"), "written from the body"),
            (header("A:", "b"), "-H 'Name: value'"),
            (spec("GET", "/{count}"), "{n%K}"),
        ] {
            let error = Requests::new(&[spec], &address(), DRESS).unwrap_err().to_string();
            assert!(error.contains(reported), "{error}");
        }
    }
}
