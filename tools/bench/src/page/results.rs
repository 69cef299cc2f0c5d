//! Reads the results of earlier runs, as `scripts/bench/run` stores them: one JSON object per file.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use dunlin_load::{Context, Error};

/// Prefixes of the names of results that are steps of one measurement, with JSON pointers to their sort keys.
const SERIES: [(&str, &[&str]); 6] = [
    ("latency", &["/subscribers", "/rate"]),
    ("pacing", &["/background_load/clients", "/label"]),
    ("scale", &["/connections"]),
    ("million", &["/connections"]),
    ("chaos", &["/layout"]),
    ("apns", &["/server_order", "/server", "/table_order"]),
];

/// The name of `dunlin apns bench` for its built-in server.
const SIMULATOR: &str = "simulator";

/// The tables of `dunlin apns bench`, in the order of the page.
const PUSH_TABLES: [&str; 9] =
    ["windows", "vary", "drift", "connections", "bad", "reference", "cpu", "queue", "storm"];

/// With less idle time than this, the server is nearly saturated: the result is the limit of both programs together.
const IDLE_SHARE_MIN: f64 = 0.10;

/// Reads every result in a directory, by name, and adds derived values.
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
            // Names of the template have underscores.
            None => {
                results.insert(name.replace('-', "_"), result);
            }
        }
    }
    // The run with a million connections is the last step of the same series, only held for longer.
    let millions = results.get("million").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Array(scale)) = results.get_mut("scale") {
        scale.extend(millions);
    }
    let mut results = Value::Object(results);
    for (series, fields) in SERIES {
        if let Some(all) = results.get_mut(series).and_then(Value::as_array_mut) {
            let key = |one: &Value| -> Vec<String> {
                // Padded to the same number of digits, so that numbers sort as text.
                let shown = |field: &&str| match one.pointer(field) {
                    Some(Value::Number(number)) => format!("{:020}", number.as_u64().unwrap_or(0)),
                    other => other.and_then(Value::as_str).unwrap_or_default().to_owned(),
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
    for row in result["rows"].as_array_mut().into_iter().flatten() {
        if let (Some(measured), Some(computed)) =
            (row["waiting_measured"].as_f64(), row["waiting_computed"].as_f64())
        {
            row["waiting_apart"] = json!((measured - computed).abs());
        }
    }
    Ok(result)
}

/// Adds each contender's kind (`ours`, `floor` or `peer`) and whether the server was nearly saturated.
fn add_contenders(result: &mut Value) {
    for one in result["contenders"].as_array_mut().into_iter().flatten() {
        one["kind"] = json!(match one["name"].as_str().unwrap_or_default() {
            "floor" => "floor",
            name if name.starts_with("dunlin") => "ours",
            _ => "peer",
        });
        let idle = one["server_idle_share"].as_f64().unwrap_or(1.0);
        one["limited_by_server"] = json!(idle < IDLE_SHARE_MIN);
    }
}

/// Adds derived figures to each row of pushes.
fn add_push_rows(result: &mut Value) {
    let is_other = result["server"] != SIMULATOR;
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
    result["server_order"] = json!(u8::from(is_other));
    result["table_order"] = json!(first);
}

/// Groups the results by the server that pushes were measured against, with the rows of each table.
fn add_push_servers(results: &mut Value) {
    let mut servers: Vec<Value> = Vec::new();
    for result in results["apns"].as_array().into_iter().flatten() {
        let place = servers.iter().position(|known| known["name"] == result["server"]);
        let place = place.unwrap_or_else(|| {
            servers.push(json!({"name": result["server"]}));
            servers.len() - 1
        });
        for table in result["tables"].as_array().into_iter().flatten() {
            let rows = table["rows"].as_array().into_iter().flatten();
            let ours = rows.filter(|row| row["who"] == "dunlin").cloned();
            let name = table["table"].as_str().unwrap_or_default();
            let all = servers[place][name].take();
            let all = all.as_array().cloned().unwrap_or_default().into_iter();
            servers[place][name] = all.chain(ours).collect();
        }
    }
    if !servers.is_empty() {
        results["push_servers"] = json!(servers);
    }
}
