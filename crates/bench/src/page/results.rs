//! The results of earlier runs, as `scripts/bench/run` keeps them: one JSON object a file.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::expression::{elements, evaluate, show};
use dunlin_load::{Context, Error};

/// Results that are steps of one measurement, by the begin of their names, and the fields that say their order.
const SERIES: [(&str, &[&str]); 5] = [
    ("latency", &["subscribers", "rate"]),
    ("pacing", &["background_load.clients", "label"]),
    ("scale", &["connections"]),
    ("million", &["connections"]),
    ("apns", &["server_order", "server", "table_order"]),
];

/// How `dunlin apns bench` calls the server that it brings itself.
const SIMULATOR: &str = "simulator";

/// The tables of `dunlin apns bench`, in the order of the page.
const PUSH_TABLES: [&str; 9] =
    ["windows", "vary", "drift", "connections", "bad", "reference", "cpu", "queue", "storm"];

/// A server with less idle time than this is nearly a second limit: what is measured is what both can do together.
const IDLE_SHARE_MIN: f64 = 0.10;

/// A disk that syncs less often than this is what limits changes that wait for it.
const DURABLE_PER_S_MIN: f64 = 5_000.0;

/// Points of the memory's curve in its table, less one; the plot has all.
const CURVE_COLUMNS: usize = 10;

/// Every result in a directory, by its name, and what follows from them.
pub(super) fn read(directory: &Path) -> Result<Value, Error> {
    let mut results = Map::new();
    let entries =
        fs::read_dir(directory).context(format!("cannot read {}", directory.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let result = read_one(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let series = SERIES.iter().find(|(series, _)| name.split('-').next() == Some(series));
        match series {
            Some((series, _)) => {
                let all = results.entry(*series).or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(result.clone()));
            }
            None => {
                results.insert(name.into_owned(), result);
            }
        }
    }
    // The million is the last step of the same growth, only held for longer.
    let millions = results.get("million").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Array(scale)) = results.get_mut("scale") {
        scale.extend(millions);
    }
    let mut results = Value::Object(results);
    for (series, fields) in SERIES {
        if let Some(all) = results.get_mut(series).and_then(Value::as_array_mut) {
            let key = |one: &Value| -> Vec<String> {
                // Numbers with as many digits sort as text does.
                let shown = |field: &&str| match elements(&[one], field).first() {
                    Some(Value::Number(number)) => format!("{:020}", number.as_u64().unwrap_or(0)),
                    other => show(other.copied(), ""),
                };
                fields.iter().map(shown).collect()
            };
            all.sort_by_cached_key(key);
        }
    }
    add_push_servers(&mut results);
    Ok(results)
}

fn read_one(path: &Path) -> Result<Value, Error> {
    let wrong =
        |why: &str| Error::new(format!("{}: {why}; run that benchmark again", path.display()));
    let text = fs::read_to_string(path).context(format!("cannot read {}", path.display()))?;
    let mut result: Value =
        serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
    if !result["host"].is_object() {
        return Err(wrong("it does not say where it was measured"));
    }
    add_contenders(&mut result);
    add_push_rows(&mut result);
    add_config(&mut result);
    add_http(&mut result);
    Ok(result)
}

/// What each contender is: `ours`, the `floor` or a `peer`; and whether the server was nearly a limit too.
fn add_contenders(result: &mut Value) {
    for one in result["contenders"].as_array_mut().into_iter().flatten() {
        let name = show(one.get("name"), "");
        one["kind"] = json!(match name.as_str() {
            "floor" => "floor",
            name if name.starts_with("dunlin") => "ours",
            _ => "peer",
        });
        let idle = one["server_idle_share"].as_f64().unwrap_or(1.0);
        one["limited_by_server"] = json!(idle < IDLE_SHARE_MIN);
    }
}

/// What is asked of changes on disk, which no disk can exceed; and how far apart the costs of a member are.
fn add_config(result: &mut Value) {
    if let Some(syncs_per_s) = result["durable"]["disk_syncs_per_s"].as_f64() {
        let writers = result["durable"]["writers"].as_f64().unwrap_or(1.0);
        result["durable"]["asked_per_s"] = json!(DURABLE_PER_S_MIN.min(syncs_per_s * writers));
    }
    if result["members"].is_array() {
        let p50_us = |members: u32| {
            evaluate(&[result], &format!("members[members={members}].rate.p50_us"))?.as_f64()
        };
        let spread = [1_000, 100_000].map(|members| Some(p50_us(members)? / p50_us(10_000)? - 1.0));
        result["member_spread"] = json!(spread);
    }
    let reasons = result["reasons"].as_object().into_iter().flatten();
    let reasons: Vec<_> =
        reasons.map(|(reason, count)| json!({"reason": reason, "count": count})).collect();
    result["reason_counts"] = json!(reasons);
}

fn add_http(result: &mut Value) {
    for distance in result["distances"].as_array_mut().into_iter().flatten() {
        let rtt_ms = distance["rtt_ms"].clone();
        let modes = distance["modes"].as_array_mut().into_iter().flatten();
        modes.for_each(|mode| mode["rtt_ms"] = rtt_ms.clone());
    }
    for row in result["rows"].as_array_mut().into_iter().flatten() {
        if let Some(apart) = evaluate(&[row], "waiting_measured - waiting_computed") {
            row["waiting_apart"] = json!(apart.as_f64().map(f64::abs));
        }
    }
    let Some(curve) = result["curve"].as_array().filter(|curve| curve.len() > 1) else { return };
    let column = |column: usize| &curve[column * (curve.len() - 1) / CURVE_COLUMNS];
    let columns: Vec<&Value> = (0..=CURVE_COLUMNS).map(column).collect();
    let heads = columns.iter().map(|point| format!(">{} s", show(point.get(0), "0")));
    let cells = columns.iter().map(|point| show(point.get(1), "mib"));
    let point = |point: &Value| json!({"at_s": point[0], "bytes": point[1]});
    let points: Vec<_> = curve.iter().map(point).collect();
    result["curve_table"] = json!({
        "heads": std::iter::once("after".to_owned()).chain(heads).collect::<Vec<_>>(),
        "rows": [std::iter::once("MiB".to_owned()).chain(cells).collect::<Vec<_>>()],
    });
    result["curve"] = json!(points);
}

/// What follows from the figures of each row of pushes, and all senders side by side.
fn add_push_rows(result: &mut Value) {
    let server = show(result.get("server"), "");
    let Some(tables) = result["tables"].as_array_mut() else { return };
    let order = |table: &Value| PUSH_TABLES.iter().position(|name| table["table"] == **name);
    let first = tables.first().and_then(order);
    for row in tables.iter_mut().flat_map(|table| table["rows"].as_array_mut()).flatten() {
        let quotient = |a: &str, b: &str| {
            Some(row[a].as_f64()? / row[b].as_f64().filter(|number| *number > 0.0)?)
        };
        let (share, round_trips) = (quotient("rate", "allowed"), quotient("answer_p50_s", "rtt_s"));
        row["share"] = json!(share);
        row["round_trips"] = json!(round_trips);
        for unmeasured in ["rate", "cpu_s_per_10k"] {
            if row[unmeasured] == 0.0 {
                row[unmeasured] = Value::Null;
            }
        }
        if row["binding"] == "nothing" {
            row["binding"] = Value::Null;
        }
    }
    for table in tables.iter_mut().filter(|table| table["table"] == "windows") {
        table["side_by_side"] = side_by_side(table["rows"].as_array().map_or(&[], Vec::as_slice));
    }
    result["server_order"] = json!(u8::from(server != SIMULATOR));
    result["table_order"] = json!(first);
}

/// The servers that pushes were measured against, each with all its tables.
fn add_push_servers(results: &mut Value) {
    let mut servers: Vec<(String, Vec<Value>)> = Vec::new();
    for result in results["apns"].as_array().into_iter().flatten() {
        let name = show(result.get("server"), "");
        let tables = result["tables"].as_array().cloned().unwrap_or_default();
        match servers.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.extend(tables),
            None => servers.push((name, tables)),
        }
    }
    let servers = servers.into_iter().map(|(name, tables)| {
        let rows = |table: &str| -> Vec<Value> {
            let of = elements_of(&tables, &format!("all[table={table}].rows"));
            of.into_iter().filter(|row| row["who"] == "dunlin").collect()
        };
        json!({"name": name, "windows": rows("windows"), "cpu": rows("cpu"), "connections": rows("connections"),
            "bad": rows("bad"), "reference": rows("reference"), "queue": rows("queue"), "storm": rows("storm")})
    });
    results["push_servers"] = servers.collect();
}

fn elements_of(tables: &[Value], path: &str) -> Vec<Value> {
    let all = json!({"all": tables});
    elements(&[&all], path).into_iter().cloned().collect()
}

/// All senders of a case in one row.
fn side_by_side(rows: &[Value]) -> Value {
    let distinct = |field: &str| {
        let mut all: Vec<&str> = Vec::new();
        for value in rows.iter().filter_map(|row| row[field].as_str()) {
            if !all.contains(&value) {
                all.push(value);
            }
        }
        all
    };
    let senders = distinct("who");
    let heads_of = |what: &str| {
        let head = |(index, who): (usize, &&str)| match index {
            0 => format!(">{what}: {who}"),
            _ => format!(">{who}"),
        };
        senders.iter().enumerate().map(head).collect::<Vec<_>>()
    };
    let plain = |heads: &[&str]| heads.iter().map(|&head| head.to_owned()).collect::<Vec<_>>();
    let heads = [
        plain(&["one connection", ">allowed/s"]),
        heads_of("pushes/s"),
        plain(&[">reached", ">after", "binds"]),
        heads_of("answer in round trips"),
        plain(&[">shortest"]),
        heads_of("CPU s / 10,000"),
        plain(&[""]),
    ];
    let row = |case: &str| -> Option<Vec<String>> {
        let of = |who: &&str| rows.iter().find(|row| row["what"] == case && row["who"] == **who);
        let each = |field: &str, format: &str| {
            let cell = |who| show(of(who).and_then(|row| row.get(field)), format);
            senders.iter().map(cell).collect::<Vec<_>>()
        };
        let ours = of(senders.first()?)?;
        let own = |field: &str, format: &str| show(ours.get(field), format);
        let after = ours["reached_s"].as_f64().map(|seconds| format!("{seconds:.1} s"));
        let notes = senders.iter().filter_map(|who| {
            // Behind its first colon stands what a library says of its errors.
            let note = of(who)?["note"].as_str().unwrap_or_default().split(':').next()?;
            let missed = if of(who)?["holds"] == true { "" } else { "**misses what was asked** " };
            let note = format!("{missed}{note}").trim().to_owned();
            (!note.is_empty()).then(|| format!("{who}: {note}"))
        });
        let cells = [
            vec![case.to_owned(), own("allowed", "group")],
            each("rate", "rate"),
            vec![
                own("share", "percent"),
                after.unwrap_or_else(|| show(None, "")),
                own("binding", ""),
            ],
            each("round_trips", "2"),
            vec![own("answer_min_s", "ms")],
            each("cpu_s_per_10k", "3"),
            vec![notes.collect::<Vec<_>>().join("; ")],
        ];
        Some(cells.concat())
    };
    let rows: Vec<_> = distinct("what").into_iter().filter_map(row).collect();
    json!({"heads": heads.concat(), "rows": rows})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_stand_side_by_side_and_a_row_that_misses_says_so() {
        let row = |who: &str, holds: bool| {
            json!({"what": "64 KiB", "who": who, "rate": 590.0, "allowed": 600.0, "share": 0.983, "round_trips": 1.0,
                "reached_s": 1.4, "binding": "window", "cpu_s_per_10k": 0.1, "holds": holds})
        };
        let table = side_by_side(&[row("dunlin", true), row("a2", false)]);
        let cells: Vec<_> =
            table["rows"][0].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
        let expected = [
            "64 KiB", "600", "590", "590", "98.3 %", "1.4 s", "window", "1.00", "1.00", "–",
            "0.100", "0.100",
        ];
        assert_eq!(cells[..12], expected);
        assert_eq!(cells[12], "a2: **misses what was asked**");
    }
}
