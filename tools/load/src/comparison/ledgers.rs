//! Sends a million numbered requests to servers that close and reset connections. Checks that every request is answered
//! exactly once, and that the server's log agrees with the client's ledger.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Comparison;
use super::program::{SERVER, run_http, serve};
use crate::http::{HttpReport, LedgerCheck, judge_ledgers};
use crate::installed::find;
use crate::{Context, Error, ExitStatus, Output, Process, Scratch, say};

const DEPTH: u32 = 100;
/// nginx closes a connection after this many requests.
const KEEPALIVE_REQUESTS: u32 = 100;
/// The other server resets the connection in place of one answer in this many.
const RESET_ONE_IN: u32 = 1_000;

pub(super) fn run(options: &Comparison) -> Result<ExitStatus, Error> {
    let scratch = &Scratch::temporary("ledgers")?;
    let requests = options.requests.unwrap_or(1_000_000);
    let mut trials = Vec::new();
    // Servers that are not installed here.
    let mut missing = Vec::new();
    match find("nginx", &options.programs) {
        Some(nginx) => {
            let config = scratch.file("nginx.conf", &nginx_config(scratch))?;
            let command = format!("{} -c {}", nginx.display(), config.display());
            let server = Process::start(&command, &[options.server_core], SERVER, None)?;
            let name = format!("nginx, keepalive_requests {KEEPALIVE_REQUESTS}");
            trials.push(trial(options, &name, requests, server, scratch)?);
        }
        None => {
            say("nginx is not installed; scripts/bench/setup brings it");
            missing.push("nginx");
        }
    }
    let log = scratch.path().join("server.log");
    // Start with an empty log: nginx has written to this file.
    if log.exists() {
        std::fs::remove_file(&log).context(format!("cannot remove {}", log.display()))?;
    }
    let server = serve(options, &format!("--reset-one-in {RESET_ONE_IN} --log {}", log.display()))?;
    let name = format!("resets instead of one answer in {RESET_ONE_IN}");
    trials.push(trial(options, &name, requests, server, scratch)?);
    let holds = trials.iter().all(|trial| trial["holds"] == true);
    options.output.report(
        "http-ledgers",
        &json!({"requests": requests, "connections": options.connections, "depth": DEPTH,
            "trials": trials, "missing": missing}),
    )?;
    Ok(if holds { ExitStatus::Passed } else { ExitStatus::Failed })
}

fn nginx_config(scratch: &Scratch) -> String {
    let dir = scratch.path().display();
    let mut config = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        config,
        "worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.log warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  log_format ledger '$connection-$connection_requests $http_x_request_id $status';\n  \
         access_log {dir}/server.log ledger buffer=256k flush=1s;\n  keepalive_requests {KEEPALIVE_REQUESTS};\n  \
         client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};\n  \
         server {{ listen {SERVER} backlog=4096;\n    location / {{\n      \
         add_header X-Request-Id $http_x_request_id; add_header X-Served $connection-$connection_requests;\n      \
         return 200 'Hello, World!'; }} }}\n}}\n"
    );
    config
}

fn trial(
    options: &Comparison,
    name: &str,
    requests: u64,
    server: Process,
    scratch: &Scratch,
) -> Result<Value, Error> {
    say(format!("{name}: {requests} requests"));
    let ledger = scratch.path().join("client.ledger");
    let run: HttpReport = run_http(&format!(
        "http://{SERVER}/ -c {} -p {DEPTH} -n {requests} --check-id --ledger {}",
        options.connections,
        ledger.display()
    ))?;
    // The server's log is complete only after the server has exited.
    drop(server);
    let check = LedgerCheck {
        client: ledger,
        server: scratch.path().join("server.log"),
        requests: Some(requests),
        output: Output::default(),
    };
    let (status, agreement) = judge_ledgers(&check)?;
    Ok(json!({
        "server": name,
        "seconds": run.seconds,
        "requests_per_second": run.requests_per_second,
        "connections_opened": run.connection_events.opened,
        "resent": run.ends.resent,
        "holds": status == ExitStatus::Passed && run.is_clean(),
        "agreement": agreement,
    }))
}
