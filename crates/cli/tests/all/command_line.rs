//! What a person at a shell sees of the real binary. What `serve` serves is for tests/interop.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use dunlin_config::Config;
use dunlin_server::auth::Verifier;

/// Runs `dunlin` with a text on its standard input.
fn dunlin(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(arguments)
        .env_remove("DUNLIN_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that refuses its arguments reads none of it.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the binary ends")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn the_default_file_it_prints_is_one_it_accepts() {
    let default = dunlin(&["config", "default"], "");
    assert!(default.status.success());
    assert_eq!(Config::from_toml(&stdout(&default)).unwrap(), Config::default());

    let check = dunlin(&["config", "check", "-"], &stdout(&default));
    assert!(check.status.success(), "{}", stderr(&check));
    assert_eq!(stdout(&check), "The file is valid.\n");
    assert!(stderr(&check).contains("warning: client.token.hmac_secret: no client can connect"));
}

#[test]
fn a_file_with_errors_is_answered_with_all_of_them_and_exit_code_1() {
    let file = "[client]\nping_intervall_ms = 1\n[server]\nworkers = '4'\n";
    let check = dunlin(&["config", "check", "-"], file);
    assert_eq!(check.status.code(), Some(1));
    assert_eq!(
        stderr(&check),
        "error: standard input has 2 errors\n  \
         standard input:2: client.ping_intervall_ms: there is no such key\n    \
         fix: did you mean `ping_interval_ms`?\n  \
         standard input:4: server.workers: expected an integer from 0 to 124, found the string \"4\"\n    \
         fix: write 4 without quotes\n"
    );
}

#[test]
fn a_check_finds_errors_of_form_of_sense_and_of_what_cannot_be_opened_in_one_go() {
    let file = "\
[server]
client_addr = '0.0.0.0:8000'
workers = 'many'
[channel.namespaces.chat]
history_size = 5
histori_ttl_ms = 5
[webhooks.hooks.all]
events = ['publish', 'nonsense']
[api.scopes.backend]
methods = ['teleport']
[channel.namespaces.room]
publish_cel = 'usr == channel'
";
    let check = dunlin(&["config", "check", "-"], file);
    assert_eq!(check.status.code(), Some(1));
    let said = stderr(&check);
    for (line, error) in [
        (2, "server.client_addr: others can reach 0.0.0.0:8000"),
        (3, "server.workers: expected an integer"),
        (5, "channel.namespaces.chat.history_size: nothing is kept"),
        (6, "channel.namespaces.chat.histori_ttl_ms: there is no such key"),
        (8, "webhooks.hooks.all.events.1: expected"),
        (10, "api.scopes.backend.methods.0: there is no method"),
        (12, "channel.namespaces.room.publish_cel: there is no `usr`; there are user"),
    ] {
        assert!(said.contains(&format!("standard input:{line}: {error}")), "{error}\n{said}");
    }
    assert!(!said.contains("it gets no events"), "a list with one wrong word: {said}");
}

#[test]
fn a_check_compiles_the_expressions_of_tenants_too() {
    let file = "\
[tenants.acme.namespaces.room]
subscribe_cel = 'meta.names.all(name, name == user)'
channel_regex = '('
[tenants.acme.without_namespace]
history_cel = 'token'
";
    let check = dunlin(&["config", "check", "-"], file);
    assert_eq!(check.status.code(), Some(1));
    let said = stderr(&check);
    for (line, error) in [
        (2, "tenants.acme.namespaces.room.subscribe_cel: it loops"),
        (3, "tenants.acme.namespaces.room.channel_regex: "),
        (5, "tenants.acme.without_namespace.history_cel: there is no `token`"),
    ] {
        assert!(said.contains(&format!("standard input:{line}: {error}")), "{error}\n{said}");
    }
}

#[test]
fn a_configuration_of_centrifugo_becomes_one_of_dunlin() {
    let yaml = "client:\n  token: {hmac_secret_key: 0123456789abcdef}\nchannel:\n  namespaces:\n    - {name: chat, presence: true, some_condition: a, allow_subscribe_for_client: true}\n";
    let import = dunlin(&["config", "import", "-"], yaml);
    assert!(import.status.success(), "{}", stderr(&import));
    let file = stdout(&import);
    let read_as = "# Made by `dunlin config import` from -, read as Centrifugo v6.";
    assert!(file.starts_with(read_as), "{file}");
    let config = Config::from_toml(&file).unwrap();
    assert!(config.channel.options("chat:1").unwrap().presence);
    let table = stderr(&import);
    assert!(table.starts_with("Read as Centrifugo v6"), "{table}");
    assert!(table.contains("\n\nclosed "), "what is closed comes first: {table}");
    assert!(table.contains("taken           client.token.hmac_secret_key"), "{table}");
    assert!(!table.contains("0123456789abcdef"), "no secret in the table: {table}");
    assert!(table.contains("closed that may have been open"), "{table}");

    let v5 = "\u{feff}{\"token_hmac_secret_key\": \"0123456789abcdef\", \"engine\": \"redis\", \"redis_address\": \"http://a\"}";
    let refused = dunlin(&["config", "import", "-"], v5);
    assert_eq!(refused.status.code(), Some(1), "nodes would share nothing: {}", stderr(&refused));
    assert!(stderr(&refused).contains("redis_address: it cannot be read"), "{}", stderr(&refused));
    let import = dunlin(&["config", "import", "-", "--without-engine"], v5);
    assert!(stderr(&import).contains("Read as Centrifugo v5"), "{}", stderr(&import));
    assert!(stdout(&import).contains("hmac_secret = \"0123456789abcdef\""), "{}", stdout(&import));

    let reverb = "REVERB_APP_ID=1\nREVERB_APP_KEY=key\nREVERB_APP_SECRET=0123456789abcdef\n";
    let env = std::env::temp_dir().join(format!("dunlin-import-{}.env", std::process::id()));
    std::fs::write(&env, reverb).expect("a file");
    let import = dunlin(&["config", "import", "--env", env.to_str().expect("UTF-8")], "");
    assert!(stderr(&import).contains("Read as Laravel Reverb"), "{}", stderr(&import));
    assert!(Config::from_toml(&stdout(&import)).unwrap().pusher.apps.get("main").is_some());
    std::fs::remove_file(env).expect("it was there");

    let place = std::env::temp_dir().join(format!("dunlin-import-{}.toml", std::process::id()));
    let output = place.to_str().expect("UTF-8");
    for succeeds in [true, false] {
        let import = dunlin(&["config", "import", "-", "-o", output], yaml);
        assert_eq!(
            import.status.success(),
            succeeds,
            "nothing is overwritten: {}",
            stderr(&import)
        );
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&place).expect("a file"));
    assert_eq!(mode & 0o777, 0o600, "it has secrets in it");
    std::fs::remove_file(place).expect("it was there");
}

#[test]
fn the_environment_goes_before_the_file_and_a_flag_before_it() {
    let serve = |variables: &[(&str, &str)], flags: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_dunlin"))
            .args(["serve", "--config", "/dev/null"])
            .args(flags)
            .envs(variables.iter().copied())
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let secret = "a secret of some length";
    let said = serve(
        &[
            ("DUNLIN_SERVER_CLIENT_ADDR", "0.0.0.0:1234"),
            ("DUNLIN_API_KEYS_BACKEND", secret),
            ("DUNLIN_CLIENT_PING_INTERVALL_MS", "1"),
        ],
        &[],
    );
    assert!(said.contains("others can reach 0.0.0.0:1234"), "{said}");
    assert!(!said.contains("an API key") && !said.contains(secret), "{said}");
    assert!(said.contains("did you mean DUNLIN_CLIENT_PING_INTERVAL_MS?"), "{said}");
    let said =
        serve(&[("DUNLIN_SERVER_CLIENT_ADDR", "0.0.0.0:1234")], &["--client", "0.0.0.0:4321"]);
    assert!(said.contains("others can reach 0.0.0.0:4321"), "{said}");
    let said = serve(&[("DUNLIN_LIMITS_CONNECTIONS_MAX", "many")], &[]);
    assert!(said.contains("DUNLIN_LIMITS_CONNECTIONS_MAX: expected an integer"), "{said}");
}

/// Whoever types `dunlin bench` need not know that another program does it.
#[test]
fn a_command_of_the_tools_becomes_the_program_beside_with_arguments_exit_code_and_signals() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;

    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let dunlin = directory.path().join("dunlin");
    std::fs::hard_link(env!("CARGO_BIN_EXE_dunlin"), &dunlin).expect("a link");
    let run = |arguments: &[&str]| {
        let empty = directory.path().join("empty");
        Command::new(&dunlin).args(arguments).env("PATH", empty).output().expect("it runs")
    };
    let missing = run(&["bench", "http", "http://127.0.0.1/"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("install the package dunlin-bench"), "{}", stderr(&missing));

    let beside = directory.path().join("dunlin-bench");
    let script = "#!/bin/sh\necho \"$#: $*\"\n[ \"$1\" != die ] || kill -TERM $$\nexit 7\n";
    std::fs::write(&beside, script).expect("a file");
    std::fs::set_permissions(&beside, PermissionsExt::from_mode(0o755)).expect("a program");
    for (arguments, received) in [
        (&["bench", "http", "--help", "-n", "a b"][..], "4: http --help -n a b\n"),
        (&["bench"], "0: \n"),
        (&["bench", "--json", "--", "x"], "3: --json -- x\n"),
        (&["apns", "simulate", "--plain"], "3: apns simulate --plain\n"),
        (&["apns", "bench", "--help"], "3: apns bench --help\n"),
    ] {
        let output = run(arguments);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(7), received));
    }
    assert_eq!(run(&["bench", "die"]).status.signal(), Some(15));
}

#[test]
fn an_open_address_without_keys_is_refused_with_what_to_set() {
    let serve = dunlin(&["serve", "--client", "0.0.0.0:0"], "");
    assert_eq!(serve.status.code(), Some(1));
    let reported = stderr(&serve);
    assert!(
        reported
            .contains("without a configuration Dunlin accepts connections from this machine only"),
        "{reported}"
    );
    assert!(
        reported.contains("api.keys") && reported.contains("client.token.hmac_secret"),
        "{reported}"
    );
    assert_eq!(stdout(&serve), "");

    let serve =
        dunlin(&["serve", "--config", "-", "--client", "[::]:0"], "[client]\nanonymous = true\n");
    assert_eq!(serve.status.code(), Some(1));
    assert!(stderr(&serve).contains("there is nothing to keep them out"), "{}", stderr(&serve));
}

#[test]
fn a_wrong_flag_is_answered_with_the_right_one_and_exit_code_2() {
    let serve = dunlin(&["serve", "--clint", "127.0.0.1:0"], "");
    assert_eq!(serve.status.code(), Some(2));
    assert!(stderr(&serve).contains("'--client'"), "{}", stderr(&serve));

    let serve = dunlin(&["serve", "--client", "localhost:8000"], "");
    assert_eq!(serve.status.code(), Some(2));
    assert!(stderr(&serve).contains("write 127.0.0.1:8000"), "{}", stderr(&serve));
}

#[test]
fn a_token_is_signed_as_the_file_says() {
    let file = "[client.token]\nhmac_secret = '0123456789abcdef'\naudience = 'push'\n";
    let arguments =
        ["token", "ada", "--config", "-", "--channel", "news", "--info", "{\"name\": \"Ada\"}"];
    let token = stdout(&dunlin(&arguments, file));

    let settings = Config::from_toml(file).expect("a valid file").client.token;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let judged = Verifier::new(settings.rules()).verify(token.trim_end(), now_ms as u64);
    let identity = judged.expect("signed with that key");
    assert_eq!(identity.user, "ada");
    let arguments = ["token", "ada", "--config", "-", "--subscription", "chat:1"];
    let token = stdout(&dunlin(&arguments, file));
    let verifier = Verifier::new(settings.rules());
    let subscription = verifier.verify_subscription(token.trim_end(), now_ms as u64);
    let subscription = subscription.expect("signed with that key");
    assert_eq!((&*subscription.user, &*subscription.channel), ("ada", "chat:1"));
    assert!(identity.subscriptions.contains_key("news"));
    assert_eq!(identity.info.expect("an info").get(), "{\"name\":\"Ada\"}");
    assert!(identity.expire_at_s.is_some());

    // A key that the server takes no token of is refused here too.
    let short = dunlin(&["token", "ada", "--secret", "short"], "");
    assert_eq!((short.status.code(), stdout(&short)), (Some(1), String::new()));
    assert_eq!(
        stderr(&short),
        "error: client.token.hmac_secret: it is shorter than 16 bytes; make one with `openssl rand -hex 32`\n"
    );
    let long = dunlin(&["token", "ada", "--secret", "0123456789abcdef"], "");
    assert!(long.status.success() && stdout(&long).starts_with("eyJ"), "{}", stderr(&long));

    let none = dunlin(&["token", "ada"], "");
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("`client.token.hmac_secret`"), "{}", stderr(&none));
}

#[test]
fn check_ends_with_0_or_1_and_a_mending_command_where_something_stops() {
    let one = dunlin(&["check", "1"], "");
    assert!(one.status.success(), "{}", stdout(&one));
    let many = dunlin(&["check", "100000000"], "");
    assert_eq!(many.status.code(), Some(1));
    let reported = stdout(&many);
    assert!(reported.starts_with("100,000,000 connections, "), "{reported}");
    assert!(
        reported.contains("STOPS memory") && reported.contains("connections_max = 100000000"),
        "{reported}"
    );
}

#[test]
fn output_that_goes_nowhere_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["config", "docs"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the binary ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn piped_output_has_no_colours() {
    for arguments in [&["check", "1"][..], &["config", "check", "-"], &["completions", "fish"]] {
        let output = dunlin(arguments, "");
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{arguments:?}");
    }
}

#[test]
fn a_credential_that_cannot_be_used_is_refused_with_its_file_and_what_mends_it() {
    let of = concat!(env!("CARGO_MANIFEST_DIR"), "/../push/tests/certificates");
    let token = "0".repeat(64);
    let send = |options: &[&str]| {
        let common = ["apns", "send", "--token", &token, "--topic", "a.b", "--alert", "Hi"];
        let output = dunlin(&[&common, options].concat(), "");
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        stderr(&output)
    };
    for (file, password, reported) in [
        (
            "ended.p12",
            "dunlin",
            "ended.p12: the certificate expired on 2020-01-31; renew it in the",
        ),
        (
            "ended-old.p12",
            "dunlin",
            "ended-old.p12: the certificate expired on 2020-01-31; renew it",
        ),
        ("ended.pem", "", "ended.pem: the certificate expired on 2020-01-31; renew it in the"),
        ("early.pem", "", "early.pem: the certificate is valid from 2100-03-01 on; set the clock"),
        ("valid.p12", "wrong", "; is the password right?"),
        ("stranger.pem", "", "; export it with its own key"),
        ("make.sh", "", "make.sh: it is neither PEM nor a .p12 file; export certificate and key"),
        ("no-such-file", "", "no-such-file: No such file"),
    ] {
        let file = format!("{of}/{file}");
        let error = send(&["--certificate", &file, "--password", password]);
        assert!(error.contains(reported), "{file}: {error}");
    }
}

#[test]
fn a_push_that_cannot_leave_says_why_at_once_and_not_only_in_the_end() {
    let of = concat!(env!("CARGO_MANIFEST_DIR"), "/../push/tests/certificates");
    let (file, token) = (format!("{of}/valid.p12"), "0".repeat(64));
    let send = |code: i32, options: &[&str]| {
        let credential = ["--certificate", &file, "--password", "dunlin"];
        let common = ["apns", "send", "--token", &token, "--alert", "Hi", "--timeout", "2"];
        let output = dunlin(&[&common[..], &credential, options].concat(), "");
        assert_eq!(output.status.code(), Some(code), "{options:?}");
        stderr(&output)
    };
    // Nobody listens on port 1.
    let error = send(3, &["--address", "127.0.0.1:1"]);
    let why = "127.0.0.1:1 cannot be reached: Connection refused";
    assert!(error.starts_with(&format!("warning: {why}")), "{error}");
    assert!(error.contains(&format!("error: no connection: {why}")), "{error}");
    let error = send(1, &["--address", "127.0.0.1"]);
    assert!(error.contains("--address: write HOST:PORT"), "{error}");
}

#[test]
fn a_push_by_hand_ends_with_a_line_of_json_and_a_code_for_scripts() {
    let behaviour = dunlin_simulate::apns::Behaviour { streams_first: 1_000, ..Default::default() };
    let config = dunlin_simulate::apns::Config { behaviour, ..Default::default() };
    let simulator = dunlin_simulate::apns::Simulator::start(config).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, simulator.ca_pem()).unwrap();
    let key = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/data/apns-key.p8");
    let (address, ca) = (simulator.addr().to_string(), ca.to_str().unwrap().to_owned());
    let id = "123e4567-e89b-12d3-a456-426614174000";
    let send = |command: &[&str], prefix: &str, options: &[&str]| {
        let token = format!("{prefix:0<64}");
        let account = ["--key", key, "--key-id", "KEY1234567", "--team-id", "TEAM123456"];
        let way = ["--address", &address, "--roots", &ca, "--topic", "com.example.app"];
        let push = ["--token", &token, "--alert", "Hi", "--id", id, "--json"];
        let output = dunlin(&[command, &account, &way, &push, options].concat(), "");
        let text = stdout(&output);
        let line: serde_json::Value = serde_json::from_str(&text)
            .unwrap_or_else(|_| panic!("{prefix}: {text}{}", stderr(&output)));
        (output.status.code(), line)
    };
    for command in [&["apns", "send"][..], &["push", "send", "apns"]] {
        let (code, line) = send(command, "aa", &[]);
        assert_eq!(
            (code, &line["outcome"], &line["id"]),
            (Some(0), &"accepted".into(), &id.into())
        );
        let (code, line) = send(command, "dead", &[]);
        assert_eq!((code, &line["reason"]), (Some(4), &"Unregistered".into()));
        let (code, line) = send(command, "0503", &["--timeout", "1"]);
        assert_eq!((code, &line["status"]), (Some(3), &503.into()));
    }
    let mut behaviour = simulator.behaviour();
    (behaviour.reset_every, behaviour.reset_code) = (1, 2);
    simulator.set_behaviour(behaviour).unwrap();
    let (code, line) = send(&["apns", "send"], "aa", &[]);
    assert_eq!((code, &line["outcome"]), (Some(5), &"uncertain".into()));
}
