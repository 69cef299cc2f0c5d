//! Programs in Luau in place of backends: what they decide, and what becomes of those that fail.

use std::sync::Arc;

use dunlin_config::{ChannelOptions, Config, OnError, Program, Snapshot};
use serde_json::{Value, json};

use super::proxies::{client, connect};
use super::*;
use crate::programs::ProgramMetric;
use crate::state::settings::Settings;

fn program(config: &mut Config, name: &str, on_error: OnError, source: &str) {
    let program = Program { source: source.into(), on_error, ..Program::default() };
    config.programs.insert(name, program);
}

/// A namespace whose subscriptions and publications a program decides; without it clients may both.
fn decided_by(name: &str) -> ChannelOptions {
    ChannelOptions {
        subscribe_proxy: Some(name.into()),
        publish_proxy: Some(name.into()),
        allow_subscribe_for_client: true,
        allow_subscribe_for_anonymous: true,
        allow_publish_for_client: true,
        allow_publish_for_anonymous: true,
        ..ChannelOptions::default()
    }
}

fn subscribe(id: u32, channel: &str) -> Value {
    json!({"id": id, "subscribe": {"channel": channel}})
}

fn publish(id: u32, channel: &str, data: &Value) -> Value {
    json!({"id": id, "publish": {"channel": channel, "data": data}})
}

const HOUSE: &str = r#"
local hooks = {}
function hooks.connect(event)
    local name = event.raw and event.data.name
    if name == "stranger" then return dunlin.refuse(401, "unknown") end
    if name == "foe" then return dunlin.disconnect(4500, "never again") end
    if not name then return nil end
    return { user = name, info = { guest = true }, channels = { "news" }, data = { hello = name } }
end
function hooks.subscribe(event)
    if event.channel == "room:open" then return nil end
    if event.channel == "room:no" then return false end
    return { info = { by = event.user }, data = { permitted = event.permitted } }
end
function hooks.publish(event)
    if event.data == "spam" then return dunlin.refuse(403, "no advertising") end
    if event.data == "as it is" then return nil end
    return { data = { said = event.data, by = event.user } }
end
function hooks.rpc(event)
    if event.method == "sum" then
        local sum = 0
        for _, number in event.data do sum += number end
        return { data = sum }
    end
end
return hooks
"#;

fn house(config: &mut Config) {
    program(config, "house", OnError::Deny, HOUSE);
    config.client.proxy.connect = Some("house".into());
    config.client.proxy.rpc = Some("house".into());
    config.channel.namespaces.insert("room", decided_by("house"));
}

#[test]
fn program_says_who_a_client_is_and_executes_its_procedures() {
    let cluster = Cluster::start_with(1, house);
    let named = json!({"id": 1, "connect": {"data": {"name": "ada"}}});
    let (mut ada, reply) = client(
        &cluster,
        &[
            named,
            json!({"id": 2, "rpc": {"method": "sum", "data": [1, 2, 39]}}),
            json!({"id": 3, "rpc": {"method": "other", "data": []}}),
        ],
    );
    assert_eq!(reply["connect"]["data"], json!({"hello": "ada"}), "{reply}");
    assert!(reply["connect"]["subs"]["news"].is_object(), "{reply}");
    assert_eq!(ada.next().unwrap(), json!({"id": 2, "rpc": {"data": 42}}));
    assert_eq!(ada.next().unwrap()["error"]["code"], 104);
    let (_client, refused) =
        client(&cluster, &[json!({"id": 1, "connect": {"data": {"name": "stranger"}}})]);
    assert_eq!(refused["error"], json!({"code": 401, "message": "unknown"}));
    let (_client, foe) =
        client(&cluster, &[json!({"id": 1, "connect": {"data": {"name": "foe"}}})]);
    assert_eq!(foe["push"]["disconnect"]["code"], 4500, "{foe}");
    // Without an opinion the settings decide: anonymous clients may connect.
    let (_client, anonymous) = client(&cluster, &[connect()]);
    assert!(anonymous["connect"].is_object(), "{anonymous}");
}

#[test]
fn program_enriches_refuses_and_leaves_to_the_rules_what_clients_do_in_channels() {
    let cluster = Cluster::start_with(1, house);
    let (mut reader, _) = client(
        &cluster,
        &[connect(), subscribe(2, "room:1"), subscribe(3, "room:open"), subscribe(4, "room:no")],
    );
    let subscribed = reader.next().unwrap();
    assert_eq!(subscribed["subscribe"]["data"], json!({"permitted": true}), "{subscribed}");
    assert!(reader.next().unwrap()["subscribe"].is_object());
    assert_eq!(reader.next().unwrap()["error"]["code"], 103);
    let (mut writer, _) = client(
        &cluster,
        &[
            json!({"id": 1, "connect": {"data": {"name": "bob"}}}),
            publish(2, "room:1", &json!("hello")),
            publish(3, "room:1", &json!("spam")),
            publish(4, "room:1", &json!("as it is")),
        ],
    );
    let mut replies: Vec<Value> = (0..3).map(|_| writer.next().unwrap()).collect();
    replies.sort_by_key(|reply| reply["id"].as_u64());
    assert!(replies[0]["publish"].is_object() && replies[2]["publish"].is_object(), "{replies:?}");
    assert_eq!(replies[1]["error"], json!({"code": 403, "message": "no advertising"}));
    let data = |push: Value| push["push"]["pub"]["data"].clone();
    assert_eq!(data(reader.next().unwrap()), json!({"said": "hello", "by": "bob"}));
    assert_eq!(data(reader.next().unwrap()), "as it is");
    assert!(cluster.state.programs.sum("house", ProgramMetric::Calls) >= 7);
}

#[test]
fn what_the_rules_refuse_a_program_without_opinion_does_not_permit() {
    let cluster = Cluster::start_with(1, |config| {
        house(config);
        let closed = ChannelOptions {
            allow_subscribe_for_anonymous: false,
            allow_publish_for_anonymous: false,
            ..decided_by("house")
        };
        config.channel.namespaces.insert("room", closed);
    });
    let (mut client, _) = client(
        &cluster,
        &[connect(), subscribe(2, "room:open"), publish(3, "room:1", &json!("as it is"))],
    );
    for _ in 0..2 {
        assert_eq!(client.next().unwrap()["error"]["code"], 103);
    }
}

#[test]
fn subscription_left_to_the_rules_ends_when_they_change() {
    let cluster = Cluster::start_with(1, house);
    let (mut reader, _) = client(&cluster, &[connect(), subscribe(2, "room:open")]);
    assert!(reader.next().unwrap()["subscribe"].is_object());
    let mut config = cluster.state.newest_for(0).config.clone();
    // Another key of the same rules leaves it alone, and the withdrawal of what permits it does not.
    let rules = ChannelOptions { allow_subscribe_for_anonymous: false, ..decided_by("house") };
    config.channel.namespaces.insert("room", rules);
    let snapshot = Arc::new(Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    cluster.post("/api/publish", "{\"channel\":\"other\",\"data\":1}");
    let push = reader.next().unwrap();
    assert!(push["push"]["unsubscribe"].is_object(), "{push}");
}

#[test]
fn program_that_fails_denies_or_leaves_it_to_the_rules_as_the_settings_choose() {
    for (on_error, open) in [(OnError::Deny, false), (OnError::Allow, true)] {
        let cluster = Cluster::start_with(1, |config| {
            let failing = "return { publish = function(event) error('no') end, subscribe = function() while true do end end }";
            program(config, "failing", on_error, failing);
            config.channel.namespaces.insert("room", decided_by("failing"));
            let closed =
                ChannelOptions { allow_publish_for_anonymous: false, ..decided_by("failing") };
            config.channel.namespaces.insert("closed", closed);
        });
        let mut commands = vec![connect(), subscribe(2, "room:1")];
        commands.extend((3..9).map(|id| publish(id, "room:1", &json!(id))));
        commands.push(publish(9, "closed:1", &json!(1)));
        let (mut client, _) = client(&cluster, &commands);
        let mut replies = Vec::new();
        while replies.len() < 8 {
            let said = client.next().unwrap();
            replies.extend(said["id"].is_u64().then_some(said));
        }
        for reply in replies {
            let is_open = open && reply["id"] != 9;
            let code = reply["error"]["code"].as_u64();
            assert_eq!(code, (!is_open).then_some(100), "{on_error:?}: {reply}");
        }
        let sum = |metric| cluster.state.programs.sum("failing", metric);
        assert_eq!((sum(ProgramMetric::Calls), sum(ProgramMetric::TimedOut)), (8, 1));
        // Five faults, then it rests.
        assert_eq!((sum(ProgramMetric::Errors), sum(ProgramMetric::Restarts)), (4, 1));
        assert_eq!(sum(ProgramMetric::Resting), 3);
    }
}

#[test]
fn programs_beyond_their_time_of_a_turn_wait_and_answer_in_order() {
    let cluster = Cluster::start_with(1, |config| {
        // Each takes a good part of a turn's time.
        let slow = "return { publish = function(event) local n = 0 for i = 1, 20000 do n += i end return { data = event.data } end }";
        program(config, "slow", OnError::Deny, slow);
        config
            .channel
            .namespaces
            .insert("room", ChannelOptions { subscribe_proxy: None, ..decided_by("slow") });
    });
    let mut commands = vec![connect(), subscribe(2, "room:1")];
    commands.extend((3..43).map(|id| publish(id, "room:1", &json!(id))));
    let (mut client, _) = client(&cluster, &commands);
    let (mut replied, mut published) = (Vec::new(), Vec::new());
    while replied.len() < 41 || published.len() < 40 {
        let said = client.next().unwrap();
        assert!(said["error"].is_null(), "{said}");
        match said["id"].as_u64() {
            Some(id) => replied.push(id),
            None => published.extend(said["push"]["pub"]["data"].as_u64()),
        }
    }
    assert_eq!(published, (3..43).collect::<Vec<u64>>(), "in the order in which they were sent");
    assert!(cluster.state.programs.sum("slow", ProgramMetric::Waited) > 0);
}

#[test]
fn program_is_replaced_while_clients_stay() {
    let cluster = Cluster::start_with(1, |config| {
        program(config, "p", OnError::Deny, "return { rpc = function() return { data = 1 } end }");
        config.client.proxy.rpc = Some("p".into());
    });
    let call = json!({"id": 2, "rpc": {"method": "m", "data": []}});
    let (mut before, _) = client(&cluster, &[connect(), call.clone()]);
    assert_eq!(before.next().unwrap()["rpc"]["data"], 1);
    let mut config = cluster.state.newest_for(0).config.clone();
    program(&mut config, "p", OnError::Deny, "return { rpc = function() return { data = 2 } end }");
    let snapshot = Arc::new(Snapshot::new(2, config).unwrap());
    cluster.state.publish(Arc::new(Settings::new(snapshot)));
    let (mut after, _) = client(&cluster, &[connect(), call]);
    assert_eq!(after.next().unwrap()["rpc"]["data"], 2);
    cluster.post("/api/publish", "{\"channel\":\"x\",\"data\":1}");
    drop(before);
}

#[test]
fn settings_refuse_a_program_with_its_line_and_one_without_the_function_that_is_asked() {
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::development();
        change(&mut config);
        crate::validation::errors_of(&config).to_string()
    };
    let broken =
        refused(&|config| program(config, "p", OnError::Deny, "return {\n  publish = = 1\n}"));
    assert!(broken.contains("programs.p.source: line 2: "), "{broken}");
    let missing = refused(&|config| {
        program(config, "p", OnError::Deny, "return { publish = function() end }");
        config.channel.namespaces.insert("room", decided_by("p"));
    });
    assert!(
        missing.contains(
            "channel.namespaces.room.subscribe_proxy: the program \"p\" has no function `subscribe`"
        ),
        "{missing}"
    );
    let unknown = refused(&|config| {
        config.channel.namespaces.insert("room", decided_by("nobody"));
    });
    assert!(unknown.contains("name one of `proxies` or `programs`"), "{unknown}");
    let unchosen = refused(&|config| {
        let program = Program { source: "return { rpc = print }".into(), ..Program::default() };
        config.programs.insert("p", program);
    });
    assert!(unchosen.contains("programs.p.on_error"), "{unchosen}");
}
