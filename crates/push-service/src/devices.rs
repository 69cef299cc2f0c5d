//! `/api/push/devices/…`: the devices of each user, and feedback about invalid tokens.

use std::sync::Arc;

use dunlin_api::server_api::{ApiError, ApiErrorCode};
use dunlin_hub::tenant::{NO_CONTROL, has_control};
use dunlin_push::apns::DeviceToken;
use dunlin_push::registry::{Change, Device, FeedEntry, Platform, Registry, RegistryError};
use dunlin_push::web_push::Subscription;
use serde::Deserialize;
use serde_json::{Value, json};

use super::feed::{Feed, FeedFollower};
use super::submission::{NoPush, Recipients, read};
use super::thread::Shared;
use crate::clock::unix_ms;

/// Most devices that one call registers or removes.
const DEVICES_MAX: usize = 1_000;
/// Most entries of token feedback that one call returns.
const ENTRIES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    user: String,
    devices: Vec<Recipients>,
    node: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    user: Option<String>,
    #[serde(default, deserialize_with = "dunlin_protocol::json::nullable")]
    devices: Vec<Recipients>,
    node: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    user: String,
    node: Option<String>,
}

/// Registers devices of a user.
pub(super) async fn register(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let Register { user, devices, node } = read(body)?;
    shared.check_node(node.as_deref())?;
    if has_control(&user) {
        return Err(ApiError::malformed(format!("user: {NO_CONTROL}")));
    }
    let devices = expand(devices)?;
    for (at, device) in devices.iter().enumerate() {
        validate(device)
            .map_err(|why| ApiError::malformed(format!("devices[{at}].token: {why}")))?;
    }
    let registered = write(shared, Change::Register { user, devices, now_ms: unix_ms() }).await?;
    Ok(json!({ "registered": registered }))
}

/// Removes devices, or all devices of a user.
pub(super) async fn remove(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let Remove { user, devices, node } = read(body)?;
    shared.check_node(node.as_deref())?;
    if user.is_none() && devices.is_empty() {
        return Err(ApiError::malformed("devices: there are neither devices nor a user"));
    }
    let devices = expand(devices)?;
    let removed = write(shared, Change::Remove { user, devices }).await?;
    Ok(json!({ "removed": removed }))
}

/// Returns the devices of a user.
pub(super) async fn list(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let List { user, node } = read(body)?;
    shared.check_node(node.as_deref())?;
    let found = on_disk(shared, move |registry| registry.registrations(&user)).await?;
    let devices: Vec<Value> = found
        .into_iter()
        .map(|(device, registered_ms)| {
            let mut shown = json!(device);
            shown["registered_ms"] = registered_ms.into();
            shown
        })
        .collect();
    Ok(json!({ "devices": devices }))
}

/// Returns the entries after a cursor. If there are none, waits for the next one if the caller asks for that.
pub(super) async fn feed(shared: &Shared, body: &[u8]) -> Result<Value, ApiError> {
    let follower: FeedFollower = read(body)?;
    let last = on_disk(shared, Registry::last_entry).await?;
    let feed = Feed { epoch: shared.registry.epoch(), last };
    let next = || shared.writer.next();
    let registry = Arc::clone(&shared.registry);
    let entries = move |after, limit| {
        let found = registry.feed(after, limit).map_err(refused)?;
        Ok(found.into_iter().map(|entry| (entry.n, entry)).collect())
    };
    let page = follower.read(shared, feed, (ENTRIES_MAX, ENTRIES_MAX), next, entries).await?;
    let entries: Vec<FeedEntry> = page.entries.into_iter().map(|(_, entry)| entry).collect();
    Ok(json!({ "entries": entries, "cursor": page.cursor }))
}

/// Returns the devices of each user, in order; for a user who gets no push, the reason: a code and a sentence.
pub(super) async fn of_users_to_send(
    shared: &Shared,
    users: &[String],
    only_offline: bool,
) -> Result<Vec<Result<Vec<Device>, NoPush>>, ApiError> {
    let users: Arc<[String]> = users.into();
    let online = match only_offline {
        true => shared.online(&users).await,
        false => vec![false; users.len()],
    };
    let found = of_users(shared, Arc::clone(&users)).await?.into_iter().zip(online);
    let checked = found.zip(&*users).map(|((devices, online), user)| match () {
        () if online => Err(("online", "the user has a session here".into())),
        () if devices.is_empty() => Err(("no_device", shared.no_device())),
        () if !shared.recipient_limits.take_user(user) => {
            Err(("user_limit", "the user has had limits.pushes_per_user_per_min_max".into()))
        }
        () => Ok(devices),
    });
    Ok(checked.collect())
}

/// Returns the devices of each user, in order.
async fn of_users(shared: &Shared, users: Arc<[String]>) -> Result<Vec<Vec<Device>>, ApiError> {
    on_disk(shared, move |registry| users.iter().map(|user| registry.devices(user)).collect()).await
}

fn expand(groups: Vec<Recipients>) -> Result<Vec<Device>, ApiError> {
    let devices: Vec<Device> =
        groups.into_iter().flat_map(Recipients::into_devices).take(DEVICES_MAX + 1).collect();
    if devices.len() > DEVICES_MAX {
        let why = format!("a call has at most {DEVICES_MAX} devices");
        return Err(ApiErrorCode::LimitExceeded.with_reason(why));
    }
    Ok(devices)
}

/// Validates the format of a token for its provider, so that an app's mistake is reported at registration.
fn validate(device: &Device) -> Result<(), String> {
    let token = &*device.token;
    match device.platform {
        Platform::Apns => {
            let read = DeviceToken::new(token).map_err(|error| error.to_string());
            read.map(drop)
        }
        Platform::Fcm => Ok(()),
        Platform::Web => {
            Subscription::from_json(token).map(drop).map_err(|error| error.to_string())
        }
    }
}

/// Writes a change, grouped with concurrent ones.
async fn write(shared: &Shared, change: Change) -> Result<usize, ApiError> {
    shared.writer.write(change).await.map_err(refused)
}

/// Reads the registry in a blocking task.
async fn on_disk<T: Send + 'static>(
    shared: &Shared,
    call: impl FnOnce(&Registry) -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, ApiError> {
    let registry = Arc::clone(&shared.registry);
    match tokio::task::spawn_blocking(move || call(&registry)).await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => {
            tracing::error!(%error, "the device registry cannot be read");
            Err(refused(error))
        }
        Err(error) => Err(ApiErrorCode::Internal.with_reason(error)),
    }
}

fn refused(error: RegistryError) -> ApiError {
    match error {
        RegistryError::Invalid(why) => ApiError::malformed(why),
        error => ApiErrorCode::Internal.with_reason(error),
    }
}
