//! Deduplication of requests by idempotency key: all requests with the same key get the same response.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::OnceCell;

/// How long a key is kept, and how many keys. A response has at most 1,000 outcomes, about 300 KB.
const REMEMBERED: Duration = Duration::from_secs(300);
const KEYS_MAX: usize = 256;

type SharedResponse = Arc<OnceCell<Value>>;

/// The responses to requests with a key.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    answers: HashMap<String, SharedResponse>,
    /// Keys by age, oldest first.
    ages: VecDeque<(Instant, String)>,
}

impl Repeats {
    /// Returns the response of the first request with this key. Only that one is executed; concurrent ones wait for it.
    pub(super) async fn once(&self, key: String, carry_out: impl Future<Output = Value>) -> Value {
        let answer = self.answer(key);
        answer.get_or_init(|| carry_out).await.clone()
    }

    fn answer(&self, key: String) -> SharedResponse {
        let now = Instant::now();
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Remembered { answers, ages } = &mut *remembered;
        while let Some((since, oldest)) = ages.front()
            && (ages.len() >= KEYS_MAX || now >= *since + REMEMBERED)
        {
            answers.remove(oldest);
            ages.pop_front();
        }
        let known = answers.entry(key.clone());
        let known = known.or_insert_with(|| {
            ages.push_back((now, key));
            SharedResponse::default()
        });
        Arc::clone(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_carried_out_once_and_forgotten_in_the_end() {
        let repeats = Repeats::default();
        let carried_out = Mutex::new(0);
        let once = |key: &str| {
            repeats.once(key.to_owned(), async {
                tokio::task::yield_now().await;
                *carried_out.lock().unwrap() += 1;
                Value::from("answer")
            })
        };
        let (first, second) = tokio::join!(once("a"), once("a"));
        assert_eq!((first, second), ("answer".into(), "answer".into()));
        assert_eq!(*carried_out.lock().unwrap(), 1);
        for n in 0..KEYS_MAX {
            once(&n.to_string()).await;
        }
        once("a").await;
        assert_eq!(*carried_out.lock().unwrap(), KEYS_MAX + 2);
    }
}
