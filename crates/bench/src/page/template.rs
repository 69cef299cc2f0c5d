//! The template of the page: Markdown, with directives at the begin of a line and expressions between braces.
//!
//! | line | what it does |
//! |---|---|
//! | `@needs RESULT PART` | without that result the section says so and ends; with it, names are looked up in it first |
//! | `@if CONDITION` … `@end` | writes what is between if it holds |
//! | `@each PATH …` … `@end` | writes what is between for each element |
//! | `@rows PATH …` | the next row of a table, target or plot is there once for each element |
//! | `@grid PATH` | a table whose columns follow from the results: `heads` and `rows` |
//! | `@target CONDITION \| what \| asked \| measured` | a row of the table of targets |
//! | `@targets` | that table |
//! | `@plot FILE \| alt \| title \| shape \| series \| x \| y` | a plot, and where it is shown |
//! | `@source PART PATH …` | with which commands and where the results were measured |
//!
//! In a text, `{EXPRESSION:FORMAT}` is a value, `{?CONDITION}…{:}…{/}` one text or the other, and `{*PATH}…{:}, {/}` a
//! text for each element with what stands between them (see [`expression`](super::expression)).

use serde_json::Value;

use super::expression::{Scopes, elements, evaluate, find, holds, show};
use super::grid::Grid;
use super::plot::{Plot, Point};

/// What the template has become.
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) plots: Vec<Plot>,
}

/// Stands for the table of targets until all of them are known.
const TARGETS: &str = "\u{1}targets\u{1}";

/// Fills in the template; `directory` is that of the plots, as seen from the page.
pub(super) fn render(template: &str, results: &Value, directory: &str) -> Rendered {
    let mut page = Page {
        directory,
        text: String::new(),
        section: String::new(),
        targets: Vec::new(),
        plots: Vec::new(),
    };
    for section in sections(template) {
        page.section = section[0].strip_prefix("## ").unwrap_or_default().to_owned();
        page.lines(&section, &mut vec![results]);
    }
    let mut text = page.text.replace(TARGETS, targets_text(&page.targets).trim_end());
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    Rendered { text, plots: page.plots }
}

/// Lines of the template, apart at each head.
fn sections(template: &str) -> Vec<Vec<&str>> {
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for line in template.lines() {
        if sections.is_empty() || line.starts_with("## ") {
            sections.push(Vec::new());
        }
        if let Some(section) = sections.last_mut() {
            section.push(line);
        }
    }
    sections
}

/// What was asked, and what was measured.
struct Target {
    section: String,
    /// What is measured, how much was asked, how much it is.
    cells: [String; 3],
    is_met: bool,
}

struct Page<'a> {
    directory: &'a str,
    text: String,
    section: String,
    targets: Vec<Target>,
    plots: Vec<Plot>,
}

impl Page<'_> {
    fn lines<'v>(&mut self, lines: &[&str], scopes: &mut Scopes<'v>) {
        let mut index = 0;
        let mut rows: Option<Vec<&'v Value>> = None;
        while let Some(line) = lines.get(index) {
            index += 1;
            let (directive, rest) = line.split_once(' ').unwrap_or((line, ""));
            let elements_of =
                |paths: &str| paths.split(' ').flat_map(|path| elements(scopes, path)).collect();
            match directive {
                "@needs" => {
                    let (result, part) = rest.split_once(' ').unwrap_or((rest, rest));
                    let Some(&result) = find(scopes, result).first() else {
                        let missing =
                            format!("Not here: not measured yet. `scripts/bench/run {part}`\n\n");
                        return self.text.push_str(&missing);
                    };
                    scopes.push(result);
                }
                "@if" | "@each" => {
                    let end = index + block_length(&lines[index..]);
                    let block = &lines[index..end];
                    index = end + 1;
                    if directive == "@each" {
                        for element in <Vec<&Value>>::into_iter(elements_of(rest)) {
                            scopes.push(element);
                            self.lines(block, scopes);
                            scopes.pop();
                        }
                    } else if holds(scopes, rest) == Some(true) {
                        self.lines(block, scopes);
                    }
                }
                "@rows" => rows = Some(elements_of(rest)),
                "@target" | "@plot" => {
                    for scope in scopes_of(scopes, rows.take()) {
                        match directive {
                            "@target" => self.target(rest, &scope),
                            _ => self.plot(rest, &scope),
                        }
                    }
                }
                "@targets" => self.text.push_str(&format!("{TARGETS}\n")),
                "@source" => self.source(rest, scopes),
                "@grid" => {
                    if let Some(grid) = find(scopes, rest).first() {
                        self.text.push_str(&Grid::of(grid).text());
                    }
                }
                _ if line.starts_with("| ") => {
                    let length = lines[index..]
                        .iter()
                        .take_while(|line| {
                            line.starts_with(['|', '@']) && !line.starts_with("@end")
                        })
                        .count();
                    self.table(&lines[index - 1..index + length], scopes);
                    index += length;
                }
                _ => {
                    self.text.push_str(&fill(line, scopes));
                    self.text.push('\n');
                }
            }
        }
    }

    /// Rows of Markdown, of which each may stand for many.
    fn table<'v>(&mut self, lines: &[&str], scopes: &Scopes<'v>) {
        let cells = |line: &str| -> Vec<String> {
            let line = line.strip_prefix('|').unwrap_or(line);
            let line = line.strip_suffix('|').unwrap_or(line);
            line.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let aligned = lines[1].trim_matches('|').split('|').map(|rule| rule.ends_with(':'));
        let mut grid = Grid::new(cells(&fill(lines[0], scopes)).into_iter().zip(aligned));
        let mut rows: Option<Vec<&'v Value>> = None;
        for line in &lines[2..] {
            if let Some(paths) = line.strip_prefix("@rows ") {
                rows = Some(paths.split(' ').flat_map(|path| elements(scopes, path)).collect());
                continue;
            }
            for scope in scopes_of(scopes, rows.take()) {
                let row = cells(line);
                grid.row(row.iter().map(|cell| fill(cell, &scope)));
            }
        }
        self.text.push_str(&grid.text());
    }

    fn target(&mut self, text: &str, scopes: &Scopes<'_>) {
        let [condition, cells @ ..] = parts::<4>(text);
        let Some(is_met) = holds(scopes, condition) else { return };
        let cells = cells.map(|cell| fill(cell, scopes));
        self.targets.push(Target { section: self.section.clone(), cells, is_met });
    }

    /// One point of a plot, or many in a row; the first shows the plot.
    fn plot(&mut self, text: &str, scopes: &Scopes<'_>) {
        let [file, alt, title, shape, series, x, y] = parts::<7>(text);
        let number = |expression| evaluate(scopes, expression).and_then(|value| value.as_f64());
        let (Some(x), Some(y)) = (number(x), number(y)) else { return };
        let file = fill(file, scopes);
        let point = Point { series: fill(series, scopes), x, y };
        if let Some(plot) = self.plots.iter_mut().find(|plot| plot.file == file) {
            return plot.points.push(point);
        }
        self.text.push_str(&format!("![{}]({}/{file})\n", fill(alt, scopes), self.directory));
        let title = fill(title, scopes);
        self.plots.push(Plot { file, title, shape: shape.to_owned(), points: vec![point] });
    }

    /// The part of a section, its commands, and where they ran; commands of one commit together.
    fn source(&mut self, text: &str, scopes: &Scopes<'_>) {
        let (part, paths) = text.split_once(' ').unwrap_or((text, "host"));
        let mut places: Vec<(String, Vec<String>)> = Vec::new();
        for host in paths.split(' ').flat_map(|path| elements(scopes, path)) {
            let place = "{cpu}, {cores} cores, {memory_gib} GiB, {kernel}, {day}{?commit}, commit {commit}{/}";
            let place = fill(place, &vec![host]);
            let command = fill("{command}", &vec![host]);
            match places.iter_mut().find(|known| known.0 == place) {
                Some(known) => known.1.push(command),
                None => places.push((place, vec![command])),
            }
        }
        let text = places.into_iter().map(|(place, commands)| {
            format!("`scripts/bench/run {part}`. {place}.\n\n```sh\n{}\n```\n", commands.join("\n"))
        });
        self.text.push_str(&text.collect::<Vec<_>>().join("\n"));
    }
}

/// The scope of each row, or the one there is.
fn scopes_of<'v>(scopes: &Scopes<'v>, rows: Option<Vec<&'v Value>>) -> Vec<Scopes<'v>> {
    match rows {
        None => vec![scopes.clone()],
        Some(rows) => {
            rows.into_iter().map(|row| scopes.iter().copied().chain([row]).collect()).collect()
        }
    }
}

/// Lines up to the `@end` of a block.
fn block_length(lines: &[&str]) -> usize {
    let mut depth = 1;
    let end = lines.iter().position(|line| {
        depth += i32::from(line.starts_with("@if ") || line.starts_with("@each "));
        depth -= i32::from(*line == "@end");
        depth == 0
    });
    end.unwrap_or(lines.len())
}

/// What stands between bars; what is not there is empty.
fn parts<const N: usize>(text: &str) -> [&str; N] {
    let mut pieces = text.splitn(N, '|');
    [(); N].map(|()| pieces.next().unwrap_or_default().trim())
}

/// Text with the values of its expressions.
fn fill(text: &str, scopes: &Scopes<'_>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((inside, after)) = after.split_once('}') else { break };
        rest = after;
        if let Some(condition) = inside.strip_prefix('?') {
            let (then, otherwise, behind) = branches(after);
            let is_so = holds(scopes, condition) == Some(true);
            out.push_str(&fill(if is_so { then } else { otherwise }, scopes));
            rest = behind;
        } else if let Some(path) = inside.strip_prefix('*') {
            let (each, separator, behind) = branches(after);
            let rows = scopes_of(scopes, Some(elements(scopes, path)));
            let texts: Vec<_> = rows.iter().map(|scope| fill(each, scope)).collect();
            out.push_str(&texts.join(separator));
            rest = behind;
        } else {
            let (expression, format) = inside.rsplit_once(':').unwrap_or((inside, ""));
            out.push_str(&show(evaluate(scopes, expression).as_ref(), format));
        }
    }
    out + rest
}

/// Of `then{:}otherwise{/}behind`, which may hold more of its kind.
fn branches(text: &str) -> (&str, &str, &str) {
    let (mut depth, mut middle) = (0, None);
    for (at, _) in text.match_indices('{') {
        match &text[at..] {
            tag if tag.starts_with("{?") || tag.starts_with("{*") => depth += 1,
            tag if tag.starts_with("{:}") && depth == 0 => middle = Some(at),
            tag if tag.starts_with("{/}") && depth == 0 => {
                let (then, otherwise) = match middle {
                    Some(middle) => (&text[..middle], &text[middle + 3..at]),
                    None => (&text[..at], ""),
                };
                return (then, otherwise, &text[at + 3..]);
            }
            tag if tag.starts_with("{/}") => depth -= 1,
            _ => {}
        }
    }
    (text, "", "")
}

/// All targets in one table, each section named and linked where its rows begin; and how many are met.
fn targets_text(all: &[Target]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let heads = ["section", "what", "asked", "measured", ""].map(|head| (head.to_owned(), false));
    let mut grid = Grid::new(heads);
    let mut before = "";
    for target in all {
        let section = if target.section == before { String::new() } else { link(&target.section) };
        before = &target.section;
        let result = if target.is_met { "met" } else { "**missed**" };
        let cells = target.cells.iter().cloned();
        grid.row(std::iter::once(section).chain(cells).chain([result.to_owned()]));
    }
    let met = all.iter().filter(|target| target.is_met).count();
    format!("{met} of {} are met.\n\n{}", all.len(), grid.text())
}

/// A link to a section, by the anchor that Markdown gives a title.
fn link(title: &str) -> String {
    let anchor = title.to_lowercase().replace(' ', "-");
    let anchor: String =
        anchor.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("[{title}](#{anchor})")
}
