//! Lays out the page from the filled-in template: tables without empty columns, the table of targets, and the plots.
//!
//! | line | what it is |
//! |---|---|
//! | `@target IS_MET \| what \| asked \| measured` | a row of the table of targets; omitted if nothing was measured |
//! | `@targets` | the table of targets |
//! | `@plot FILE \| alt \| title \| shape \| series \| x \| y` | a point of a plot; the first one of a file also shows the plot |

use super::plot::{Plot, Point};
use super::render::NOTHING;

/// The laid-out page and its plots.
#[derive(Default)]
pub(super) struct PageText {
    pub(super) text: String,
    pub(super) plots: Vec<Plot>,
}

/// Lays out a text. `directory` is that of the plots, relative to the page.
pub(super) fn lay_out(text: &str, directory: &str) -> PageText {
    let mut page = PageText::default();
    let mut section = String::new();
    // Columns: a link to the section, what is measured, the target, the result, and whether the target is met.
    let mut targets = vec![String::new(), "|---|---|---|---|---|".to_owned()];
    let (mut met, mut before) = (0, String::new());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            section = link(title);
        }
        if let Some(target) = line.strip_prefix("@target ") {
            let [is_met, what, asked, measured] = parts(target);
            if measured.contains(NOTHING) {
                continue;
            }
            let is_met = is_met.eq_ignore_ascii_case("true");
            met += usize::from(is_met);
            let result = if is_met { "met" } else { "**missed**" };
            let shown = if section == before { "" } else { &section };
            targets.push(format!("| {shown} | {what} | {asked} | {measured} | {result} |"));
            before.clone_from(&section);
        } else if let Some(point) = line.strip_prefix("@plot ") {
            page.plot(point, directory);
        } else if line.starts_with('|') {
            let mut rows = vec![line];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(row);
            }
            page.text += &table(&rows);
        } else {
            page.text += line;
            page.text.push('\n');
        }
    }
    let all = targets.len() - 2;
    targets[0] = format!("{met} of {all} are met.\n\n| section | what | asked | measured |  |");
    let targets = if all > 0 { targets.join("\n") } else { String::new() };
    page.text = page.text.replace("@targets", &targets);
    while page.text.contains("\n\n\n") {
        page.text = page.text.replace("\n\n\n", "\n\n");
    }
    page
}

impl PageText {
    /// Adds a point to its plot. The first point of a plot also inserts the plot into the text.
    fn plot(&mut self, text: &str, directory: &str) {
        let [file, alt, title, shape, series, x, y] = parts(text);
        let (Ok(x), Ok(y)) = (x.parse(), y.parse()) else { return };
        let point = Point { series: series.to_owned(), x, y };
        if let Some(plot) = self.plots.iter_mut().find(|plot| plot.file == file) {
            return plot.points.push(point);
        }
        self.text.push_str(&format!("![{alt}]({directory}/{file})\n"));
        let [file, title, shape] = [file, title, shape].map(str::to_owned);
        self.plots.push(Plot { file, title, shape, points: vec![point] });
    }
}

/// Splits `text` at bars into `N` trimmed parts; missing parts are empty.
fn parts<const N: usize>(text: &str) -> [&str; N] {
    let mut pieces = text.splitn(N, '|');
    [(); N].map(|()| pieces.next().unwrap_or_default().trim())
}

/// Formats a table without the columns that are empty in every row, followed by an empty line.
fn table(lines: &[&str]) -> String {
    let cells = |line: &&str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = lines.iter().map(cells).collect();
    let said = |&column: &usize| {
        let cell = |row: &Vec<String>| {
            row.get(column).is_some_and(|cell| !cell.is_empty() && cell != NOTHING)
        };
        rows.len() < 3 || rows[2..].iter().any(cell)
    };
    let shown: Vec<usize> = (0..rows[0].len()).filter(said).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = shown.iter().map(|&column| row.get(column).map_or("", String::as_str));
        let cells: Vec<&str> = cells.collect();
        text += &match index {
            1 => format!("|{}|\n", cells.join("|")),
            _ => format!("| {} |\n", cells.join(" | ")),
        };
    }
    text + "\n"
}

/// Returns a link to a section, with the anchor that Markdown derives from its title.
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
    fn a_column_without_anything_is_left_out() {
        let lines = [
            "| what | rate | after |  |",
            "|---|---:|---:|---|",
            "| a | 1 | – |  |",
            "| b | – | – |  |",
        ];
        assert_eq!(table(&lines), "| what | rate |\n|---|---:|\n| a | 1 |\n| b | – |\n\n");
        assert!(
            table(&lines[..2]).starts_with("| what | rate | after |  |\n|---|---:|---:|---|\n")
        );
    }

    #[test]
    fn targets_and_plots_are_taken_out_of_the_text() {
        let text = "@targets\n## A part\n@target true | a rate | ≥ 1 | 2\n@target False | a time | ≤ 1 | 2\n\
                    @target false | another | ≤ 1 | –\n@plot a.svg | alt | title | bars | dunlin | 0 | 7.5\n\
                    @plot a.svg |  |  | bars | peer | 0 | –\n";
        let page = lay_out(text, "plots");
        let expected = "1 of 2 are met.\n\n| section | what | asked | measured |  |\n|---|---|---|---|---|\n\
                        | [A part](#a-part) | a rate | ≥ 1 | 2 | met |\n|  | a time | ≤ 1 | 2 | **missed** |\n## A part\n\
                        ![alt](plots/a.svg)\n";
        assert_eq!(page.text, expected);
        assert_eq!(page.plots.len(), 1);
        assert_eq!(page.plots[0].points.len(), 1, "what was not measured is no point");
    }
}
