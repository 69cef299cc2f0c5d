//! A table of the page: a column in which no row has anything is left out.

/// Rows under heads.
pub(super) struct Grid {
    heads: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

impl Grid {
    /// By the heads of its columns; one that begins with `>` has numbers, set flush right.
    pub(super) fn new<H: AsRef<str>>(heads: impl IntoIterator<Item = H>) -> Self {
        let heads = heads.into_iter().map(|head| match head.as_ref().strip_prefix('>') {
            Some(number) => (number.to_owned(), Align::Right),
            None => (head.as_ref().to_owned(), Align::Left),
        });
        Self { heads: heads.collect(), rows: Vec::new() }
    }

    /// A row, with a cell for each column.
    pub(super) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        debug_assert_eq!(cells.len(), self.heads.len(), "{cells:?}");
        self.rows.push(cells);
    }

    /// As Markdown, an empty line behind it.
    pub(super) fn text(&self) -> String {
        let said = |column: usize| {
            let cell = |row: &Vec<String>| row.get(column).is_some_and(|cell| !is_empty(cell));
            self.rows.is_empty() || self.rows.iter().any(cell)
        };
        let shown: Vec<usize> = (0..self.heads.len()).filter(|&column| said(column)).collect();
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(shown.iter().map(|&column| self.heads[column].0.as_str()).collect());
        let rules = shown.iter().map(|&column| match self.heads[column].1 {
            Align::Left => "---",
            Align::Right => "---:",
        });
        text += &format!("|{}|\n", rules.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            let cells = shown.iter().map(|&column| row.get(column).map_or("", String::as_str));
            text += &line(cells.collect());
        }
        text.push('\n');
        text
    }
}

/// A cell for what was not measured.
pub(super) const NOTHING: &str = "–";

fn is_empty(cell: &str) -> bool {
    cell.is_empty() || cell == NOTHING
}

/// A figure, or that there is none.
pub(super) fn cell<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_anything_is_left_out() {
        let mut grid = Grid::new(["what", ">rate", ">after", ""]);
        grid.row(["a", "1", NOTHING, ""]);
        grid.row(["b", NOTHING, NOTHING, ""]);
        assert_eq!(grid.text(), "| what | rate |\n|---|---:|\n| a | 1 |\n| b | – |\n\n");
        grid.row(["c", "2", "3 s", "note"]);
        assert!(grid.text().starts_with("| what | rate | after |  |\n|---|---:|---:|---|\n"));
        assert_eq!(cell(None::<f64>, |value| value.to_string()), NOTHING);
    }
}
