//! Isolation of apps: two of different tenants and one without a tenant, whose channels, users and members have the
//! same names.

use dunlin_config::Tenant;

use super::*;

/// Names of the apps, which are also those of their tenants, and their ids.
const APPS: [(&str, &str); 3] = [("acme", "3"), ("globex", "4"), ("", "5")];

fn secret(tenant: &str) -> String {
    format!("the secret of the app of {tenant:?}")
}

fn with_tenants(config: &mut Config) {
    let rules = config.channel.without_namespace.clone();
    config.channel.namespaces.insert("chat", rules.clone());
    for (tenant, id) in APPS {
        let app = PusherApp {
            id: id.into(),
            key: format!("key-{tenant}").into(),
            secret: Some(Secret::new(secret(tenant))),
            namespace: "chat".into(),
            tenant: (!tenant.is_empty()).then(|| tenant.into()),
            client_events: true,
            ..PusherApp::default()
        };
        config.pusher.apps.insert(format!("app-{tenant}"), app);
        if !tenant.is_empty() {
            let mut of = Tenant { without_namespace: rules.clone(), ..Tenant::default() };
            of.api_keys.insert("backend", Secret::new(format!("{tenant}'s key for the API")));
            of.token_keys.insert(format!("{tenant}-1"), Secret::new("0123456789abcdef"));
            of.namespaces.insert("chat", rules.clone());
            config.tenants.insert(tenant, of);
        }
    }
}

fn connect(cluster: &Cluster, tenant: &str) -> Client {
    let mut client = Client::open(cluster, &format!("/app/key-{tenant}?protocol=7"));
    let opened = client.next();
    assert_eq!(opened["event"], "pusher:connection_established", "{opened}");
    let data: Value = serde_json::from_str(opened["data"].as_str().unwrap()).unwrap();
    client.id = data["socket_id"].as_str().unwrap().to_owned();
    client
}

fn signed(client: &Client, tenant: &str, text: &str) -> String {
    format!("key-{tenant}:{}", sign(&secret(tenant), &format!("{}:{text}", client.id)))
}

fn subscribe(client: &mut Client, tenant: &str, channel: &str, data: &str) -> Value {
    let text = if data.is_empty() { channel.to_owned() } else { format!("{channel}:{data}") };
    let auth = signed(client, tenant, &text);
    client.subscribe_with(channel, &auth, data);
    client.next()
}

/// Calls the HTTP API as the backend of an app.
fn api(
    cluster: &Cluster,
    (tenant, id): (&str, &str),
    method: &str,
    path: &str,
    body: &str,
) -> Value {
    let key = format!("key-{tenant}");
    let secret = secret(tenant);
    let (status, answer) =
        call_as(cluster, (&key, &secret), (method, &format!("/apps/{id}{path}"), ""), body);
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn nothing_of_an_app_reaches_an_app_of_another_tenant() {
    let cluster = Cluster::start_with(2, with_tenants);
    let ada = r#"{"user_id":"ada"}"#;
    let mut clients: Vec<Client> = APPS
        .iter()
        .map(|(tenant, _)| {
            let mut client = connect(&cluster, tenant);
            for channel in ["news", "private-a"] {
                let subscribed = subscribe(&mut client, tenant, channel, "");
                assert_eq!(subscribed["event"], "pusher_internal:subscription_succeeded");
            }
            // The same user in the same presence channel: alone in each app.
            let members = subscribe(&mut client, tenant, "presence-a", ada)["data"].clone();
            assert!(members.as_str().unwrap().contains(r#""count":1"#), "{members}");
            client
        })
        .collect();

    // The signature of another app is invalid.
    let auth =
        format!("key-acme:{}", sign(&secret("globex"), &format!("{}:private-b", clients[0].id)));
    clients[0].subscribe_with("private-b", &auth, "");
    assert_eq!(clients[0].next()["event"], "pusher:subscription_error");

    // Events of backends and clients, joins and leaves.
    for (at, (tenant, id)) in APPS.into_iter().enumerate() {
        let body = json!({"name": "n", "data": tenant, "channels": ["news", "private-a"]});
        api(&cluster, (tenant, id), "POST", "/events", &body.to_string());
        for _ in 0..2 {
            assert_eq!(clients[at].next()["data"], tenant);
        }
        let mut second = connect(&cluster, tenant);
        subscribe(&mut second, tenant, "presence-a", r#"{"user_id":"bob"}"#);
        assert_eq!(clients[at].next()["event"], "pusher_internal:member_added");
        second.say(&json!({"event": "client-hi", "channel": "presence-a", "data": tenant}));
        let hi = clients[at].next();
        assert_eq!((&hi["event"], &hi["data"]), (&json!("client-hi"), &json!(tenant)), "{hi}");
        let listed = api(&cluster, (tenant, id), "GET", "/channels", "");
        let names: Vec<&String> = listed["channels"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["news", "presence-a", "private-a"]);
        let users = api(&cluster, (tenant, id), "GET", "/channels/presence-a/users", "");
        assert_eq!(users, json!({"users": [{"id": "ada"}, {"id": "bob"}]}));
        drop(second);
        assert_eq!(clients[at].next()["event"], "pusher_internal:member_removed");
    }

    // The server API lists a tenant's channels under their bare names for the tenant's key; likewise for the operator.
    for (tenant, _) in APPS {
        let key = match tenant {
            "" => String::new(),
            tenant => format!("X-API-Key: {tenant}'s key for the API\r\n"),
        };
        let (_, listed) = cluster.call("POST /api/channels", &key, "{}");
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let names: Vec<&String> =
            listed["result"]["channels"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["chat:news", "chat:presence-a", "chat:private-a"], "{tenant}");
        let (_, page) = cluster.call("POST /api/connections", &key, "{}");
        let page: Value = serde_json::from_str(&page).unwrap();
        assert_eq!(page["result"]["connections"].as_object().unwrap().len(), 1, "{page}");
    }

    // Terminating a user's connections only affects the user of that app.
    for (at, (tenant, _)) in APPS.into_iter().enumerate() {
        let data = r#"{"id":"ada"}"#;
        let auth = signed(&clients[at], tenant, &format!(":user::{data}"));
        clients[at]
            .say(&json!({"event": "pusher:signin", "data": {"auth": auth, "user_data": data}}));
        assert_eq!(clients[at].next()["event"], "pusher:signin_success");
    }
    api(&cluster, APPS[0], "POST", "/users/ada/terminate_connections", "");
    assert_eq!(clients[0].closed(), 4009);
    for (at, (tenant, id)) in APPS.into_iter().enumerate().skip(1) {
        let body = json!({"name": "n", "data": "still there", "channel": "news"});
        api(&cluster, (tenant, id), "POST", "/events", &body.to_string());
        assert_eq!(clients[at].next()["data"], "still there");
    }
}
