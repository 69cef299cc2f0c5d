//! Leases, members, and counts of users.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use super::*;

async fn lease_that_is_not_renewed_expires_and_one_node_sweeps<B: Backend>() {
    const LEASE_MS: u64 = 400;
    let backend = B::start();
    let node = backend.open("a").await;
    let others = [backend.open("b").await, backend.open("c").await];
    node.renew_for(LEASE_MS).await.unwrap();
    assert_eq!(node.write(&["+1!", "+2"]).await, Ok(vec![true, true]));
    let began = Instant::now();
    loop {
        let (one, other) =
            tokio::join!(others[0].renew_for(LEASE_MS), others[1].renew_for(LEASE_MS));
        let (one, other) = (one.unwrap(), other.unwrap());
        let number = node.lease(0).number;
        if [&one, &other].iter().all(|reply| reply.dead.iter().any(|uid| **uid == *"a")) {
            assert!(one.nodes[&number].left_ms < 0 && !other.nodes[&number].is_alive());
            assert!(one.nodes.values().filter(|of| of.is_alive()).count() >= 1);
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "the lease holds: {one:?}");
        sleep(Duration::from_millis(50)).await;
    }
    let late = backend.open("late").await;
    let wants =
        |is_wanted| Lease { number: node.lease(0).number, is_wanted, ..late.lease(LONG_MS) };
    let taken = late.store.write_lease(wants(false), Facts::named(""), b"probe".to_vec()).await;
    assert_eq!(taken.unwrap().written, LeaseWrite::Taken, "a number is reserved for a day");
    let (one, other) = tokio::join!(others[0].sweep("a", LONG_MS), others[1].sweep("a", LONG_MS));
    assert_eq!([one.clone(), other.clone()].iter().flatten().collect::<Vec<_>>(), [&vec![1, 2]]);
    let sweeper = if one.is_some() { &others[0] } else { &others[1] };
    sweeper.store.forget("a".into()).await.unwrap();
    assert_eq!(node.renew().await, Ok(LeaseWrite::Revived), "it was taken for dead");
    assert_eq!(node.own().await, [0; 0]);
    assert_eq!(node.write(&["+1!"]).await, Ok(vec![true]));
}

async fn number_wanted_by_two_is_leased_to_one<B: Backend>() {
    let backend = B::start();
    let nodes = [backend.open("ab").await, backend.open("ba").await];
    let (one, other) = tokio::join!(nodes[0].renew(), nodes[1].renew());
    let mut written = [one.unwrap(), other.unwrap()];
    written.sort_by_key(|written| *written == LeaseWrite::Taken);
    assert_eq!(written, [LeaseWrite::Created, LeaseWrite::Taken]);
}

/// Regression test: a late write of an abandoned connection blocked a user again after the user had been unblocked.
async fn write_of_a_former_connection_has_no_effect<B: Backend>() {
    let backend = B::start();
    let (former, node) = (backend.open("a").await, backend.open("a").await);
    let other = backend.open("b").await;
    assert_eq!(other.renew().await, Ok(LeaseWrite::Created));
    assert_eq!(former.renew().await, Ok(LeaseWrite::Created));
    assert_eq!(former.write(&["+1!", "+4"]).await, Ok(vec![true, true]));
    former.store.keep("user u", br#""blocked""#.to_vec()).await.unwrap();
    let blocked = former.get(&Key::Kept("user u".into())).await.unwrap();
    assert_eq!(node.renew().await, Ok(LeaseWrite::Renewed));
    // Rewrites existing entries over this connection, as a reconciliation does.
    assert_eq!(node.write(&["+1", "+4"]).await, Ok(vec![false, false]));
    node.store.keep("user u", br#""unblocked""#.to_vec()).await.unwrap();
    assert_eq!(node.count("ann", 2, true).await, Ok(0));
    // Redis refuses what comes late, NATS keeps it without effect.
    let _ = former.write(&["+2"]).await;
    let _ = former.count("ann", 9, false).await;
    let kept =
        former.put(&Key::Kept("user u".into()), Some(&blocked.version), &blocked.value).await;
    assert!(!matches!(kept, Ok(Some(_))), "{kept:?}");
    assert!(former.renew().await.is_err(), "late, and it changes nothing");
    other.renew().await.unwrap();
    assert_eq!(node.write(&["+3"]).await, Ok(vec![true]));
    assert_eq!(node.present().await, Ok(vec![1, 3, 4]));
    assert_eq!(node.write(&["+2"]).await, Ok(vec![true]), "what came late is nobody's");
    assert_eq!(node.own().await, [1, 2, 3, 4]);
    assert_eq!(node.kept().await, [("user u".into(), br#""unblocked""#.to_vec())]);
}

async fn members_written_after_a_sweep_do_not_count<B: Backend>() {
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    node.renew().await.unwrap();
    node.write(&["+1!", "+2"]).await.unwrap();
    other.renew().await.unwrap();
    assert_eq!(other.sweep("a", LONG_MS).await, Some(vec![1, 2]));
    assert_eq!(other.present().await, Ok(vec![]), "what is being swept does not count");
    other.store.forget("a".into()).await.unwrap();
    let _ = node.write(&["+3!"]).await;
    other.renew().await.unwrap();
    // A reader removes what has no process.
    let began = Instant::now();
    while other.present().await != Ok(vec![]) {
        assert!(began.elapsed() < TIMEOUT);
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(node.renew().await, Ok(LeaseWrite::Revived));
    assert_eq!(node.write(&["+3!"]).await, Ok(vec![true]));
    assert_eq!(node.own().await, [3]);
}

/// Regression test: if a node lost its connection between a sweep and the announcements, the leaves were never announced.
async fn leaves_of_an_interrupted_sweep_are_announced_by_the_next<B: Backend>() {
    const CLAIM_MS: u64 = 300;
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    node.renew().await.unwrap();
    node.write(&["+1!", "+2"]).await.unwrap();
    assert_eq!(other.sweep("a", CLAIM_MS).await, Some(vec![1, 2]));
    drop(other);
    let third = backend.open("c").await;
    assert_eq!(third.sweep("a", CLAIM_MS).await, None, "the claim holds for a while");
    sleep(Duration::from_millis(2 * CLAIM_MS)).await;
    assert_eq!(third.sweep("a", CLAIM_MS).await, Some(vec![1, 2]));
    // A process that is revived during its sweep keeps what it has written since.
    assert_eq!(node.renew().await, Ok(LeaseWrite::Revived));
    assert_eq!(node.write(&["+1!"]).await, Ok(vec![true]), "it was announced as gone");
    third.store.forget("a".into()).await.unwrap();
    assert_eq!(node.own().await, [1]);
}

async fn member_write_says_whether_it_changed_anything<B: Backend>() {
    let backend = B::start();
    let node = backend.open("a").await;
    assert_eq!(node.renew().await, Ok(LeaseWrite::Created));
    let written = node.write(&["+1!", "+2", "-2", "+2", "-3"]).await;
    assert_eq!(written, Ok(vec![true, true, true, true, false]));
    assert_eq!(node.write(&["+1"]).await, Ok(vec![false]), "it was there");
    assert_eq!((node.own().await, node.present().await), (vec![1, 2], Ok(vec![1, 2])));
    assert_eq!(node.write(&["-1", "-2!"]).await, Ok(vec![true, true]));
    assert_eq!((node.own().await, node.present().await), (vec![], Ok(vec![])));
    let many: Vec<String> = (1..=3_000).map(|client| format!("+{client}!")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(node.write(&many).await.unwrap().into_iter().all(|has_changed| has_changed));
    assert_eq!(node.present().await.unwrap().len(), 3_000);
}

/// Regression test: of two nodes that admitted the last connection at once, both or none were refused.
async fn of_two_that_count_a_user_at_once_the_second_learns_of_the_first<B: Backend>() {
    let backend = B::start();
    let nodes = [backend.open("a").await, backend.open("b").await];
    for node in &nodes {
        node.renew().await.unwrap();
    }
    let count =
        |at: usize, user: &'static str, connections| nodes[at].count(user, connections, false);
    assert_eq!(count(0, "ann ü. *", 1).await, Ok(0));
    assert_eq!(count(1, "ann ü. *", 3).await, Ok(1));
    assert_eq!(count(0, "ann ü. *", 2).await, Ok(3));
    for user in ["bob", "cid", "dan", "eve", "fay", "gus", "hal", "ivy"] {
        let (one, other) = tokio::join!(count(0, user, 1), count(1, user, 1));
        let mut elsewhere = [one.unwrap(), other.unwrap()];
        elsewhere.sort_unstable();
        assert_eq!(elsewhere, [0, 1], "{user}");
    }
    assert_eq!(count(1, "ann ü. *", 0).await, Ok(0));
    assert_eq!(count(0, "ann ü. *", 3).await, Ok(0));
    // Writes all counts over a new connection; late writes of the former one have no effect.
    let again = backend.open("a").await;
    again.renew().await.unwrap();
    assert_eq!(again.count("ann ü. *", 5, true).await, Ok(0));
    let _ = count(0, "bob", 9).await;
    nodes[1].renew().await.unwrap();
    assert_eq!(count(1, "bob", 1).await, Ok(0));
    assert_eq!(count(1, "ann ü. *", 1).await, Ok(5));
    // Nothing is left of a dead process.
    assert!(nodes[1].sweep("a", LONG_MS).await.is_some());
    nodes[1].store.forget("a".into()).await.unwrap();
    assert_eq!(count(1, "ann ü. *", 2).await, Ok(0));
}

contract!(
    lease_that_is_not_renewed_expires_and_one_node_sweeps,
    number_wanted_by_two_is_leased_to_one,
    write_of_a_former_connection_has_no_effect,
    members_written_after_a_sweep_do_not_count,
    leaves_of_an_interrupted_sweep_are_announced_by_the_next,
    member_write_says_whether_it_changed_anything,
    of_two_that_count_a_user_at_once_the_second_learns_of_the_first,
);
