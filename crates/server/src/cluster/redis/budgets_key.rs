//! The key in Redis that hashes names of budgets. The first node that requests it creates it. A client that knew it could choose
//! a name whose hash collides with that of another budget.

use super::link::RedisReply;
use super::{RedisStore, refused};
use crate::cluster::store::StoreError;

/// Reads the key, which follows its version.
pub(super) async fn read(store: &RedisStore, made: [u8; 16]) -> Result<[u8; 16], StoreError> {
    let (name, made) = (store.key("budgets"), format!("1 {:032x}", u128::from_be_bytes(made)));
    let set: [&[u8]; 4] = [b"SET", name.as_bytes(), made.as_bytes(), b"NX"];
    let replies = store.link.call(&[&set, &[b"GET", name.as_bytes()]]).await?;
    let key = replies.get(1).and_then(RedisReply::text).and_then(|text| text.strip_prefix("1 "));
    let key = key.and_then(|key| u128::from_str_radix(key, 16).ok());
    let foreign = "WRONGTYPE the key of budgets is something that another program wrote";
    Ok(key.ok_or_else(|| refused(foreign.into()))?.to_be_bytes())
}
