//! The operator's page: `GET /`, and its files below `/page/`.
//!
//! The files hold nothing of this server and take no token. What the page shows it asks for with the token that a person
//! types in, through the same paths as everyone else. Its policy forbids scripts, styles and requests of any other origin, and
//! text that becomes markup (Trusted Types).

use dunlin_net::ConnId;
use dunlin_net::http;

use super::problem::ProblemDetails;
use super::{Admin, Cx, reads, respond};

#[derive(rust_embed::Embed)]
#[folder = "operator/"]
struct Files;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

impl Admin {
    /// Answers a request for a file of the page. Returns `false` if there is no such file.
    pub(super) fn operator_page(cx: &mut Cx, conn: ConnId, request: &http::Request<'_>) -> bool {
        let name = match request.path {
            "/" => "index.html",
            path => path.strip_prefix("/page/").unwrap_or_default(),
        };
        let Some(file) = Files::get(name) else { return false };
        if !reads(request.method) {
            ProblemDetails::method("GET, HEAD").answer(cx, conn);
            return true;
        }
        let kind = match name.rsplit_once('.').map(|(_, kind)| kind) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "application/octet-stream",
        };
        let headers = [
            ("Content-Type", kind),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-cache"),
        ];
        respond(cx, conn, 200, &headers, &file.data);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::TestServer;
    use super::*;

    /// Everything that a first visit loads.
    const BYTES_MAX: usize = 200 << 10;

    #[test]
    fn the_page_takes_no_token_and_admits_no_other_origin() {
        let mut server = TestServer::start(1);
        server.token = None;
        let page = server.get("/");
        assert_eq!(
            (page.status, page.header("Content-Type")),
            (200, Some("text/html; charset=utf-8"))
        );
        let policy = page.header("Content-Security-Policy").unwrap();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(server.call("POST", "/", &[], "").status, 405);
        for outside in
            ["/page/", "/page/nothing.js", "/page/../Cargo.toml", "/page/%2e%2e/Cargo.toml"]
        {
            assert_ne!(server.get(outside).status, 200, "{outside}");
        }
    }

    #[test]
    fn every_file_that_the_page_names_is_there_and_all_are_small() {
        let server = TestServer::start(1);
        let mut bytes = 0;
        for name in Files::iter() {
            let file = server.get(&format!("/page/{name}"));
            assert_eq!(file.status, 200, "{name}");
            bytes += file.body.len();
            let quoted = file.body.split('"').filter_map(|text| text.strip_prefix("./"));
            for named in quoted.filter(|text| text.ends_with(".js") || text.ends_with(".css")) {
                let named = named.trim_start_matches("page/");
                assert!(Files::get(named).is_some(), "{name} names {named}");
            }
            for markup in ["innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!file.body.contains(markup), "{name} has {markup}");
            }
        }
        assert!(bytes < BYTES_MAX, "the page has {bytes} bytes");
    }
}
