//! A complete response.

/// Header fields in order of arrival, names in lower case, without pseudo-headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    text: Vec<u8>,
    /// End positions in `text` of the name and the value of each field.
    ends: Vec<(u32, u32)>,
}

impl Fields {
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len() as u32));
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let field =
                (&self.text[begin..name_end as usize], &self.text[name_end as usize..end as usize]);
            begin = end as usize;
            field
        })
    }

    /// Returns the value of the first field with this name, if it is UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.iter().find(|(known, _)| *known == name.as_bytes())?;
        str::from_utf8(value).ok()
    }
}

/// The response to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status code, at least 200; interim responses (1xx) are skipped.
    pub status: u16,
    /// Header fields; trailers are skipped.
    pub fields: Fields,
    /// The body, at most [`Config::body_bytes_max`](super::Config) bytes.
    pub body: Vec<u8>,
    /// Whether the fields or the body exceeded their limit and were truncated.
    pub truncated: bool,
}
