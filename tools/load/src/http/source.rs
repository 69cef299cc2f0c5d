//! Reads a file of requests: HAR, as browsers save it, or one JSON object a line.

use std::collections::BTreeMap;
use std::path::Path;

use dunlin_wire::text::trim_byte_order_mark;
use serde::Deserialize;

use super::address::Address;
use super::request::RequestSpec;
use crate::{Context, Error};

/// Headers that are specific to a browser's connection, or that the generator writes itself.
const NOT_TAKEN: [&str; 7] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "upgrade",
    "proxy-connection",
];

/// The contents of a file of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) specs: Vec<RequestSpec>,
    /// Number of entries for other hosts, which are left out.
    pub(crate) elsewhere: usize,
    /// Whether braces are literal: a HAR file has no placeholders.
    pub(crate) literal: bool,
}

/// One line of a file of JSON lines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default = "get")]
    method: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<serde_json::Value>,
}

fn get() -> String {
    "GET".to_owned()
}

#[derive(Debug, Deserialize)]
struct Har {
    log: HarLog,
}

#[derive(Debug, Deserialize)]
struct HarLog {
    entries: Vec<HarEntry>,
}

#[derive(Debug, Deserialize)]
struct HarEntry {
    request: HarRequest,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarRequest {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<HarHeader>,
    post_data: Option<HarBody>,
}

#[derive(Debug, Deserialize)]
struct HarHeader {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarBody {
    #[serde(default)]
    mime_type: String,
    text: Option<String>,
    /// The fields of a form, which some programs save in place of its text.
    #[serde(default)]
    params: Vec<HarParam>,
}

#[derive(Debug, Deserialize)]
struct HarParam {
    name: String,
    #[serde(default)]
    value: String,
}

const FORM: &str = "application/x-www-form-urlencoded";

impl HarBody {
    /// Returns the bytes that were sent, and their type if they are made here of fields.
    fn encoded(self) -> Result<(Option<String>, Option<&'static str>), String> {
        if self.params.is_empty() || self.text.as_ref().is_some_and(|text| !text.is_empty()) {
            return Ok((self.text, None));
        }
        let mime_type = self.mime_type.split(';').next().unwrap_or_default().trim();
        if !mime_type.is_empty() && !mime_type.eq_ignore_ascii_case(FORM) {
            return Err(format!(
                "the body has `params` of the type {mime_type:?} and no `text`, so its bytes are not known; \
                 save the HAR with contents, or write the request as a JSON line with `body`"
            ));
        }
        let mut form = String::new();
        for HarParam { name, value } in &self.params {
            if !form.is_empty() {
                form.push('&');
            }
            encode_field(&mut form, name);
            form.push('=');
            encode_field(&mut form, value);
        }
        Ok((Some(form), Some(FORM)))
    }
}

/// Appends a name or value of a form (WHATWG URL §5.2).
fn encode_field(form: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b' ' => form.push('+'),
            b'*' | b'-' | b'.' | b'_' => form.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => form.push(char::from(byte)),
            _ => form.push_str(&format!("%{byte:02X}")),
        }
    }
}

impl Source {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// A file in neither format; the message names the line and shows a valid one.
    pub(crate) fn read(path: &Path, address: &Address) -> Result<Self, Error> {
        let text =
            std::fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
        Self::parse(trim_byte_order_mark(&text), address)
            .map_err(|why| Error::new(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str, address: &Address) -> Result<Self, String> {
        // A HAR is one object with a `log`; a JSON line has a `path`.
        let source = match serde_json::from_str::<Har>(text) {
            Ok(har) => Self::of_har(har, address)?,
            Err(error)
                if text.trim_start().starts_with('{')
                    && text.contains("\"log\"")
                    && text.contains("\"entries\"") =>
            {
                return Err(format!("not a HAR a browser would save: {error}"));
            }
            Err(_) => Self::of_lines(text)?,
        };
        if source.specs.is_empty() {
            return Err(match source.elsewhere {
                0 => "there is no request in it".to_owned(),
                elsewhere => {
                    format!("none of its {elsewhere} requests is for {}", address.authority)
                }
            });
        }
        Ok(source)
    }

    fn of_lines(text: &str) -> Result<Self, String> {
        let mut specs = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|error| {
                format!(
                    "line {number}: {error}; a line looks like \
                     {{\"method\":\"POST\",\"path\":\"/a?b=1\",\"headers\":{{\"X-A\":\"b\"}},\"body\":\"text, or any JSON\"}}"
                )
            })?;
            specs.push(RequestSpec {
                method: line.method,
                target: line.path,
                headers: line.headers.into_iter().collect(),
                body: line.body.map(|body| match body {
                    serde_json::Value::String(text) => text,
                    json => json.to_string(),
                }),
            });
        }
        Ok(Self { specs, elsewhere: 0, literal: false })
    }

    fn of_har(har: Har, address: &Address) -> Result<Self, String> {
        let mut source = Self { specs: Vec::new(), elsewhere: 0, literal: true };
        for (number, HarEntry { request }) in (1..).zip(har.log.entries) {
            let scheme = if address.tls { "https://" } else { "http://" };
            let here = request
                .url
                .strip_prefix(scheme)
                .and_then(|rest| rest.strip_prefix(&*address.authority))
                .filter(|target| target.is_empty() || target.starts_with(['/', '?', '#']));
            let Some(target) = here else {
                source.elsewhere += 1;
                continue;
            };
            let target = target.split('#').next().unwrap_or_default();
            let headers = request.headers.into_iter().filter(|header| {
                // `:method` and the like are pseudo-headers of HTTP/2 (RFC 9113 §8.3).
                !header.name.starts_with(':')
                    && !NOT_TAKEN.iter().any(|own| header.name.eq_ignore_ascii_case(own))
            });
            let mut headers: Vec<_> = headers.map(|header| (header.name, header.value)).collect();
            let body = match request.post_data.map(HarBody::encoded).transpose() {
                Ok(body) => body,
                Err(why) => return Err(format!("entry {number}, {}: {why}", request.url)),
            };
            let (body, mime_type) = body.unwrap_or_default();
            if let Some(mime_type) = mime_type
                && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            {
                headers.push(("Content-Type".to_owned(), mime_type.to_owned()));
            }
            source.specs.push(RequestSpec {
                method: request.method,
                target: if target.starts_with('/') {
                    target.to_owned()
                } else {
                    format!("/{target}")
                },
                headers,
                body,
            });
        }
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, String> {
        Source::parse(text, &Address::parse("http://127.0.0.1:8500/").unwrap())
    }

    #[test]
    fn one_json_a_line() {
        let source = parse(
            "{\"path\":\"/a\"}\n\n{\"method\":\"POST\",\"path\":\"/b\",\"headers\":{\"X\":\"y\"},\"body\":{\"n\":1}}\n",
        )
        .unwrap();
        assert_eq!(source.specs[0].method, "GET");
        assert_eq!(source.specs[1].body.as_deref(), Some("{\"n\":1}"));
        let error = parse("{\"path\":\"/a\"}\n{\"url\":\"/b\"}").unwrap_err();
        assert!(error.contains("line 2") && error.contains("\"path\":\"/a?b=1\""), "{error}");
        assert!(parse("\n").unwrap_err().contains("no request"));
    }

    #[test]
    fn a_har_without_the_headers_of_its_connection_and_the_requests_to_others() {
        let har = r#"{"log":{"version":"1.2","entries":[
            {"time":3,"request":{"method":"GET","url":"http://127.0.0.1:8500/a?b#c","httpVersion":"h2",
              "headers":[{"name":":path","value":"/a"},{"name":"Host","value":"x"},{"name":"Accept","value":"*/*"}]}},
            {"request":{"method":"POST","url":"http://127.0.0.1:8500","headers":[],
              "postData":{"mimeType":"text/plain","text":"hi"}}},
            {"request":{"method":"GET","url":"https://elsewhere.example/","headers":[]}}]}}"#;
        let source = parse(har).unwrap();
        assert_eq!(source.elsewhere, 1);
        assert_eq!(source.specs[0].target, "/a?b");
        assert_eq!(source.specs[0].headers, [("Accept".to_owned(), "*/*".to_owned())]);
        assert_eq!(
            (source.specs[1].target.as_str(), source.specs[1].body.as_deref()),
            ("/", Some("hi"))
        );
    }

    #[test]
    fn har_with_the_fields_of_a_form_sends_them_encoded() {
        let har = |mime_type: &str| {
            format!(
                r#"{{"log":{{"entries":[{{"request":{{"method":"POST","url":"http://127.0.0.1:8500/a","headers":[],
                "postData":{{"mimeType":"{mime_type}","params":[{{"name":"a b","value":"ä&1"}},{{"name":"c"}}]}}}}}}]}}}}"#
            )
        };
        let source = parse(&har("application/x-www-form-urlencoded; charset=UTF-8")).unwrap();
        assert_eq!(source.specs[0].body.as_deref(), Some("a+b=%C3%A4%261&c="));
        let form = ("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned());
        assert_eq!(source.specs[0].headers, [form]);
        let error = parse(&har("multipart/form-data; boundary=x")).unwrap_err();
        assert!(error.contains("entry 1") && error.contains("multipart/form-data"), "{error}");
    }

    #[test]
    fn file_with_a_byte_order_mark_is_read_like_one_without() {
        let scratch = crate::Scratch::temporary("marked").unwrap();
        let address = Address::parse("http://127.0.0.1:8500/").unwrap();
        for text in [
            r#"{"log":{"entries":[{"request":{"method":"GET","url":"http://127.0.0.1:8500/a"}}]}}"#,
            "{\"path\":\"/a\"}\n",
        ] {
            let path = scratch.file("requests", &format!("\u{feff}{text}")).unwrap();
            assert_eq!(Source::read(&path, &address).unwrap().specs[0].target, "/a", "{text}");
        }
    }

    #[test]
    fn a_har_for_others_alone_is_reported_so() {
        let har = r#"{"log":{"entries":[{"request":{"method":"GET","url":"http://b.example/"}}]}}"#;
        let error = parse(har).unwrap_err();
        assert!(error.contains("none of its 1 requests is for 127.0.0.1:8500"), "{error}");
    }
}
