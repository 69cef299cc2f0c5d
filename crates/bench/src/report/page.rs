//! docs/BENCHMARKS.md as it is written: sentences, tables, plots, and where a result comes from.

use super::grid::Grid;
use dunlin_load::host::Host;

/// The page as far as it is written.
pub(super) struct Page<'a> {
    text: String,
    /// Of the plots, as seen from the page.
    directory: &'a str,
}

impl<'a> Page<'a> {
    pub(super) fn new(directory: &'a str) -> Self {
        Self { text: String::new(), directory }
    }

    pub(super) fn text(self) -> String {
        self.text
    }

    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// What is Markdown already.
    pub(super) fn markdown(&mut self, text: &str) {
        self.text += text;
    }

    /// Some sentences, and an empty line.
    pub(super) fn paragraph(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.line("");
    }

    pub(super) fn head(&mut self, title: &str) {
        self.paragraph(format!("## {title}"));
    }

    pub(super) fn grid(&mut self, grid: &Grid) {
        self.text += &grid.text();
    }

    pub(super) fn missing(&mut self, part: &str) {
        self.paragraph(format!("Not here: not measured yet. `scripts/bench/run {part}`"));
    }

    pub(super) fn plot(&mut self, file: &str, title: &str) {
        let directory = self.directory;
        self.paragraph(format!("![{title}]({directory}/{file})"));
    }

    /// The part of a section, its commands, and where they ran; commands of one commit together.
    pub(super) fn source<'h>(&mut self, part: &str, hosts: impl IntoIterator<Item = &'h Host>) {
        let mut places: Vec<(String, Vec<&str>)> = Vec::new();
        for host in hosts {
            let place = place(host);
            match places.iter_mut().find(|known| known.0 == place) {
                Some(known) => known.1.push(&host.command),
                None => places.push((place, vec![&host.command])),
            }
        }
        for (place, commands) in places {
            self.line(format!("`scripts/bench/run {part}`. {place}."));
            self.line("");
            self.line("```sh");
            commands.iter().for_each(|command| self.line(command));
            self.line("```");
            self.line("");
        }
    }
}

fn place(host: &Host) -> String {
    let commit = host.commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    format!(
        "{}, {} cores, {} GiB, {}, {}{commit}",
        host.cpu, host.cores, host.memory_gib, host.kernel, host.day
    )
}
