//! A table of the page: a column in which no row has anything is left out.

use serde_json::Value;

/// A cell for what was not measured.
pub(super) const NOTHING: &str = "–";

/// Rows under heads.
pub(super) struct Grid {
    /// With whether its column has numbers, set flush right.
    heads: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// By the heads of its columns, each with whether numbers stand below it.
    pub(super) fn new(heads: impl IntoIterator<Item = (String, bool)>) -> Self {
        Self { heads: heads.into_iter().collect(), rows: Vec::new() }
    }

    /// From `heads` and `rows` of text; a head that begins with `>` is that of numbers.
    pub(super) fn of(table: &Value) -> Self {
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            all.map(str::to_owned).collect()
        };
        let heads = texts(&table["heads"]).into_iter();
        let mut grid = Self::new(heads.map(|head| match head.strip_prefix('>') {
            Some(number) => (number.to_owned(), true),
            None => (head, false),
        }));
        table["rows"].as_array().into_iter().flatten().for_each(|row| grid.row(texts(row)));
        grid
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
        let rules = shown.iter().map(|&column| if self.heads[column].1 { "---:" } else { "---" });
        text += &format!("|{}|\n", rules.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            let cells = shown.iter().map(|&column| row.get(column).map_or("", String::as_str));
            text += &line(cells.collect());
        }
        text.push('\n');
        text
    }
}

fn is_empty(cell: &str) -> bool {
    cell.is_empty() || cell == NOTHING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_anything_is_left_out() {
        let mut grid =
            Grid::of(&serde_json::json!({"heads": ["what", ">rate", ">after", ""], "rows": []}));
        grid.row(["a", "1", NOTHING, ""]);
        grid.row(["b", NOTHING, NOTHING, ""]);
        assert_eq!(grid.text(), "| what | rate |\n|---|---:|\n| a | 1 |\n| b | – |\n\n");
        grid.row(["c", "2", "3 s", "note"]);
        assert!(grid.text().starts_with("| what | rate | after |  |\n|---|---:|---:|---|\n"));
    }
}
