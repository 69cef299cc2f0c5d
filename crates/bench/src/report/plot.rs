//! The plots of the page, as SVG: bars from zero, and curves over axes that are either linear from zero or logarithmic.

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

/// A drawing, and the file it belongs into.
pub(super) struct Plot {
    pub(super) file: String,
    pub(super) title: String,
    pub(super) shape: Shape,
}

pub(super) enum Shape {
    /// From zero, the longest first: their lengths are in the proportion of their values.
    Bars(Vec<(String, f64)>),
    Curves(Curves),
}

pub(super) struct Curves {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
    /// Across the whole, what the values are to be held against.
    pub(super) level: Option<f64>,
}

pub(super) struct Axis {
    /// With its unit.
    pub(super) name: &'static str,
    /// Otherwise linear, from zero upwards, so that a slope is not exaggerated.
    pub(super) logarithmic: bool,
}

pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// By a line, from point to point.
    pub(super) joined: bool,
}

impl Plot {
    pub(super) fn draw(&self) -> Result<String, Error> {
        match &self.shape {
            Shape::Bars(bars) => draw_bars(&self.title, bars),
            Shape::Curves(curves) => draw_curves(&self.title, curves),
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(format!("cannot draw: {error}"))
}

/// The colour of a series by its name and its place among the others.
fn color(name: &str, others_before: usize) -> RGBColor {
    if name.starts_with("dunlin") { OURS } else { OTHERS[others_before % OTHERS.len()] }
}

fn draw_bars(title: &str, bars: &[(String, f64)]) -> Result<String, Error> {
    const LEFT: i32 = 128;
    const ROW: i32 = 34;
    let mut bars: Vec<_> = bars.iter().filter(|(_, value)| *value > 0.0).collect();
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
        text(title, (16, 14), TITLE)?;
        for (index, (name, value)) in bars.iter().enumerate() {
            let top = 46 + ROW * index as i32;
            // Two pixels for the least, so that it is seen.
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

fn draw_curves(title: &str, of: &Curves) -> Result<String, Error> {
    let of_axis = |pick: fn(&(f64, f64)) -> f64| {
        of.curves.iter().flat_map(|curve| &curve.points).map(pick).collect::<Vec<_>>()
    };
    let mut ys = of_axis(|point| point.1);
    ys.extend(of.level);
    let (x, y) = (of.x.scale(&of_axis(|point| point.0)), of.y.scale(&ys));
    let Range { start: from, end: to } = x.range();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, TITLE)
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(of.x.name)
            .y_desc(of.y.name)
            .label_style(TEXT)
            .x_label_formatter(&|value| label(*value))
            .y_label_formatter(&|value| label(*value))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        if let Some(level) = of.level {
            let across = [(from, level), (to, level)];
            chart.draw_series(LineSeries::new(across, LINE.stroke_width(1))).map_err(failed)?;
        }
        let mut others = 0;
        // Ours last, to lie above the others.
        let (ours, theirs): (Vec<_>, Vec<_>) =
            of.curves.iter().partition(|curve| curve.name.starts_with("dunlin"));
        for curve in theirs.into_iter().chain(ours) {
            let color = color(&curve.name, others);
            others += usize::from(color != OURS);
            if curve.joined {
                let line = LineSeries::new(curve.points.iter().copied(), color.stroke_width(2));
                chart.draw_series(line).map_err(failed)?;
            }
            // A curve of many points is a line.
            if !curve.joined || curve.points.len() < 20 {
                let dots = curve.points.iter().map(|point| Circle::new(*point, 4, color.filled()));
                let dots = chart.draw_series(dots).map_err(failed)?;
                dots.label(&curve.name)
                    .legend(move |(x, y)| Circle::new((x + 10, y), 4, color.filled()));
            }
        }
        if of.curves.len() > 1 {
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

/// Where on an axis values stand, and which of them are written.
struct Scale {
    logarithmic: bool,
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Axis {
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
        // Between the decades only where they are few.
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

/// The next of 1, 2, 5, 10, 20 … that is not below.
fn step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

/// A number on an axis or behind a bar.
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

    fn curves(logarithmic: bool, curves: Vec<Curve>) -> Plot {
        let x = Axis { name: "connections", logarithmic: true };
        let y = Axis { name: "bytes", logarithmic };
        let shape = Shape::Curves(Curves { x, y, curves, level: Some(250.0) });
        Plot { file: "a.svg".into(), title: "bytes a connection".into(), shape }
    }

    #[test]
    fn charts_name_what_they_show() {
        let bars = vec![("dunlin".to_owned(), 300.0), ("redis".to_owned(), 8_000.0)];
        let bar_chart =
            |bars| Plot { file: "b.svg".into(), title: "bytes".into(), shape: Shape::Bars(bars) };
        let svg = bar_chart(bars.clone()).draw().unwrap();
        assert!(svg.contains("dunlin") && svg.contains("8,000"), "{svg}");
        let curve = |name: &str| Curve {
            name: name.into(),
            points: vec![(1e3, 290.0), (1e6, 288.0)],
            joined: true,
        };
        for logarithmic in [false, true] {
            let svg = curves(logarithmic, vec![curve("dunlin"), curve("peer")]).draw().unwrap();
            assert!(svg.contains("1,000,000") && svg.contains("peer"), "{svg}");
        }
        // One bar alone, and nothing at all, are no reason to fail.
        bar_chart(bars[..1].to_vec()).draw().unwrap();
        bar_chart(Vec::new()).draw().unwrap();
        curves(false, Vec::new()).draw().unwrap();
        curves(true, Vec::new()).draw().unwrap();
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
