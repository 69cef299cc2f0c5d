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
