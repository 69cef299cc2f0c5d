//! What stands between braces in the template of the page: a path into the results, some arithmetic, and a format.
//!
//! | expression | value |
//! |---|---|
//! | `idle.connected` | a field; the innermost scope that has the first name is the one that is asked |
//! | `scale.host` | of an array: the field of each element |
//! | `faults.*`, `trials.0` | all fields, or elements; one of them |
//! | `rows[who=dunlin]` | elements by a field: `=` is, `^` begins with, `$` ends with, negated by `!`; `[allowed]`: is there |
//! | `.` | the innermost scope itself |
//! | `rate / allowed` | arithmetic, from the left to the right |
//! | `max members.rate.p99_us` | `min`, `max`, `sum` and `count` of what the path leads to |

use dunlin_load::figures::{group, percent};
use dunlin_load::http::time;
use serde_json::Value;

use super::grid::NOTHING;

/// The values that names are looked up in, the innermost last.
pub(super) type Scopes<'v> = Vec<&'v Value>;

/// What a path leads to.
pub(super) fn find<'v>(scopes: &[&'v Value], path: &str) -> Vec<&'v Value> {
    if path == "." {
        return scopes.last().copied().into_iter().collect();
    }
    let mut segments = split(path, '.').into_iter();
    let first = segments.next().unwrap_or_default();
    let name = first.split('[').next().unwrap_or_default();
    let Some(scope) = scopes.iter().rev().find(|scope| scope.get(name).is_some()) else {
        return Vec::new();
    };
    let mut found = step(scope, first);
    for segment in segments {
        found = found.into_iter().flat_map(|value| step(value, segment)).collect();
    }
    found.into_iter().filter(|value| !value.is_null()).collect()
}

/// The same, with the elements of arrays in their place.
pub(super) fn elements<'v>(scopes: &[&'v Value], path: &str) -> Vec<&'v Value> {
    let elements = |value: &'v Value| match value {
        Value::Array(all) => all.iter().collect(),
        one => vec![one],
    };
    find(scopes, path).into_iter().flat_map(elements).collect()
}

fn step<'v>(value: &'v Value, segment: &str) -> Vec<&'v Value> {
    let (name, filters) = segment.split_at(segment.find('[').unwrap_or(segment.len()));
    let found: Vec<&Value> = match value {
        Value::Array(all) if name == "*" => all.iter().collect(),
        Value::Array(all) => match name.parse::<usize>() {
            Ok(index) => all.get(index).into_iter().collect(),
            Err(_) => all.iter().filter_map(|one| one.get(name)).collect(),
        },
        Value::Object(fields) if name == "*" => fields.values().collect(),
        other => other.get(name).into_iter().collect(),
    };
    if filters.is_empty() {
        return found;
    }
    let all = found.into_iter().flat_map(|value| value.as_array().into_iter().flatten());
    let filters = filters.split(['[', ']']).filter(|filter| !filter.is_empty());
    let filters: Vec<&str> = filters.collect();
    all.filter(|one| filters.iter().all(|filter| passes(one, filter))).collect()
}

fn passes(value: &Value, filter: &str) -> bool {
    for operator in ["=", "^", "$"] {
        let Some((field, wanted)) = filter.split_once(operator) else { continue };
        let text = text(find(&[value], field.trim_end_matches('!')).first().copied());
        let is_so = match operator {
            "=" => text == wanted,
            "^" => text.starts_with(wanted),
            _ => text.ends_with(wanted),
        };
        return is_so != field.ends_with('!');
    }
    is_true(find(&[value], filter).first().copied())
}

fn is_true(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(all)) => !all.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => NOTHING.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The value of an expression; `None` where anything in it was not measured.
pub(super) fn evaluate(scopes: &[&Value], expression: &str) -> Option<Value> {
    let mut words = split(expression.trim(), ' ').into_iter();
    let first = words.next()?;
    let mut value = operand(scopes, first, &mut words)?;
    while let Some(operator) = words.next() {
        let left = value.as_f64()?;
        let word = words.next()?;
        let right = operand(scopes, word, &mut words)?.as_f64()?;
        value = Value::from(match operator {
            "+" => left + right,
            "-" => left - right,
            "*" => left * right,
            "/" => left / right,
            _ => return None,
        });
    }
    Some(value)
}

fn operand<'w>(
    scopes: &[&Value],
    word: &str,
    more: &mut impl Iterator<Item = &'w str>,
) -> Option<Value> {
    if let Ok(number) = word.parse::<f64>() {
        return Some(Value::from(number));
    }
    let mut numbers = || -> Option<Vec<f64>> {
        Some(elements(scopes, more.next()?).into_iter().filter_map(Value::as_f64).collect())
    };
    match word {
        "count" => Some(Value::from(elements(scopes, more.next()?).len())),
        "sum" => Some(Value::from(numbers()?.iter().sum::<f64>())),
        "min" => numbers()?.into_iter().reduce(f64::min).map(Value::from),
        "max" => numbers()?.into_iter().reduce(f64::max).map(Value::from),
        path => find(scopes, path).first().map(|&value| value.clone()),
    }
}

/// Whether all comparisons hold, which are joined by ` & `; `None` where something was not measured.
pub(super) fn holds(scopes: &[&Value], condition: &str) -> Option<bool> {
    let mut all = true;
    for comparison in condition.split(" & ") {
        let operators = [" <= ", " >= ", " != ", " = ", " < ", " > "];
        let Some((operator, (left, right))) = operators
            .iter()
            .find_map(|&operator| Some((operator, comparison.split_once(operator)?)))
        else {
            all &= is_true(evaluate(scopes, comparison).as_ref());
            continue;
        };
        let left = evaluate(scopes, left)?;
        let right = evaluate(scopes, right);
        all &= match (left.as_f64(), right.as_ref().and_then(Value::as_f64)) {
            (Some(left), Some(right)) => match operator {
                " <= " => left <= right,
                " >= " => left >= right,
                " < " => left < right,
                " > " => left > right,
                " = " => left == right,
                _ => left != right,
            },
            // A word that is no path stands for itself.
            _ => (text(Some(&left)) == comparison.split(operator).nth(1)?) == (operator == " = "),
        };
    }
    Some(all)
}

/// A value as its format says.
pub(super) fn show(value: Option<&Value>, format: &str) -> String {
    let Some(number) = value.and_then(Value::as_f64) else { return text(value) };
    let mib = number / f64::from(1 << 20);
    match format {
        "" => text(value),
        "group" => group(number),
        "percent" => percent(number),
        "percent0" => format!("{:.0} %", number * 100.0),
        "+percent0" => format!("{:+.0} %", number * 100.0),
        // Many times as much is easier to read as a factor.
        "ratio" if number >= 10.0 => format!("{number:.1} ×"),
        "ratio" => percent(number),
        "rate" if number < 20.0 => format!("{number:.1}"),
        "fine" if number < 1e3 => format!("{number:.1}"),
        "rate" | "fine" => group(number),
        "time" => time(number),
        "ms" => format!("{:.1} ms", number * 1e3),
        "mib" => format!("{mib:.2}"),
        "mib1" => format!("{mib:.1}"),
        "+mib" => format!("{mib:+.2}"),
        "gib" => format!("{:.2} GiB", mib / 1024.0),
        digits => format!("{number:.*}", digits.parse().unwrap_or(1)),
    }
}

/// Splits outside of brackets.
fn split(text: &str, at: char) -> Vec<&str> {
    let mut depth = 0;
    let pieces = text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        depth == 0 && c == at
    });
    pieces.filter(|piece| !piece.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Value {
        serde_json::json!({
            "rows": [
                {"who": "dunlin", "rate": 30.0, "allowed": 40.0, "what": "64 KiB, apart"},
                {"who": "a2", "rate": 10.0, "allowed": null, "what": "64 KiB"},
            ],
            "faults": {"lost": 0, "repeated": 2},
            "clients": 1_000_000,
        })
    }

    #[test]
    fn expressions_lead_to_values_and_compute() {
        let results = results();
        let scopes = [&results];
        let shown = |expression, format| show(evaluate(&scopes, expression).as_ref(), format);
        assert_eq!(shown("clients", "group"), "1,000,000");
        assert_eq!(shown("rows[who=dunlin].rate / rows[who=dunlin].allowed", "percent"), "75.0 %");
        assert_eq!(shown("rows[what$apart][allowed].who", ""), "dunlin");
        assert_eq!(shown("max rows.rate", "1"), "30.0");
        assert_eq!(shown("sum faults.* * 2 + 1", "0"), "5");
        assert_eq!(shown("rows[who=a2].allowed", "group"), NOTHING);
        assert_eq!(shown("count rows", ""), "2");
    }

    #[test]
    fn a_condition_compares_numbers_and_words() {
        let results = results();
        let inner = results["rows"][0].clone();
        let scopes = [&results, &inner];
        assert_eq!(holds(&scopes, "rate >= 30 & clients = 1000000"), Some(true));
        assert_eq!(holds(&scopes, "rate < allowed & sum faults.* = 0"), Some(false));
        assert_eq!(holds(&scopes, "who = dunlin"), Some(true));
        assert_eq!(holds(&scopes, "who != dunlin"), Some(false));
        assert_eq!(holds(&scopes, "absent <= 3"), None);
        assert_eq!(holds(&scopes, "absent"), Some(false));
    }
}
