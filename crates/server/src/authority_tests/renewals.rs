//! Effects of a new token on a connected client.

use super::*;

#[test]
fn an_expression_goes_by_the_meta_of_the_newest_token() {
    let cluster = Cluster::start_with(2, |config| {
        let staff = ChannelOptions {
            subscribe_cel: Some("meta.staff || 'guest' in meta.roles".into()),
            publish_cel: Some("!has(meta.muted)".into()),
            ..ChannelOptions::default()
        };
        config.channel.namespaces.insert("staff", staff);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada", "meta": {"staff": true}}));
    assert!(ada.subscribe("staff:a", "")["subscribe"].is_object());
    let publish = json!({"id": 3, "publish": {"channel": "staff:b", "data": 8}});
    assert!(ada.say(&publish)["publish"].is_object());
    // The next token grants the same by other claims; the one after it no longer does.
    for (meta, lets_in) in [(json!({"roles": ["guest"], "muted": 1}), true), (json!(null), false)] {
        let next = token(&json!({"sub": "ada", "meta": meta}));
        let mut said = ada.say(&json!({"id": 5, "refresh": {"token": next}}));
        if !lets_in {
            assert_eq!(said["push"]["channel"], "staff:a", "{said}");
            assert_eq!(said["push"]["unsubscribe"]["code"], 2000, "{said}");
            said = ada.next();
        }
        assert!(said["refresh"].is_object(), "{said}");
        assert_eq!(ada.say(&publish)["error"]["code"], 103, "where there is no meta neither");
    }
    assert_eq!(ada.subscribe("staff:a", "")["error"]["code"], 103);
    let mut bob = Client::connect(&cluster, &json!({"sub": "bob"}));
    let refused = bob.subscribe("staff:a", "");
    let why = "permission denied: subscribe_cel does not let this client in";
    assert_eq!(refused["error"]["message"], why);
    assert_eq!(bob.say(&publish)["error"]["code"], 103, "what is not known is no leave");
}

#[test]
fn others_see_what_the_newest_subscription_token_says_of_a_member() {
    let cluster = Cluster::start_with(2, |config| {
        let room = ChannelOptions {
            presence: true,
            allow_publish_for_subscriber: true,
            allow_presence_for_subscriber: true,
            ..ChannelOptions::default()
        };
        config.channel.namespaces.insert("room", room);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let shown = |info: Value| {
        let mut claims = json!({"sub": "ada", "channel": "room:a", "exp": now_s() + 600});
        if !info.is_null() {
            claims["info"] = info;
        }
        token(&claims)
    };
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    assert!(ada.subscribe("room:a", &shown(json!({"level": 1})))["subscribe"].is_object());
    let own = ada.connect["client"].as_str().unwrap().to_owned();
    // A token without `info` leaves the previous one in place.
    for (info, level) in [(json!(null), 1), (json!({"level": 2}), 2), (json!(null), 2)] {
        let refresh = json!({"channel": "room:a", "token": shown(info)});
        let refreshed = ada.say(&json!({"id": 3, "sub_refresh": refresh}));
        assert_eq!(refreshed["sub_refresh"]["expires"], true, "{refreshed}");
        let present = ada.say(&json!({"id": 4, "presence": {"channel": "room:a"}}));
        assert_eq!(present["presence"]["presence"][&own]["chan_info"]["level"], level, "{present}");
        let mut said = ada.say(&json!({"id": 5, "publish": {"channel": "room:a", "data": 7}}));
        if said["push"].is_null() {
            said = ada.next();
        } else {
            ada.next();
        }
        assert_eq!(said["push"]["pub"]["info"]["chan_info"]["level"], level, "{said}");
    }
}

/// The next push of this channel.
fn next_of(client: &mut Client<'_>, channel: &str) -> Value {
    loop {
        let said = client.next();
        if said["push"]["channel"] == channel {
            return said["push"].clone();
        }
    }
}

/// Regression test: a channel that the new token does not name any more went on being delivered.
#[test]
fn channel_that_a_new_connection_token_does_not_name_is_unsubscribed() {
    let cluster = Cluster::start_with(2, |config| {
        // The rules would let the client in by itself.
        config.channel.namespaces.insert("x", kept());
        config.client.token.hmac_secret = Some(Secret::new(KEY));
        let personal = &mut config.client.subscribe_to_user_personal_channel;
        personal.enabled = true;
        personal.personal_channel_namespace = "x".to_owned();
    });
    let refresh = |claims: Value| json!({"id": 5, "refresh": {"token": token(&claims)}});
    for named in ["channels", "subs"] {
        let of = |names: &[&str]| {
            let subs: serde_json::Map<_, _> =
                names.iter().map(|&name| (name.to_owned(), json!({}))).collect();
            let value = if named == "subs" { json!(subs) } else { json!(names) };
            json!({"sub": "ada", named: value})
        };
        let mut ada = Client::connect(&cluster, &of(&["x:a", "x:b"]));
        assert_eq!(ada.connect["subs"].as_object().unwrap().len(), 3, "{:?}", ada.connect);
        assert!(ada.subscribe("x:own", "")["subscribe"].is_object());
        cluster.post("/api/subscribe", r#"{"user":"ada","channel":"x:api"}"#);
        assert_eq!(ada.next()["push"]["channel"], "x:api");

        let ended = ada.say(&refresh(of(&["x:b"])));
        let unsubscribed = (&ended["push"]["channel"], &ended["push"]["unsubscribe"]["code"]);
        assert_eq!(unsubscribed, (&json!("x:a"), &json!(2000)), "{ended}");
        assert!(ada.next()["refresh"].is_object());
        for channel in ["x:a", "x:b", "x:own", "x:api", "x:#ada"] {
            cluster.post("/api/publish", &json!({"channel": channel, "data": 1}).to_string());
        }
        let mut heard: Vec<String> =
            (0..4).map(|_| ada.next()["push"]["channel"].as_str().unwrap().to_owned()).collect();
        heard.sort();
        assert_eq!(heard, ["x:#ada", "x:api", "x:b", "x:own"]);
        let ended = ada.say(&refresh(json!({"sub": "ada"})));
        assert_eq!(ended["push"]["channel"], "x:b", "{ended}");
        assert!(ada.next()["refresh"].is_object());
    }
}

/// Regression test: labels and info of the first token stayed.
#[test]
fn connection_has_the_labels_and_the_info_of_its_newest_token() {
    let cluster = Cluster::start_with(2, |config| {
        let room = ChannelOptions { allow_publish_for_subscriber: true, ..kept() };
        config.channel.namespaces.insert("room", room);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let claims = |region: &str, level: u64| {
        json!({"sub": "ada", "labels": {"region": region}, "info": {"level": level},
            "subs": {"room:a": {"info": {"place": level}}}})
    };
    let mut ada = Client::connect(&cluster, &claims("eu", 1));
    let seen = |region: &str| {
        let filter = json!({"label_filter": {"key": "region", "cmp": "eq", "val": region}});
        let page = cluster.post("/api/connections", &filter.to_string());
        let page: Value = serde_json::from_str(&page).unwrap();
        page["result"]["connections"].as_object().unwrap().len()
    };
    assert_eq!((seen("eu"), seen("us")), (1, 0));
    let next = token(&claims("us", 2));
    assert!(ada.say(&json!({"id": 5, "refresh": {"token": next}}))["refresh"].is_object());
    assert_eq!((seen("eu"), seen("us")), (0, 1));
    let said = ada.say(&json!({"id": 6, "publish": {"channel": "room:a", "data": 7}}));
    let push = if said["push"].is_null() { ada.next() } else { said };
    let info = &push["push"]["pub"]["info"];
    assert_eq!(info["chan_info"]["place"], 2, "{push}");
}

/// Regression test: joins and leaves went on after the grant of them was gone, in the connection's token or the subscription's.
#[test]
fn joins_end_with_the_token_that_grants_them() {
    let cluster = Cluster::start_with(1, |config| {
        let room = ChannelOptions { join_leave: true, presence: true, ..kept() };
        config.channel.namespaces.insert("room", room);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let hears_joins = |ada: &mut Client<'_>, channel: &str, who: &str| {
        let mut visitor = Client::connect(&cluster, &json!({"sub": who}));
        assert!(visitor.subscribe(channel, "")["subscribe"].is_object());
        cluster.post("/api/publish", &json!({"channel": channel, "data": who}).to_string());
        let mut heard = false;
        loop {
            let push = next_of(ada, channel);
            heard |= push["join"]["info"]["user"] == who;
            if push["pub"]["data"] == who {
                return heard;
            }
        }
    };
    let subscribe = |channel: &str, token: &str| json!({"id": 2, "subscribe": {"channel": channel, "token": token, "join_leave": true}});
    let caps = json!([{"channels": ["room:a"], "allow": ["prs"]}]);
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada", "caps": caps}));
    ada.say(&subscribe("room:a", ""));
    assert!(hears_joins(&mut ada, "room:a", "v1"));
    ada.say(&json!({"id": 5, "refresh": {"token": token(&json!({"sub": "ada"}))}}));
    assert!(!hears_joins(&mut ada, "room:a", "v2"));

    for grant in
        [json!({"allow": ["prs"]}), json!({"override": {"force_push_join_leave": {"value": true}}})]
    {
        let channel = if grant["allow"].is_array() { "room:b" } else { "room:c" };
        let mut claims = json!({"sub": "ada", "channel": channel});
        let plain = token(&claims);
        for (key, value) in grant.as_object().unwrap() {
            claims[key] = value.clone();
        }
        ada.say(&subscribe(channel, &token(&claims)));
        assert!(hears_joins(&mut ada, channel, "v3"), "{grant}");
        // Another connection token changes nothing of it.
        ada.say(&json!({"id": 5, "refresh": {"token": token(&json!({"sub": "ada"}))}}));
        assert!(hears_joins(&mut ada, channel, "v4"), "{grant}");
        ada.say(&json!({"id": 3, "sub_refresh": {"channel": channel, "token": plain}}));
        assert!(!hears_joins(&mut ada, channel, "v5"), "{grant}");
    }
}

/// Regression test: presence, recovery and what else a token overrides stayed as the first token had it.
#[test]
fn subscription_whose_new_token_overrides_other_options_is_made_anew() {
    let cluster = Cluster::start_with(2, |config| {
        let room = ChannelOptions { presence: true, join_leave: true, ..kept() };
        config.channel.namespaces.insert("room", room);
        config.client.token.hmac_secret = Some(Secret::new(KEY));
    });
    let listed = |channel: &str| {
        let body = json!({"channel": channel}).to_string();
        let page: Value =
            serde_json::from_str(&cluster.post("/api/presence_stats", &body)).unwrap();
        page["result"]["num_clients"].as_u64().unwrap()
    };
    let hidden = json!({"presence": {"value": false}, "join_leave": {"value": false}});
    let as_the_channel = json!({"presence": {"value": true}});

    // The subscription's own token.
    let of_room = |channel: &str, overrides: Option<&Value>| {
        let mut claims = json!({"sub": "ada", "channel": channel});
        claims["override"] = overrides.cloned().unwrap_or(json!({}));
        token(&claims)
    };
    let refresh = |channel: &str, token: &str| json!({"id": 3, "sub_refresh": {"channel": channel, "token": token}});
    let mut ada = Client::connect(&cluster, &json!({"sub": "ada"}));
    ada.subscribe("room:a", &of_room("room:a", Some(&hidden)));
    assert_eq!(listed("room:a"), 0);
    // The same again changes nothing.
    let same = ada.say(&refresh("room:a", &of_room("room:a", Some(&hidden))));
    assert!(same["sub_refresh"].is_object(), "{same}");
    assert!(ada.say(&refresh("room:a", &of_room("room:a", None)))["sub_refresh"].is_object());
    let ended = ada.next();
    assert_eq!(ended["push"]["unsubscribe"]["code"], 2500, "{ended}");
    ada.subscribe("room:a", &of_room("room:a", None));
    assert_eq!(listed("room:a"), 1);
    // An override to what holds anyway is none.
    let same = ada.say(&refresh("room:a", &of_room("room:a", Some(&as_the_channel))));
    assert!(same["sub_refresh"].is_object(), "{same}");
    assert_eq!(listed("room:a"), 1);
    for unequal in ["force_recovery", "force_positioning", "force_push_join_leave"] {
        let channel = &format!("room:{unequal}");
        ada.subscribe(channel, &of_room(channel, None));
        let given = json!({unequal: {"value": true}});
        ada.say(&refresh(channel, &of_room(channel, Some(&given))));
        let mut ended = ada.next();
        while ended["push"]["unsubscribe"].is_null() {
            ended = ada.next();
        }
        assert_eq!(ended["push"]["unsubscribe"]["code"], 2500, "{unequal}: {ended}");
    }

    // The connection's token, of whose channels the client cannot make a subscription itself.
    let claims =
        |overrides: &Value| json!({"sub": "bob", "subs": {"room:b": {"override": overrides}}});
    let refresh = |claims: &Value| json!({"id": 5, "refresh": {"token": token(claims)}});
    let mut bob = Client::connect(&cluster, &claims(&hidden));
    assert_eq!(listed("room:b"), 0);
    assert!(bob.say(&refresh(&claims(&hidden)))["refresh"].is_object());
    let mut said = bob.say(&refresh(&claims(&json!({}))));
    while said["push"]["disconnect"].is_null() {
        said = bob.next();
    }
    assert_eq!(said["push"]["disconnect"]["code"], 3010, "{said}");
    let _bob = Client::connect(&cluster, &claims(&json!({})));
    assert_eq!(listed("room:b"), 1);
}
