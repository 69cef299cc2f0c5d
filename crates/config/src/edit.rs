//! The configuration as a tree that is read and changed by pointers.
//!
//! A table knows its keys and the tables below it, a [`Map`] its entries. An edit touches only the nodes on
//! its path; a comparison of two trees skips what they share.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map as Object, Value};

use crate::pointer::Pointer;
use crate::{
    Admin, AdminToken, Api, ApiScope, ApnsConfig, Certificate, Changes, Channel, ChannelOptions,
    ClaimPath, Client, ClientBudget, ClientProxy, Cluster, Config, Engine, FcmConfig, Federation,
    FederationPeer, HealthCheck, Hook, Ingress, Limits, Listener, Log, LogLevel, LongPoll, Map,
    Member, Otlp, Pacing, PersonalChannel, Program, Proxy, PushConfig, PusherApp, PusherConfig,
    Route, Rpc, RpcNamespace, Secret, Server, SharedBudget, Shutdown, SubscriptionToken, Tenant,
    Tls, Token, Upstream, VapidConfig, Webhooks, fields,
};

/// The most entries of one map, to bound its memory.
const ENTRIES_MAX: usize = 1_000_000;

/// An operation on a place (RFC 6902 §4).
#[derive(Debug)]
pub(crate) enum Edit {
    /// Sets the value, whether or not there is one; in an array inserts before it.
    Add(Value),
    /// Replaces an existing value.
    Replace(Value),
    /// Removes the value; a key of the schema is reset to its default.
    Remove,
}

/// Why an edit failed.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The place or its parent does not exist.
    NotFound,
    /// The value does not fit. [`crate::check`] runs before and reports it better.
    Invalid(String),
}

impl From<serde_json::Error> for EditError {
    fn from(error: serde_json::Error) -> EditError {
        EditError::Invalid(error.to_string())
    }
}

/// A difference between two trees: a key, or a whole entry of a map that was added or removed.
pub(crate) struct Difference {
    pub(crate) pointer: String,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

pub(crate) type Steps<'a> = &'a [String];

/// A table, a map or a map's plain entry.
pub(crate) trait Part: Clone + PartialEq + Serialize + DeserializeOwned {
    /// Reads a new one.
    fn from_value(value: Value) -> Result<Self, EditError>;

    /// Returns the value at a place, including defaults.
    fn at(&self, steps: Steps<'_>) -> Option<Value>;

    /// Returns whether there is something at a place.
    fn has(&self, steps: Steps<'_>) -> bool;

    /// Changes one place.
    fn edit(&mut self, steps: Steps<'_>, edit: Edit) -> Result<(), EditError>;

    /// Replaces the whole value, and keeps parts of the old one that are equal.
    fn replace(&mut self, value: Value) -> Result<(), EditError>;

    /// Applies a merge patch (RFC 7396 §2).
    fn merge(&mut self, patch: Value) -> Result<(), EditError>;

    /// Appends the differences of `after`. `path` is the pointer of this part.
    fn compare(&self, after: &Self, path: &mut String, out: &mut Vec<Difference>);

    /// Returns the values that differ from the defaults.
    fn sparse(&self) -> Value;
}

/// Runs `body` with the pointer of a step below, and restores it.
fn below<R>(path: &mut String, step: &str, body: impl FnOnce(&mut String) -> R) -> R {
    let length = path.len();
    Pointer::push_step(path, step);
    let result = body(path);
    path.truncate(length);
    result
}

fn object(value: Value) -> Result<Object<String, Value>, EditError> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(EditError::Invalid("expected a table".into())),
    }
}

/// Edits within the value of one key: an element of an array.
fn edit_value(value: &mut Value, steps: Steps<'_>, edit: Edit) -> Result<(), EditError> {
    let Some((step, rest)) = steps.split_first() else {
        *value = match edit {
            Edit::Add(new) | Edit::Replace(new) => new,
            Edit::Remove => Value::Null,
        };
        return Ok(());
    };
    let Value::Array(elements) = value else { return Err(EditError::NotFound) };
    let index = index(step, elements.len());
    if !rest.is_empty() {
        let element = index.and_then(|index| elements.get_mut(index)).ok_or(EditError::NotFound)?;
        return edit_value(element, rest, edit);
    }
    match (edit, index) {
        (Edit::Add(new), Some(index)) => elements.insert(index, new),
        (Edit::Replace(new), Some(index)) if index < elements.len() => elements[index] = new,
        (Edit::Remove, Some(index)) if index < elements.len() => drop(elements.remove(index)),
        _ => return Err(EditError::NotFound),
    }
    Ok(())
}

/// Parses an array's index (RFC 6901 §4): digits without a leading zero, or `-` for the end.
fn index(step: &str, length: usize) -> Option<usize> {
    if step == "-" {
        return Some(length);
    }
    let digits = step.bytes().all(|byte| byte.is_ascii_digit());
    let index =
        (digits && (step == "0" || !step.starts_with('0'))).then(|| step.parse().ok())??;
    (index <= length).then_some(index)
}

fn element<'v>(value: &'v Value, steps: Steps<'_>) -> Option<&'v Value> {
    steps.iter().try_fold(value, |value, step| match value {
        Value::Array(elements) => elements.get(index(step, elements.len())?),
        _ => None,
    })
}

/// A table: the type, then those of its keys that are parts themselves.
macro_rules! table {
    ($($type:ty { $($nested:ident),* })*) => {$(
        // A table may have no keys of its own, or no tables below it.
        #[allow(unused_variables, unused_mut, clippy::needless_update)]
        impl Part for $type {
            fn from_value(value: Value) -> Result<Self, EditError> {
                let mut table = Self::default();
                table.replace(value)?;
                Ok(table)
            }

            fn at(&self, steps: Steps<'_>) -> Option<Value> {
                let Some((key, rest)) = steps.split_first() else {
                    return serde_json::to_value(self).ok();
                };
                match key.as_str() {
                    $(stringify!($nested) => self.$nested.at(rest),)*
                    key => element(&fields::one(self, key)?, rest).cloned(),
                }
            }

            fn has(&self, steps: Steps<'_>) -> bool {
                let Some((key, rest)) = steps.split_first() else { return true };
                match key.as_str() {
                    $(stringify!($nested) => self.$nested.has(rest),)*
                    key => fields::one(self, key)
                        .is_some_and(|value| element(&value, rest).is_some()),
                }
            }

            fn edit(&mut self, steps: Steps<'_>, edit: Edit) -> Result<(), EditError> {
                let Some((key, rest)) = steps.split_first() else {
                    match edit {
                        Edit::Add(value) | Edit::Replace(value) => self.replace(value)?,
                        Edit::Remove => *self = Self::default(),
                    }
                    return Ok(());
                };
                match key.as_str() {
                    $(stringify!($nested) => self.$nested.edit(rest, edit),)*
                    key => {
                        let mut own = fields::of(self, &[$(stringify!($nested)),*]);
                        let at = own.iter().position(|(name, _)| *name == key);
                        let at = at.ok_or(EditError::NotFound)?;
                        if rest.is_empty() && matches!(edit, Edit::Remove) {
                            own.swap_remove(at);
                        } else {
                            edit_value(&mut own[at].1, rest, edit)?;
                        }
                        self.set_own(own)
                    }
                }
            }

            fn replace(&mut self, value: Value) -> Result<(), EditError> {
                let mut object = object(value)?;
                // All or nothing: an error must not leave the table half replaced.
                let mut next = self.clone();
                $(match object.remove(stringify!($nested)) {
                    Some(value) => next.$nested.replace(value)?,
                    None => next.$nested = Default::default(),
                })*
                let own: Self = serde_json::from_value(Value::Object(object))?;
                let next = Self { $($nested: next.$nested,)* ..own };
                *self = next;
                Ok(())
            }

            fn merge(&mut self, patch: Value) -> Result<(), EditError> {
                let mut object = object(patch)?;
                $(match object.remove(stringify!($nested)) {
                    Some(Value::Null) => self.$nested = Default::default(),
                    Some(value) => self.$nested.merge(value)?,
                    None => {}
                })*
                if object.is_empty() {
                    return Ok(());
                }
                let mut own = fields::of(self, &[$(stringify!($nested)),*]);
                for (key, value) in object {
                    let at = own.iter().position(|(name, _)| *name == key);
                    let at = at.ok_or(EditError::NotFound)?;
                    match value {
                        Value::Null => drop(own.swap_remove(at)),
                        value => own[at].1 = value,
                    }
                }
                self.set_own(own)
            }

            fn compare(&self, after: &Self, path: &mut String, out: &mut Vec<Difference>) {
                if self == after {
                    return;
                }
                let own = fields::of(self, &[$(stringify!($nested)),*]).into_iter();
                let after_own = fields::of(after, &[$(stringify!($nested)),*]).into_iter();
                for ((key, before), (_, after)) in own.zip(after_own) {
                    if before != after {
                        below(path, key, |path| out.push(Difference {
                            pointer: path.clone(),
                            before: Some(before),
                            after: Some(after),
                        }));
                    }
                }
                $(below(path, stringify!($nested), |path| {
                    self.$nested.compare(&after.$nested, path, out);
                });)*
            }

            fn sparse(&self) -> Value {
                let except = &[$(stringify!($nested)),*];
                let own = fields::of(self, except).into_iter();
                let defaults = fields::of(&Self::default(), except).into_iter();
                let mut object: Object<String, Value> = own
                    .zip(defaults)
                    .filter(|((_, own), (_, default))| own != default)
                    .map(|((key, value), _)| (key.to_owned(), value))
                    .collect();
                $(match self.$nested.sparse() {
                    Value::Object(below) if below.is_empty() => {}
                    below => drop(object.insert(stringify!($nested).to_owned(), below)),
                })*
                Value::Object(object)
            }
        }

        #[allow(unused_variables, clippy::needless_update)]
        impl Own for $type {
            fn set_own(&mut self, own: fields::Fields) -> Result<(), EditError> {
                let own: Self = fields::read(own)?;
                $(let $nested = std::mem::take(&mut self.$nested);)*
                let next = Self { $($nested,)* ..own };
                *self = next;
                Ok(())
            }
        }
    )*};
}

/// A table's own keys, without the parts below it.
trait Own: Sized {
    fn set_own(&mut self, own: fields::Fields) -> Result<(), EditError>;
}

table! {
    Config {
        server, client, api, channel, listeners, tls, webhooks, proxies, programs, rpc, engines, tenants, cluster, federation, pusher, push,
        limits, config, shutdown, admin, log, otlp
    }
    Server { client_ingress, admin_ingress }
    Client { token, subscription_token, subscribe_to_user_personal_channel, proxy, long_poll }
    ClientProxy {}
    Proxy { static_headers }
    Program {}
    Rpc { namespaces }
    RpcNamespace {}
    Engine {}
    Token { keys, labels_from_claim }
    SubscriptionToken { keys }
    PersonalChannel {}
    LongPoll {}
    Api { keys, scopes }
    ApiScope { budget }
    Channel { without_namespace, namespaces }
    ChannelOptions { pacing, budget }
    Pacing {}
    ClientBudget {}
    SharedBudget {}
    Listener { ingress }
    Ingress {}
    Tls { certificates }
    Certificate {}
    Webhooks { upstreams, hooks }
    Upstream { health_check, members }
    HealthCheck {}
    Member {}
    Hook {}
    PusherConfig { apps }
    PusherApp {}
    Tenant { api_keys, token_keys, without_namespace, namespaces, budget }
    Cluster {}
    Federation { peers }
    FederationPeer {}
    PushConfig { apns, fcm, vapid }
    ApnsConfig { route }
    FcmConfig { route }
    VapidConfig { route }
    Route {}
    Limits { client_budget, anonymous_budget, user_budget, address_budget, broadcast_pacing }
    Changes {}
    Shutdown {}
    Admin { tokens }
    AdminToken {}
    Log { targets }
    Otlp { headers }
}

impl<T: Part> Part for Map<T> {
    fn from_value(value: Value) -> Result<Map<T>, EditError> {
        let mut map = Map::new();
        map.replace(value)?;
        Ok(map)
    }

    fn at(&self, steps: Steps<'_>) -> Option<Value> {
        match steps.split_first() {
            Some((name, rest)) => Map::get(self, name)?.at(rest),
            None => serde_json::to_value(self).ok(),
        }
    }

    fn has(&self, steps: Steps<'_>) -> bool {
        match steps.split_first() {
            Some((name, rest)) => Map::get(self, name).is_some_and(|entry| entry.has(rest)),
            None => true,
        }
    }

    fn edit(&mut self, steps: Steps<'_>, edit: Edit) -> Result<(), EditError> {
        let Some((name, rest)) = steps.split_first() else {
            match edit {
                Edit::Add(value) | Edit::Replace(value) => self.replace(value)?,
                Edit::Remove => *self = Map::new(),
            }
            return Ok(());
        };
        let entry = Map::get(self, name);
        match (entry, edit) {
            (None, Edit::Add(value)) if rest.is_empty() => {
                if self.len() >= ENTRIES_MAX {
                    return Err(EditError::Invalid(format!(
                        "it has {ENTRIES_MAX} entries already"
                    )));
                }
                self.insert(name.as_str(), T::from_value(value)?);
            }
            (None, _) => return Err(EditError::NotFound),
            (Some(_), Edit::Remove) if rest.is_empty() => drop(self.remove(name)),
            (Some(entry), edit) => {
                let mut changed = entry.clone();
                changed.edit(rest, edit)?;
                self.insert(name.as_str(), changed);
            }
        }
        Ok(())
    }

    fn replace(&mut self, value: Value) -> Result<(), EditError> {
        let object = object(value)?;
        if object.len() > ENTRIES_MAX {
            return Err(EditError::Invalid(format!("it has more than {ENTRIES_MAX} entries")));
        }
        let mut entries = Vec::with_capacity(object.len());
        for (name, value) in object {
            entries.push(match self.get_entry(&name) {
                Some((name, old)) => {
                    let mut entry = (**old).clone();
                    entry.replace(value)?;
                    let same = entry == **old;
                    let entry = if same { Arc::clone(old) } else { Arc::new(entry) };
                    (Arc::clone(name), entry)
                }
                None => (name.into(), Arc::new(T::from_value(value)?)),
            });
        }
        *self = entries.into_iter().collect();
        Ok(())
    }

    fn merge(&mut self, patch: Value) -> Result<(), EditError> {
        for (name, value) in object(patch)? {
            if value.is_null() {
                // In a merge patch, removing a missing entry is not an error.
                self.remove(&name);
                continue;
            }
            match Map::get(self, &name) {
                Some(entry) => {
                    let mut changed = entry.clone();
                    changed.merge(value)?;
                    if changed != *entry {
                        self.insert(name, changed);
                    }
                }
                None => self.edit(&[name], Edit::Add(without_nulls(value)))?,
            }
        }
        Ok(())
    }

    fn compare(&self, after: &Map<T>, path: &mut String, out: &mut Vec<Difference>) {
        for (name, before, after) in after.changes_from(self) {
            below(path, name, |path| match (before, after) {
                (Some(before), Some(after)) => before.compare(after, path, out),
                (before, after) => out.push(Difference {
                    pointer: path.clone(),
                    before: before.map(|entry| entry.sparse()),
                    after: after.map(|entry| entry.sparse()),
                }),
            });
        }
    }

    fn sparse(&self) -> Value {
        self.iter().map(|(name, entry)| (name.to_owned(), entry.sparse())).collect()
    }
}

/// Returns what a merge patch sets where nothing was: the patch without its nulls.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => object
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        value => value,
    }
}

/// A map's entry without keys of its own: one text.
macro_rules! text {
    ($($type:ident::$text:ident),*) => {$(
        impl Part for $type {
            fn from_value(value: Value) -> Result<$type, EditError> {
                Ok(serde_json::from_value(value)?)
            }

            fn at(&self, steps: Steps<'_>) -> Option<Value> {
                steps.is_empty().then(|| self.sparse())
            }

            fn has(&self, steps: Steps<'_>) -> bool {
                steps.is_empty()
            }

            fn edit(&mut self, steps: Steps<'_>, edit: Edit) -> Result<(), EditError> {
                match edit {
                    Edit::Add(value) | Edit::Replace(value) if steps.is_empty() => self.replace(value),
                    _ => Err(EditError::NotFound),
                }
            }

            fn replace(&mut self, value: Value) -> Result<(), EditError> {
                *self = $type::from_value(value)?;
                Ok(())
            }

            fn merge(&mut self, patch: Value) -> Result<(), EditError> {
                self.replace(patch)
            }

            fn compare(&self, after: &$type, path: &mut String, out: &mut Vec<Difference>) {
                if self != after {
                    out.push(Difference {
                        pointer: path.clone(),
                        before: Some(self.sparse()),
                        after: Some(after.sparse()),
                    });
                }
            }

            fn sparse(&self) -> Value {
                Value::String(self.$text().to_owned())
            }
        }
    )*};
}

text! { Secret::reveal, ClaimPath::as_str, LogLevel::as_str }

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::effect::Keys;
    use crate::schema::{self, Kind, SchemaNode};

    /// Returns a value of this kind that differs from the present one.
    fn another(node: &SchemaNode, present: Option<&Value>) -> Value {
        let values = match &node.kind {
            Kind::Boolean => vec![json!(true), json!(false)],
            Kind::Integer { min, max } => vec![json!(min), json!(max)],
            Kind::Text | Kind::Secret => vec![json!("one"), json!("other")],
            Kind::Pattern => vec![json!("one-*"), json!("other-*")],
            Kind::SocketAddress => vec![json!("127.0.0.1:1"), json!("127.0.0.1:2")],
            Kind::Choice(words) => words.iter().map(|(word, _)| json!(word)).collect(),
            Kind::List(element) => vec![json!([another(element, None)]), json!([])],
            Kind::Table(_) | Kind::Map(_) => panic!("these have places below them"),
        };
        values.into_iter().find(|value| present != Some(value)).expect("a choice has two words")
    }

    fn changed(from: &Config, edit: impl FnOnce(&mut Config)) -> (Config, Vec<String>) {
        let mut after = from.clone();
        edit(&mut after);
        let mut differences = Vec::new();
        from.compare(&after, &mut String::new(), &mut differences);
        (after, differences.into_iter().map(|difference| difference.pointer).collect())
    }

    /// Visits every place of the schema. A table missing from [`table!`] would be a single value: a merge patch of one
    /// of its keys would reset the others, and no pointer would lead into it.
    fn every_place(config: &mut Config, node: &SchemaNode, steps: &mut Vec<String>) {
        let pointer = format!("/{}", steps.join("/"));
        if let Kind::Map(entry) = &node.kind {
            let made = match &entry.kind {
                Kind::Table(_) => json!({}),
                _ => another(entry, None),
            };
            steps.push("named".into());
            config.edit(steps, Edit::Add(made)).unwrap_or_else(|e| panic!("{pointer}: {e:?}"));
            every_place(config, entry, steps);
            steps.pop();
        }
        let present = config.at(steps).unwrap_or_else(|| panic!("{pointer} cannot be read"));
        let (_, differences) = changed(config, |config| {
            config.edit(steps, Edit::Replace(present.clone())).unwrap();
        });
        assert_eq!(differences, [""; 0], "{pointer} is written back");
        if let Kind::Table(keys) = &node.kind {
            for (key, node) in keys {
                steps.push(key.clone());
                every_place(config, node, steps);
                steps.pop();
            }
        } else if !matches!(node.kind, Kind::Map(_)) {
            let value = another(node, Some(&present));
            let (put, differences) =
                changed(config, |config| config.edit(steps, Edit::Add(value.clone())).unwrap());
            assert_eq!(differences, [pointer.as_str()], "what setting {pointer} changes");
            let declared = schema::root().effects_at(steps.iter().map(String::as_str));
            assert_eq!(config.effects(&put), declared, "what setting {pointer} brings about");
            let patch = steps.iter().rev().fold(value, |below, step| json!({ step: below }));
            let (merged, differences) = changed(config, |config| config.merge(patch).unwrap());
            assert_eq!(differences, [pointer.as_str()], "what a merge patch of {pointer} changes");
            assert_eq!(merged, put);
            // The following edits apply to tables that are not at their defaults.
            *config = put;
        }
    }

    #[test]
    fn every_place_of_the_schema_is_read_put_and_merged_alone() {
        every_place(&mut Config::default(), schema::root(), &mut Vec::new());
    }
}
