//! The section about instructions of hot structures.

use super::grid::Grid;
use super::page::Page;
use super::results::Results;
use dunlin_load::figures::group;

pub(super) fn section(page: &mut Page<'_>, results: &Results) {
    page.head("Instructions");
    let Some(instructions) = &results.instructions else { return page.missing("instructions") };
    page.paragraph(
        "Counted by Cachegrind, so they do not depend on what else the machine does: a change of a few per cent is a change \
         of the code.",
    );
    let mut grid = Grid::new(["structure", ">instructions"]);
    for kernel in &instructions.kernels {
        grid.row([kernel.name.clone(), group(kernel.instructions)]);
    }
    page.grid(&grid);
    page.source("instructions", [&instructions.host]);
}
