//! The demo page at `GET /` that shows a channel and publishes to it (`client.demo_page`).

use std::borrow::Cow;

#[derive(rust_embed::Embed)]
#[folder = "assets/"]
struct Assets;

/// One file of the page.
pub(crate) struct Asset {
    pub(crate) content_type: &'static str,
    pub(crate) body: Cow<'static, [u8]>,
}

/// Returns the file at `path`.
pub(crate) fn asset(path: &str) -> Option<Asset> {
    let name = match path {
        "/" => "index.html",
        _ => path.strip_prefix('/')?,
    };
    let content_type = match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let file = Assets::get(name)?;
    Some(Asset { content_type, body: file.data })
}
