//! A response, whole.

/// Header fields in the order they came, names in lower case, without pseudo-headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    text: Vec<u8>,
    /// Where in `text` the name and the value of each field end.
    ends: Vec<(u32, u32)>,
}

impl Fields {
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len() as u32;
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len() as u32));
    }

    /// Each name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let field =
                (&self.text[begin..name_end as usize], &self.text[name_end as usize..end as usize]);
            begin = end as usize;
            field
        })
    }

    /// The value of the first field of a name, if it is UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.iter().find(|(known, _)| *known == name.as_bytes())?;
        str::from_utf8(value).ok()
    }
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// 200 to 599; interim responses (1xx) are skipped.
    pub status: u16,
    /// Header fields; trailers are skipped.
    pub fields: Fields,
    /// The body, at most [`Config::body_bytes_max`](super::Config) bytes.
    pub body: Vec<u8>,
    /// The fields or the body were longer than their bound, and are cut there.
    pub truncated: bool,
}
