//! The plots of the page, as SVG.

use plotters::prelude::*;

use super::page::group;
use super::results::Results;
use crate::error::Error;

const SIZE: (u32, u32) = (760, 300);
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);

/// Every plot there are results for: file name and drawing.
pub(super) fn draw(results: &Results) -> Result<Vec<(String, String)>, Error> {
    let mut drawings = Vec::new();
    let others = [&results.one, &results.burst, &results.burst_slow];
    if let Some(idle) = &results.idle {
        let mut bars =
            vec![("dunlin".to_owned(), idle.user_bytes_per_connection.unwrap_or(0) as f64)];
        for other in others.into_iter().flatten().flat_map(|findings| &findings.contenders) {
            if let (Some(bytes), false) = (
                other.user_bytes_per_connection,
                ["floor", "dunlin"].contains(&other.name.as_str()),
            ) {
                bars.push((other.name.clone(), bytes as f64));
            }
        }
        drawings.push((
            "idle.svg".to_owned(),
            bar_chart("user bytes an idle connection (logarithmic)", &bars)?,
        ));
    }
    if let Some(one) = &results.one {
        let bars: Vec<_> =
            one.contenders.iter().map(|one| (one.name.clone(), one.messages_per_s)).collect();
        drawings.push((
            "fanout.svg".to_owned(),
            bar_chart("messages a second, one publish at a time (logarithmic)", &bars)?,
        ));
    }
    if let Some(burst) = &results.burst {
        let slow = results.burst_slow.iter().flat_map(|slow| &slow.contenders);
        let bars: Vec<_> = burst
            .contenders
            .iter()
            .chain(slow.filter(|one| one.name != "floor"))
            .map(|one| (one.name.clone(), one.messages_per_s))
            .collect();
        drawings.push((
            "burst.svg".to_owned(),
            bar_chart("messages a second in a burst (logarithmic)", &bars)?,
        ));
    }
    for super::http::Bars { file, title, bars } in super::http::bars(&results.http) {
        drawings.push((file, bar_chart(&title, &bars)?));
    }
    if let Some(memory) = results.http.memory.as_ref().filter(|memory| memory.curve.len() > 1) {
        let drawing =
            time_chart("MiB resident in the generator, by seconds", &super::http::mib(memory))?;
        drawings.push((super::http::MEMORY_PLOT.to_owned(), drawing));
    }
    if !results.scale.is_empty() {
        let memory: Vec<_> = results
            .scale
            .iter()
            .filter_map(|one| Some((one.connected as f64, one.user_bytes_per_connection? as f64)))
            .collect();
        drawings
            .push(("scale-memory.svg".to_owned(), line_chart("user bytes a connection", &memory)?));
        let cpu: Vec<_> = results
            .scale
            .iter()
            .filter_map(|one| {
                let broadcast = one.broadcast.as_ref()?;
                Some((one.connected as f64, broadcast.cpu_us_per_message_without_pings?))
            })
            .collect();
        drawings.push((
            "scale-cpu.svg".to_owned(),
            line_chart("CPU µs a message, pings left out", &cpu)?,
        ));
    }
    let points: Vec<_> = results.apns.iter().flat_map(super::apns::reached).collect();
    if !points.is_empty() {
        drawings.push(("apns.svg".to_owned(), reached_chart(&points)?));
    }
    Ok(drawings)
}

/// What was reached over what was allowed, both logarithmic: on the line is all of it.
fn reached_chart(points: &[(f64, f64)]) -> Result<String, Error> {
    let least = points.iter().map(|point| point.0.min(point.1)).fold(f64::MAX, f64::min).max(1.0);
    let most = points.iter().map(|point| point.0.max(point.1)).fold(10.0, f64::max) * 1.5;
    let range = least / 1.5..most;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(
                "pushes a second on one connection: reached, over what binds",
                ("sans-serif", 17),
            )
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(range.clone().log_scale(), range.clone().log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("allowed by window, streams and round trip")
            .x_label_formatter(&|value| group(*value))
            .y_label_formatter(&|value| group(*value))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        let all = [(range.start, range.start), (range.end, range.end)];
        chart.draw_series(LineSeries::new(all, OTHERS.stroke_width(1))).map_err(failed)?;
        chart
            .draw_series(points.iter().map(|point| Circle::new(*point, 4, OURS.filled())))
            .map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(format!("cannot draw: {error}"))
}

/// Horizontal bars, the longest first. The scale is logarithmic, for the servers differ by orders of magnitude.
fn bar_chart(title: &str, bars: &[(String, f64)]) -> Result<String, Error> {
    let mut bars: Vec<_> = bars.iter().filter(|(_, value)| *value > 0.0).collect();
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = bars.first().map_or(1.0, |bar| bar.1);
    let least = bars.last().map_or(1.0, |bar| bar.1);
    let mut svg = String::new();
    {
        let height = 60 + 34 * bars.len() as u32;
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let text = ("sans-serif", 15).into_font();
        root.draw(&Text::new(title.to_owned(), (16, 14), ("sans-serif", 17).into_font()))
            .map_err(failed)?;
        let (left, width) = (110, f64::from(SIZE.0 - 230));
        // A bar a tenth of the width for the least, so that it is seen.
        let length = |value: f64| {
            let span = (most / least).log10().max(f64::MIN_POSITIVE);
            (width * (0.1 + 0.9 * (value / least).log10() / span)) as i32
        };
        for (index, (name, value)) in bars.iter().enumerate() {
            let top = 46 + 34 * index as i32;
            let color = if name == "dunlin" { OURS } else { OTHERS };
            let corners = [(left, top), (left + length(*value), top + 24)];
            root.draw(&Rectangle::new(corners, color.filled())).map_err(failed)?;
            root.draw(&Text::new(name.clone(), (16, top + 5), text.clone())).map_err(failed)?;
            let at = (left + length(*value) + 8, top + 5);
            root.draw(&Text::new(group(*value), at, text.clone())).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Values by seconds, from nothing up.
fn time_chart(title: &str, points: &[(f64, f64)]) -> Result<String, Error> {
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max) * 1.25;
    let last = points.last().map_or(1.0, |point| point.0);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 17))
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last, 0.0..most)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|value| group(*value))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), OURS.stroke_width(2)))
            .map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// A line over the number of connections, which grows by tens; from zero upwards, so that a slope is not exaggerated.
fn line_chart(title: &str, points: &[(f64, f64)]) -> Result<String, Error> {
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max) * 1.25;
    let first = points.first().map_or(1.0, |point| point.0) / 2.0;
    let last = points.last().map_or(10.0, |point| point.0) * 2.0;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 17))
            .margin(14)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d((first..last).log_scale(), 0.0..most)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("connections")
            .x_label_formatter(&|value| group(*value))
            .y_label_formatter(&|value| {
                if most < 20.0 { format!("{value:.1}") } else { group(*value) }
            })
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), OURS.stroke_width(2)))
            .map_err(failed)?;
        chart
            .draw_series(points.iter().map(|point| Circle::new(*point, 4, OURS.filled())))
            .map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_name_what_they_show() {
        let bars = [("dunlin".to_owned(), 300.0), ("redis".to_owned(), 8_000.0)];
        let svg = bar_chart("bytes", &bars).unwrap();
        assert!(svg.contains("dunlin") && svg.contains("8,000"), "{svg}");
        let svg = line_chart("bytes", &[(1e3, 290.0), (1e6, 288.0)]).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("1,000,000"), "{svg}");
        // One bar alone, and nothing at all, are no reason to fail.
        bar_chart("one", &bars[..1]).unwrap();
        bar_chart("none", &[]).unwrap();
        line_chart("none", &[]).unwrap();
        let svg = reached_chart(&[(600.0, 590.0), (4_000.0, 3_990.0)]).unwrap();
        assert!(svg.starts_with("<svg"), "{svg}");
    }
}
