//! Draws the plots of the page as SVG: bars, or curves over axes that are linear from zero or logarithmic.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use dunlin_load::Error;
use dunlin_load::figures::group;

const SIZE: (u32, u32) = (760, 320);
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const OTHERS: [RGBColor; 3] =
    [RGBColor(0x9a, 0xa5, 0xb1), RGBColor(0xd9, 0x8e, 0x04), RGBColor(0x7a, 0x4e, 0x9e)];
const LINE: RGBColor = RGBColor(0x44, 0x4d, 0x56);
const FONT: &str = "sans-serif";
const TITLE: (&str, u32) = (FONT, 17);
const TEXT: (&str, u32) = (FONT, 14);

/// A plot and the name of its file.
pub(super) struct Plot {
    pub(super) file: String,
    pub(super) title: String,
    /// `bars`: from zero, the longest first. Otherwise `line` or `points` with axes, as in `line; connections; log;
    /// bytes; linear; 250`: name and scale of x and of y, and optionally a reference level.
    pub(super) shape: String,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    pub(super) series: String,
    pub(super) x: f64,
    pub(super) y: f64,
}

struct Axis<'a> {
    /// Name with unit.
    name: &'a str,
    /// Otherwise linear from zero, so that slopes are not exaggerated.
    logarithmic: bool,
}

impl Plot {
    pub(super) fn draw(&self) -> Result<String, Error> {
        let words: Vec<&str> = self.shape.split("; ").collect();
        let word = |index: usize| words.get(index).copied().unwrap_or_default();
        let axis = |index| Axis { name: word(index), logarithmic: word(index + 1) == "log" };
        match word(0) {
            "bars" => self.draw_bars(),
            kind => self.draw_curves(&axis(1), &axis(3), word(5).parse().ok(), kind == "line"),
        }
    }

    /// Returns the points of each series, in order of arrival.
    fn series(&self) -> Vec<(&str, Vec<(f64, f64)>)> {
        let mut all: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
        for point in &self.points {
            match all.iter_mut().find(|(name, _)| *name == point.series) {
                Some((_, points)) => points.push((point.x, point.y)),
                None => all.push((&point.series, vec![(point.x, point.y)])),
            }
        }
        all
    }
    fn draw_bars(&self) -> Result<String, Error> {
        const LEFT: i32 = 128;
        const ROW: i32 = 34;
        let bars = self.points.iter().map(|point| (point.series.as_str(), point.y));
        let mut bars: Vec<_> = bars.filter(|(_, value)| *value > 0.0).collect();
        bars.sort_by(|a, b| b.1.total_cmp(&a.1));
        let most = bars.first().map_or(1.0, |bar| bar.1);
        let width = f64::from(SIZE.0 as i32 - LEFT - 120);
        let mut svg = String::new();
        {
            let height = 60 + ROW as u32 * bars.len() as u32;
            let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let text = |text: &str, at, font: (&'static str, u32)| {
                root.draw(&Text::new(text.to_owned(), at, font.into_font())).map_err(failed)
            };
            text(&self.title, (16, 14), TITLE)?;
            for (index, (name, value)) in bars.iter().enumerate() {
                let top = 46 + ROW * index as i32;
                // At least two pixels, so that the smallest bar is visible.
                let length = ((width * value / most) as i32).max(2);
                let bar = [(LEFT, top), (LEFT + length, top + 24)];
                root.draw(&Rectangle::new(bar, color(name, 0).filled())).map_err(failed)?;
                text(name, (16, top + 6), TEXT)?;
                text(&label(*value), (LEFT + length + 8, top + 6), TEXT)?;
            }
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }

    /// Draws curves over axes, or only their points.
    fn draw_curves(
        &self,
        x_axis: &Axis<'_>,
        y_axis: &Axis<'_>,
        level: Option<f64>,
        joined: bool,
    ) -> Result<String, Error> {
        let xs: Vec<f64> = self.points.iter().map(|point| point.x).collect();
        let ys: Vec<f64> = self.points.iter().map(|point| point.y).chain(level).collect();
        let (x, y) = (x_axis.scale(&xs), y_axis.scale(&ys));
        let Range { start: from, end: to } = x.range();
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE).map_err(failed)?;
            let mut chart = ChartBuilder::on(&root)
                .caption(&self.title, TITLE)
                .margin(14)
                .x_label_area_size(40)
                .y_label_area_size(64)
                .build_cartesian_2d(x, y)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .x_desc(x_axis.name)
                .y_desc(y_axis.name)
                .label_style(TEXT)
                .x_label_formatter(&|value| label(*value))
                .y_label_formatter(&|value| label(*value))
                .light_line_style(WHITE)
                .draw()
                .map_err(failed)?;
            if let Some(level) = level {
                let across = [(from, level), (to, level)];
                chart.draw_series(LineSeries::new(across, LINE.stroke_width(1))).map_err(failed)?;
            }
            let mut others = 0;
            // Dunlin's curves are drawn last, above the others.
            let (ours, theirs): (Vec<_>, Vec<_>) =
                self.series().into_iter().partition(|(name, _)| name.starts_with("dunlin"));
            let curves = ours.len() + theirs.len();
            for (name, points) in theirs.into_iter().chain(ours) {
                let color = color(name, others);
                others += usize::from(color != OURS);
                if joined {
                    let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
                    chart.draw_series(line).map_err(failed)?;
                }
                // Curves with many points are drawn without dots.
                if !joined || points.len() < 20 {
                    let dots = points.iter().map(|point| Circle::new(*point, 4, color.filled()));
                    let dots = chart.draw_series(dots).map_err(failed)?;
                    dots.label(name)
                        .legend(move |(x, y)| Circle::new((x + 10, y), 4, color.filled()));
                }
            }
            if curves > 1 {
                chart
                    .configure_series_labels()
                    .label_font(TEXT)
                    .background_style(WHITE)
                    .border_style(LINE)
                    .position(SeriesLabelPosition::UpperRight)
                    .draw()
                    .map_err(failed)?;
            }
            root.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(format!("cannot draw: {error}"))
}

/// Returns the colour of a series, by its name and the number of peers before it.
fn color(name: &str, others_before: usize) -> RGBColor {
    if name.starts_with("dunlin") { OURS } else { OTHERS[others_before % OTHERS.len()] }
}

/// The range of an axis and its ticks.
struct Scale {
    logarithmic: bool,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Axis<'_> {
    fn scale(&self, values: &[f64]) -> Scale {
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if !self.logarithmic {
            let top = if most > f64::MIN_POSITIVE { most * 1.1 } else { 1.0 };
            let step = step(top / 6.0);
            let ticks = (0..).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= top);
            return Scale { logarithmic: false, range: 0.0..top, ticks: ticks.collect() };
        }
        let least = values.iter().copied().filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
        let range = if least <= most { least / 1.25..most * 1.25 } else { 1.0..10.0 };
        // Ticks between powers of ten only if the range is small.
        let between: &[f64] =
            if range.end / range.start < 300.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
        let ticks =
            decades.flat_map(|decade| between.iter().map(move |digit| digit * 10f64.powi(decade)));
        let ticks = ticks.filter(|tick| range.contains(tick)).collect();
        Scale { logarithmic: true, range, ticks }
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let place = |value: f64| {
            if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
        };
        let (from, to) = (place(self.range.start), place(self.range.end));
        let share = (place(*value) - from) / (to - from);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Rounds up to the next of 1, 2, 5, 10, 20 ….
fn step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

/// Formats a number on an axis or beside a bar.
fn label(value: f64) -> String {
    let tenths = (value * 10.0).round() / 10.0;
    if tenths.abs() < 20.0 && (tenths - tenths.round()).abs() > 0.05 {
        format!("{tenths:.1}")
    } else {
        group(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(shape: &str, points: &[(&str, f64, f64)]) -> Plot {
        let point = |&(series, x, y): &(&str, f64, f64)| Point { series: series.into(), x, y };
        let points = points.iter().map(point).collect();
        Plot {
            file: "a.svg".into(),
            title: "bytes a connection".into(),
            shape: shape.into(),
            points,
        }
    }

    #[test]
    fn charts_name_what_they_show() {
        let bars = [("dunlin", 0.0, 300.0), ("redis", 0.0, 8_000.0)];
        let svg = plot("bars", &bars).draw().unwrap();
        assert!(svg.contains("dunlin") && svg.contains("8,000"), "{svg}");
        let curves = [("dunlin", 1e3, 290.0), ("dunlin", 1e6, 288.0), ("peer", 1e3, 800.0)];
        for kind in ["linear", "log"] {
            let shape = format!("line; connections; log; bytes; {kind}; 250");
            let svg = plot(&shape, &curves).draw().unwrap();
            assert!(svg.contains("1,000,000") && svg.contains("peer"), "{svg}");
            plot(&shape, &[]).draw().unwrap();
        }
        // A single bar, and no bars at all, must not fail.
        plot("bars", &bars[..1]).draw().unwrap();
        plot("bars", &[]).draw().unwrap();
    }

    #[test]
    fn ticks_stand_at_round_numbers() {
        let linear = Axis { name: "", logarithmic: false }.scale(&[3.0, 170.0]);
        assert_eq!(linear.ticks, [0.0, 50.0, 100.0, 150.0]);
        let log = Axis { name: "", logarithmic: true }.scale(&[20.0, 20_000.0]);
        assert_eq!(log.ticks, [100.0, 1_000.0, 10_000.0]);
        assert_eq!(log.map(&632.455_532_033_675_9, (0, 100)), 50, "half way between 20 and 20,000");
        assert_eq!([label(0.5), label(12.0), label(1_500.0)], ["0.5", "12", "1,500"]);
    }
}
