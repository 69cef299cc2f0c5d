//! Compares load generators: each runs alone on one core against the same server on another, in turn.

use std::path::PathBuf;

use serde_json::json;

use super::Comparison;
use super::program::{SERVER, own_program, run as start, serve};
use crate::figures::median;
use crate::installed::{find, version};
use crate::{Error, ExitStatus, Process, Progress, Scratch, say};

const DEPTHS: [u32; 3] = [1, 16, 100];
const OURS: &str = "dunlin";

struct Generator {
    name: &'static str,
    version: Option<String>,
    program: PathBuf,
    pipelines: bool,
}

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let scratch = &Scratch::temporary("comparison")?;
    let (generators, missing) = generators(options)?;
    let (process, url) = match (&options.cmd, &options.url) {
        (Some(command), Some(url)) => {
            let address = crate::url::Url::parse(url)?.address;
            (Process::start(command, &[options.server_core], address, None)?, url.clone())
        }
        _ => (serve(options, "")?, format!("http://{SERVER}/hello")),
    };
    let turns = u64::from(options.rounds) * (DEPTHS.len() * generators.len()) as u64;
    let mut progress = Progress::new("generators", turns);
    let mut contenders = Vec::new();
    let mut turn = 0;
    for depth in DEPTHS {
        let takes_part = |generator: &&Generator| depth == 1 || generator.pipelines;
        let mut rates: Vec<Vec<(f64, f64, f64)>> =
            generators.iter().filter(takes_part).map(|_| Vec::new()).collect();
        for _ in 0..options.rounds {
            for (generator, rates) in generators.iter().filter(takes_part).zip(&mut rates) {
                let arguments = generator.arguments(options, depth, &url, scratch)?;
                let cpu_before = process.cpu_ns();
                let run = start(&generator.program, &arguments)?;
                let server_s = process.cpu_ns().saturating_sub(cpu_before) as f64 / 1e9;
                let rate = generator.rate(&run.output)?;
                // Startup and exit of the program are not part of the measured time, nor of the server's idle time.
                let time_s = options.time.as_secs_f64().min(run.seconds);
                rates.push((rate, 1.0 - server_s / time_s, run.cpu_seconds / run.seconds));
            }
            turn += generators.len() as u64;
            progress.set(turn);
        }
        let names: Vec<_> = generators.iter().filter(takes_part).map(|one| one.name).collect();
        for (index, one) in generators.iter().filter(takes_part).enumerate() {
            let name = &one.name;
            let of = |pick: fn(&(f64, f64, f64)) -> f64| -> Vec<f64> {
                rates[index].iter().map(pick).collect()
            };
            let ratios: Vec<f64> = (0..options.rounds as usize)
                .filter_map(|round| {
                    let others = names
                        .iter()
                        .enumerate()
                        .filter(|(_, other)| *other != name && **other != OURS);
                    let best = others.map(|(other, _)| rates[other][round].0).fold(0.0, f64::max);
                    (best > 0.0).then(|| rates[index][round].0 / best)
                })
                .collect();
            let rounds = of(|rate| rate.0);
            // For other generators, the version that they report; all figures are medians over the rounds.
            contenders.push(json!({
                "name": name,
                "version": one.version,
                "depth": depth,
                "requests_per_second": median(&rounds),
                // Relative to the best other generator at this depth, within each round.
                "to_best_other": median(&ratios),
                // Idle share of the server's core; without idle time the server was the limit, not the generator.
                "server_idle_share": median(&of(|rate| rate.1)),
                // Busy share of the generator's core.
                "generator_busy_share": median(&of(|rate| rate.2)),
                "rounds": rounds,
            }));
        }
    }
    drop(progress);
    options.output.report(
        "http-generators",
        &json!({
            "server": options.cmd.as_deref().unwrap_or("dunlin bench serve"),
            "connections": options.connections,
            "rounds": options.rounds,
            "seconds": options.time.as_secs_f64(),
            "contenders": contenders,
            "missing": missing,
        }),
    )?;
    Ok(ExitStatus::Passed)
}

fn generators(options: &Comparison) -> Result<(Vec<Generator>, Vec<String>), Error> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for (name, pipelines) in [("wrk", true), ("h2load", true), ("autocannon", true), ("oha", false)]
    {
        match find(name, &options.programs) {
            Some(program) => found.push(Generator {
                name,
                version: version(&program, if name == "wrk" { "-v" } else { "--version" }),
                program,
                pipelines,
            }),
            None => missing.push(name.to_owned()),
        }
    }
    found.push(Generator { name: OURS, version: None, program: own_program()?, pipelines: true });
    for name in &missing {
        say(format!("{name} is not installed; scripts/bench/setup brings it"));
    }
    Ok((found, missing))
}

impl Generator {
    fn arguments(
        &self,
        options: &Comparison,
        depth: u32,
        url: &str,
        scratch: &Scratch,
    ) -> Result<Vec<String>, Error> {
        let (connections, seconds) = (options.connections, options.time.as_secs().max(1));
        let line = match self.name {
            "wrk" => {
                let lua = format!(
                    "init = function(args)\n  local all = {{}}\n  \
                     for i = 1, {depth} do all[i] = wrk.format() end\n  joined = table.concat(all)\nend\n\
                     request = function() return joined end\n"
                );
                let script = scratch.file(&format!("pipeline-{depth}.lua"), &lua)?;
                let with =
                    if depth > 1 { format!(" -s {}", script.display()) } else { String::new() };
                format!("-t 1 -c {connections} -d {seconds}s{with} {url}")
            }
            "h2load" => format!("--h1 -t 1 -c {connections} -m {depth} -D {seconds} {url}"),
            "autocannon" => format!("-c {connections} -p {depth} -d {seconds} -j {url}"),
            "oha" => format!("-z {seconds}s -c {connections} --no-tui --output-format json {url}"),
            _ => format!("http {url} -c {connections} -p {depth} -d {seconds}s --json"),
        };
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }

    /// Parses the requests per second that the generator reports.
    fn rate(&self, output: &str) -> Result<f64, Error> {
        let json = |path: &[&str]| -> Option<f64> {
            let text = output.lines().last().filter(|line| line.starts_with('{')).unwrap_or(output);
            let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
            for key in path {
                value = value.get_mut(*key)?.take();
            }
            value.as_f64()
        };
        let after = |mark: &str| -> Option<f64> {
            let rest = &output[output.find(mark)? + mark.len()..];
            rest.split_whitespace().next()?.parse().ok()
        };
        let rate = match self.name {
            "wrk" => after("Requests/sec:"),
            "h2load" => output
                .lines()
                .find(|line| line.starts_with("finished in"))
                .and_then(|line| line.split(',').nth(1)?.split_whitespace().next()?.parse().ok()),
            "autocannon" => json(&["requests", "average"]),
            "oha" => json(&["summary", "requestsPerSec"]),
            _ => json(&["requests_per_second"]),
        };
        rate.filter(|rate| *rate > 0.0).ok_or_else(|| {
            let said: String = output.chars().take(300).collect();
            Error::new(format!("{}: its output has no rate: {said}", self.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(name: &'static str, output: &str) -> Result<f64, Error> {
        let generator = Generator { name, version: None, program: PathBuf::new(), pipelines: true };
        generator.rate(output)
    }

    #[test]
    fn rates_stand_where_each_generator_puts_them() {
        let wrk = "  670 requests in 5.00s\nRequests/sec: 134000.12\nTransfer/sec: 6.5MB\n";
        assert_eq!(rate("wrk", wrk).unwrap(), 134_000.12);
        let h2load = "starting benchmark...\nfinished in 5.00s, 2920000.40 req/s, 139.23MB/s\n";
        assert_eq!(rate("h2load", h2load).unwrap(), 2_920_000.40);
        assert_eq!(rate("autocannon", "{\"requests\":{\"average\":50000}}").unwrap(), 50_000.0);
        assert_eq!(rate("oha", "{\n\"summary\":{\"requestsPerSec\":9.5}\n}").unwrap(), 9.5);
        assert_eq!(rate(OURS, "x\n{\"requests_per_second\":7.0}").unwrap(), 7.0);
        assert!(rate("wrk", "unable to connect").unwrap_err().to_string().contains("unable"));
    }
}
