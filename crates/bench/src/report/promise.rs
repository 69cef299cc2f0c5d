//! What was asked of Dunlin, and what was measured: the top of the page.

use super::grid::Grid;

/// One thing that was asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Promise {
    /// What is measured, understood without what stands around it.
    pub(super) what: String,
    /// How much was asked.
    pub(super) asked: String,
    /// How much it is.
    pub(super) measured: String,
    pub(super) met: bool,
}

impl Promise {
    pub(super) fn new(
        what: impl Into<String>,
        asked: impl Into<String>,
        measured: impl Into<String>,
        met: bool,
    ) -> Self {
        Self { what: what.into(), asked: asked.into(), measured: measured.into(), met }
    }
}

/// The promises of one section, under its title.
pub(super) struct Promises {
    pub(super) section: &'static str,
    pub(super) rows: Vec<Promise>,
}

/// All of them in one table, each section named and linked where its rows begin; and how many are met.
pub(super) fn text(all: &[Promises]) -> String {
    let rows = || all.iter().flat_map(|promises| &promises.rows);
    let (count, met) = (rows().count(), rows().filter(|promise| promise.met).count());
    if count == 0 {
        return String::new();
    }
    let mut grid = Grid::new(["section", "what", "asked", "measured", ""]);
    for promises in all {
        for (index, promise) in promises.rows.iter().enumerate() {
            let section = if index == 0 { link(promises.section) } else { String::new() };
            let verdict = if promise.met { "met" } else { "**missed**" };
            let cells = [&promise.what, &promise.asked, &promise.measured];
            let cells = cells.map(String::as_str);
            grid.row([&section, cells[0], cells[1], cells[2], verdict].map(str::to_owned));
        }
    }
    format!("{met} of {count} are met.\n\n{}", grid.text())
}

/// A link to a section, by the anchor that Markdown gives a title.
fn link(title: &str) -> String {
    let anchor = title.to_lowercase().replace(' ', "-");
    let anchor: String =
        anchor.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("[{title}](#{anchor})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_named_once_and_what_is_missed_is_said_aloud() {
        let rows = vec![
            Promise::new("rate", "≥ 2", "3", true),
            Promise::new("latency", "≤ 1 ms", "2 ms", false),
        ];
        let empty = Promises { section: "Nothing here", rows: Vec::new() };
        let text = text(&[Promises { section: "The bus, in short", rows }, empty]);
        assert!(text.starts_with("1 of 2 are met."), "{text}");
        assert!(text.contains("| [The bus, in short](#the-bus-in-short) | rate | ≥ 2 | 3 | met |"));
        assert!(text.contains("|  | latency | ≤ 1 ms | 2 ms | **missed** |"), "{text}");
        assert!(!text.contains("Nothing here"), "{text}");
    }
}
