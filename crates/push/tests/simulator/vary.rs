//! Answer times that vary.

use std::time::{Duration, Instant};

use dunlin_push::apns::Apns;
use dunlin_push::{Connections, Outcome, results};
use dunlin_simulate::apns::{AnswerTime, Behaviour};

use super::{each_once, origin, sender, simulator};

const PUSHES: usize = 2_000;
/// What they take with four in flight and 28.5 ms each. With hundreds it is a fiftieth of that.
const FOUR_IN_FLIGHT: Duration = Duration::from_millis(2_000 * 285 / 10 / 4);

async fn all_are_accepted_in_a_fraction(apns: &Apns) {
    let (outcomes_in, mut outcomes) = results();
    let begin = Instant::now();
    for tag in 0..PUSHES {
        let push = super::push("aa", tag);
        apns.submit(&push, tag as u64, &outcomes_in).await.unwrap();
    }
    for outcome in each_once(&mut outcomes, PUSHES).await {
        assert!(matches!(outcome, Outcome::Accepted(_)), "{outcome}");
    }
    assert!(begin.elapsed() < FOUR_IN_FLIGHT / 4, "{:?} {:?}", begin.elapsed(), apns.metrics());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fastest_answer_is_not_taken_for_the_path() {
    for (rtt_ms, answer_time) in [(0, "bimodal:0.05,1,30"), (20, "5+exponential:20")] {
        let answer_time = answer_time.parse::<AnswerTime>().unwrap();
        let behaviour =
            Behaviour { rtt_ms, answer_time, connection_window: 16 << 20, ..Behaviour::default() };
        let simulator = simulator(behaviour);
        let apns = sender(origin(&simulator), Connections::Fixed(1));
        all_are_accepted_in_a_fraction(&apns).await;
    }
}
