//! Fills in the template of the page, written in [Jinja](minijinja), from the results.
//!
//! | filter | value |
//! |---|---|
//! | `group`, `percent`, `time`, … | a formatted number, see [`show`]; `fixed(n)`: with `n` decimals |
//! | `min`, `max`, `sum` | of the numbers in a list or a record |
//! | `count` | number of elements |
//! | `flat` | concatenation of nested lists |
//! | `over(x)`, `times(x)` | quotient and product of measured numbers |
//!
//! `source(part, hosts)` returns the commands and machines of the results. A missing measurement is shown as a dash.

use dunlin_load::Error;
use dunlin_load::figures::{group, percent};
use dunlin_load::host::Host;
use dunlin_load::http::time;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, UndefinedBehavior};
use serde::Deserialize;

/// Shown in place of a missing measurement.
pub(super) const NOTHING: &str = "–";

const FORMATS: [&str; 13] = [
    "group",
    "percent",
    "percent0",
    "signed_percent",
    "ratio",
    "rate",
    "fine",
    "time",
    "ms",
    "mib",
    "mib1",
    "signed_mib",
    "gib",
];

/// Fills in the template.
///
/// # Errors
/// Describes what is wrong with the template, and where.
pub(super) fn render(template: &str, results: &serde_json::Value) -> Result<String, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(format!("the template of the page, tools/bench/page.md: {error}"))
    };
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|error| failed(&error))?);
    env.set_undefined_behavior(UndefinedBehavior::Chainable);
    env.set_formatter(|out, _, value| Ok(out.write_str(&show(value, "text"))?));
    for format in FORMATS {
        env.add_filter(format, move |value: Value| show(&value, format));
    }
    env.add_filter("fixed", |value: Value, digits: usize| match number(&value) {
        Some(number) => format!("{number:.digits$}"),
        None => show(&value, "text"),
    });
    env.add_filter("min", |value: Value| numbers(&value).into_iter().reduce(f64::min));
    env.add_filter("max", |value: Value| numbers(&value).into_iter().reduce(f64::max));
    env.add_filter("sum", |value: Value| numbers(&value).iter().sum::<f64>());
    env.add_filter("count", |value: Value| elements(&value).len());
    env.add_filter("flat", |value: Value| -> Vec<Value> {
        elements(&value).iter().flat_map(elements).collect()
    });
    env.add_filter("over", |a: Value, b: Value| Some(number(&a)? / number(&b)?));
    env.add_filter("times", |a: Value, b: Value| Some(number(&a)? * number(&b)?));
    env.add_function("source", source);
    let results = Value::deserialize(results).map_err(|error| failed(&error))?;
    env.render_str(template, results).map_err(|error| failed(&error))
}

fn number(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number).then(|| f64::try_from(value.clone()).ok())?
}

/// Returns the elements of a list. Any other value is a single element; a missing value has none.
fn elements(value: &Value) -> Vec<Value> {
    let all = match value.kind() {
        ValueKind::Undefined | ValueKind::None => Vec::new(),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().map_or(Vec::new(), Iterator::collect)
        }
        _ => vec![value.clone()],
    };
    all.into_iter().filter(|one| !one.is_none() && !one.is_undefined()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    let fields = |record: Value| -> Vec<Value> {
        match (record.kind(), record.try_iter()) {
            (ValueKind::Map, Ok(keys)) => {
                keys.filter_map(|key| record.get_item(&key).ok()).collect()
            }
            _ => vec![record],
        }
    };
    elements(value).into_iter().flat_map(fields).filter_map(|one| number(&one)).collect()
}

/// Formats a value.
fn show(value: &Value, format: &str) -> String {
    let Some(number) = number(value).filter(|_| format != "text") else {
        return if value.is_none() || value.is_undefined() {
            NOTHING.to_owned()
        } else {
            value.to_string()
        };
    };
    let mib = number / f64::from(1 << 20);
    match format {
        "percent" => percent(number),
        "percent0" => format!("{:.0} %", number * 100.0),
        "signed_percent" => format!("{:+.0} %", number * 100.0),
        // A large ratio is easier to read as a factor.
        "ratio" if number >= 10.0 => format!("{number:.1} ×"),
        "ratio" => percent(number),
        "rate" if number < 20.0 => format!("{number:.1}"),
        "fine" if number < 1e3 => format!("{number:.1}"),
        "time" => time(number),
        "ms" => format!("{:.1} ms", number * 1e3),
        "mib" => format!("{mib:.2}"),
        "mib1" => format!("{mib:.1}"),
        "signed_mib" => format!("{mib:+.2}"),
        "gib" => format!("{:.2} GiB", mib / 1024.0),
        _ => group(number),
    }
}

/// Describes where the results of a section come from: its commands, grouped by machine and commit.
#[expect(clippy::needless_pass_by_value, reason = "the form of a function of templates")]
fn source(part: &str, hosts: Value) -> String {
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    for host in elements(&hosts).into_iter().filter_map(|host| Host::deserialize(host).ok()) {
        let Host { cpu, cores, memory_gib, kernel, day, command, commit } = host;
        let commit = commit.map_or(String::new(), |commit| format!(", commit {commit}"));
        let place = format!("{cpu}, {cores} cores, {memory_gib} GiB, {kernel}, {day}{commit}");
        match places.iter_mut().find(|known| known.0 == place) {
            Some(known) => known.1.push(command),
            None => places.push((place, vec![command])),
        }
    }
    let text = places.into_iter().map(|(place, commands)| {
        format!("`scripts/bench/run {part}`. {place}.\n\n```sh\n{}\n```\n", commands.join("\n"))
    });
    text.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_computed_and_shown_and_what_is_not_there_is_a_dash() {
        let results = serde_json::json!({
            "rows": [
                {"who": "dunlin", "rate": 30.0, "allowed": 40.0, "what": "64 KiB, apart"},
                {"who": "a2", "rate": 10.0, "allowed": null, "what": "64 KiB"},
            ],
            "faults": {"lost": 0, "repeated": 2},
            "clients": 1_000_000,
        });
        for (template, text) in [
            ("{{ clients|group }} {{ clients }}", "1,000,000 1000000"),
            ("{{ rows[0].rate|over(rows[0].allowed)|percent }}", "75.0 %"),
            ("{{ rows[1].rate|over(rows[1].allowed)|percent }}", NOTHING),
            (
                "{{ rows|selectattr('what', 'endingwith', 'apart')|map(attribute='who')|join }}",
                "dunlin",
            ),
            ("{{ rows|map(attribute='rate')|max|fixed(1) }} {{ faults|sum }}", "30.0 2.0"),
            ("{{ rows|count }} {{ rows|map(attribute='allowed')|count }}", "2 1"),
            ("{{ absent.field }} {{ absent|max|group }} {{ absent|sum == 0 }}", "– – True"),
            ("{% for row in absent|selectattr('a') %}x{% endfor %}", ""),
        ] {
            assert_eq!(render(template, &results).unwrap(), text, "{template}");
        }
        let error = render("{{ rows|no_such_filter }}", &results).unwrap_err().to_string();
        assert!(error.contains("page.md") && error.contains("no_such_filter"), "{error}");
    }
}
