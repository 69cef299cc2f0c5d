//! `--report`: one self-contained HTML page.

use std::path::{Path, PathBuf};

use super::report::HttpReport;
use crate::{Context, Error};

const PAGE: &str = include_str!("../../assets/http-report.html");
const STYLE: &str = include_str!("../../assets/http-report.css");
const SCRIPT: &str = include_str!("../../assets/http-report.js");

/// Reads the reports of earlier runs: files with the output of `--json`, of one run or of a comparison.
pub(super) fn read_earlier(files: &[PathBuf]) -> Result<Vec<HttpReport>, Error> {
    let mut runs = Vec::new();
    for path in files {
        let text =
            std::fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
        let wrong = |why: &dyn std::fmt::Display| {
            Error::new(format!(
                "--with {}: {why}; give a file with what `dunlin bench http --json` printed",
                path.display()
            ))
        };
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        let mut value: serde_json::Value =
            serde_json::from_str(line.unwrap_or_default()).map_err(|error| wrong(&error))?;
        match value.get_mut("modes").map(serde_json::Value::take) {
            Some(modes) => {
                runs.extend(
                    serde_json::from_value::<Vec<HttpReport>>(modes)
                        .map_err(|error| wrong(&error))?,
                );
            }
            None => runs.push(serde_json::from_value(value).map_err(|error| wrong(&error))?),
        }
    }
    Ok(runs)
}

/// Writes the page about the last run, with the others for comparison.
pub(super) fn write(path: &Path, runs: &[HttpReport]) -> Result<(), Error> {
    let data = serde_json::to_string(runs)
        .map_err(|error| Error::new(format!("cannot write JSON: {error}")))?;
    std::fs::write(path, fill(&data)).context(format!("cannot write {}", path.display()))
}

fn fill(data: &str) -> String {
    // Only these characters could end the script element; JSON allows them to be escaped.
    let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let (before, rest) = PAGE.split_once("/*STYLE*/").unwrap_or((PAGE, ""));
    let (middle, rest) = rest.split_once("/*DATA*/").unwrap_or((rest, ""));
    let (last, after) = rest.split_once("/*SCRIPT*/").unwrap_or((rest, ""));
    [before, STYLE, middle, &data, last, SCRIPT, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_data_cannot_end_its_script() {
        let page = fill("[\"</script><script>alert(1)\"]");
        assert!(page.contains("\\u003c/script\\u003e") && !page.contains("<script>alert"));
        assert!(
            !page.contains("/*DATA*/")
                && !page.contains("/*STYLE*/")
                && !page.contains("/*SCRIPT*/")
        );
        // Self-contained: nothing is fetched.
        assert!(
            !page.contains("src=") && !page.contains("http-equiv") && !page.contains("@import")
        );
    }
}
