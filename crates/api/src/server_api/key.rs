//! The API key of a request.

use std::borrow::Cow;

use dunlin_wire::http1::query;

/// Returns the API key of a request: from `X-API-Key`, from `Authorization: apikey KEY` (older libraries), or from
/// `api_key` in the query, in this order.
pub fn presented_key<'a>(
    x_api_key: Option<&'a str>,
    authorization: Option<&'a str>,
    query: &'a str,
) -> Option<Cow<'a, str>> {
    if let Some(key) = x_api_key {
        return Some(Cow::Borrowed(key.trim()));
    }
    if let Some((scheme, key)) = authorization.and_then(|value| value.trim().split_once(' '))
        && scheme.eq_ignore_ascii_case("apikey")
    {
        return Some(Cow::Borrowed(key.trim()));
    }
    query::pairs(query).find(|(name, _)| name == "api_key").map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_shows_its_key_in_its_way() {
        assert_eq!(presented_key(Some("k"), None, "").as_deref(), Some("k"));
        assert_eq!(presented_key(None, Some("apikey k"), "").as_deref(), Some("k"));
        assert_eq!(presented_key(None, None, "a=b&api_key=k%2B").as_deref(), Some("k+"));
        assert_eq!(presented_key(None, Some("Bearer k"), ""), None);
        assert_eq!(presented_key(None, None, ""), None);
    }
}
