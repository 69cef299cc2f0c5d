//! Records, messages, lost connections and lost data.
#![allow(clippy::unwrap_used, reason = "what does not come about fails the test")]

use super::*;

async fn put_by_two_connections_succeeds_once<B: Backend>() {
    let backend = B::start();
    let nodes = [backend.open("a").await, backend.open("b").await];
    let values = ["of a", "of b"].map(change);
    for number in 1..=20 {
        let key = Key::LogChange(number, 0);
        let (one, other) = tokio::join!(
            nodes[0].put(&key, None, &values[0]),
            nodes[1].put(&key, None, &values[1])
        );
        let written = [one.unwrap(), other.unwrap()];
        assert!(written[0].is_some() != written[1].is_some(), "{written:?}");
        let winner = usize::from(written[0].is_none());
        let (node, other) = (&nodes[winner], &nodes[1 - winner]);
        let found = other.get(&key).await.unwrap();
        assert_eq!(
            (Some(&found.version), &found.value),
            (written[winner].as_ref(), &values[winner])
        );
        assert_eq!(other.put(&key, None, &values[1 - winner]).await, Ok(None));
        let next = other.put(&key, Some(&found.version), &values[1 - winner]).await;
        let next = next.unwrap().unwrap();
        assert!(!node.remove(&found.version).await, "another has replaced it");
        assert_eq!(node.get(&key).await.unwrap().value, values[1 - winner]);
        assert!(node.remove(&next).await && !other.remove(&next).await);
        assert!(node.get(&key).await.is_none());
        assert_eq!(node.put(&key, Some(&next), &values[0]).await, Ok(None), "it is removed");
    }
}

async fn list_during_writes_has_all_that_stays<B: Backend>() {
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    node.renew().await.unwrap();
    other.renew().await.unwrap();
    let stays = |at: usize| (format!("stays {at}").into(), br#""call""#.to_vec());
    node.store.keep_absent((0..300).map(stays).collect()).await.unwrap();
    let changes = async {
        for at in 0..150 {
            let goes = |at: usize| (Box::from(format!("goes {at}")), br#""call""#.to_vec());
            other.store.keep_absent(vec![goes(at)]).await.unwrap();
            if at >= 20 {
                other.store.drop_kept(vec![goes(at - 20)]).await.unwrap();
            }
        }
    };
    let lists = async {
        for _ in 0..15 {
            let listed = node.store.kept().await.unwrap();
            let names: HashSet<_> = listed.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(names.len(), listed.len(), "each is listed once");
            assert!((0..300).all(|at| names.contains(&stays(at).0)), "of {} records", names.len());
        }
    };
    tokio::join!(changes, lists);
    assert_eq!(node.kept().await.len(), 320);
}

async fn operation_without_answer_fails_and_the_next_connection_goes_on<B: Backend>() {
    let backend = B::start();
    let mut node = backend.open("a").await;
    node.renew().await.unwrap();
    node.link.mute();
    let cut = async {
        sleep(Duration::from_millis(50)).await;
        node.link.cut();
    };
    let claim = node.store.claim_log(LONG_MS, LogPosition::default());
    let blocked = node.store.keep("user u", br#""blocked""#.to_vec());
    let (claimed, blocked, joined, ()) = tokio::join!(claim, blocked, node.write(&["+1!"]), cut);
    assert!(matches!(claimed, Err(StoreError::Closed(_))), "{claimed:?}");
    assert!(matches!(blocked, Err(StoreError::Closed(_))), "{blocked:?}");
    assert!(matches!(joined, Err(StoreError::Closed(_))), "{joined:?}");
    assert_eq!(node.next().await, None, "its messages end, too");
    let again = backend.open("a").await;
    assert_eq!(again.renew().await, Ok(LeaseWrite::Renewed));
    again.store.keep("user u", br#""unblocked""#.to_vec()).await.unwrap();
    assert_eq!(again.kept().await, [("user u".into(), br#""unblocked""#.to_vec())]);
    again.write(&["+1!"]).await.unwrap();
    assert_eq!(again.own().await, [1]);
    assert_eq!(again.write(&["-1!"]).await, Ok(vec![true]));
    let claimed = again.store.claim_log(LONG_MS, LogPosition::default()).await;
    assert!(matches!(claimed, Ok(LogClaim::Claimed(_))), "{claimed:?}");
    assert_eq!(again.append(1, b"sealed".to_vec()).await, Ok(true));
}

async fn kept_call_is_replaced_by_the_next_of_its_name<B: Backend>() {
    let backend = B::start();
    let node = backend.open("a").await;
    node.renew().await.unwrap();
    for call in [r#""blocked""#, r#""unblocked""#] {
        node.store.keep("user ü. *", call.into()).await.unwrap();
    }
    node.store.keep("user b", b"1".to_vec()).await.unwrap();
    let of_u = ("user ü. *".into(), br#""unblocked""#.to_vec());
    let of_b = |call: &str| ("user b".into(), call.as_bytes().to_vec());
    assert_eq!(node.kept().await, [of_b("1"), of_u.clone()]);
    let over = vec![of_b("0"), ("user c".into(), b"1".to_vec())];
    node.store.drop_kept(over).await.unwrap();
    assert_eq!(node.kept().await, [of_b("1"), of_u.clone()], "another has taken its place");
    node.store.drop_kept(vec![of_b("1")]).await.unwrap();
    // Regression test: a revocation that was lost in a failover was never written again.
    let absent = vec![("user ü. *".into(), b"3".to_vec()), of_b("4")];
    node.store.keep_absent(absent).await.unwrap();
    assert_eq!(node.kept().await, [of_b("4"), of_u]);
    // Two calls of one name that a node makes at once are kept in their order.
    let (one, other) =
        (node.store.keep("user b", b"5".to_vec()), node.store.keep("user b", b"6".to_vec()));
    let (other, one) = tokio::join!(other, one);
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(node.kept().await[0], of_b("6"));
}

async fn budgets_key_is_that_of_the_first<B: Backend>() {
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    let (one, two) =
        tokio::join!(node.store.budgets_key([1; 16]), other.store.budgets_key([2; 16]));
    let key = one.unwrap();
    assert_eq!(two, Ok(key));
    assert_eq!(other.store.budgets_key([3; 16]).await, Ok(key));
}

async fn settings_log_has_one_writer_and_a_bounded_number_of_changes<B: Backend>() {
    let backend = B::start();
    let (node, mut other) = (backend.open("a").await, backend.open("b").await);
    let none = LogPosition::default();
    other.renew().await.unwrap();
    let claim = |node: &Node, read| node.store.claim_log(LONG_MS, read);
    assert_eq!(claim(&node, none).await, Ok(LogClaim::Claimed(none)));
    assert_eq!(claim(&other, none).await, Ok(LogClaim::UnderWay(none)));
    assert_eq!(other.append(1, vec![1; 10]).await, Ok(false));
    assert_eq!(node.append(1, vec![1; 10]).await, Ok(true));
    assert_eq!(other.next().await.as_deref(), Some(&b"{}"[..]), "the others are notified");
    assert_eq!(node.append(2, vec![2; 10]).await, Ok(false), "the right is used up");
    assert_eq!(claim(&other, none).await, Ok(LogClaim::Behind(at(1))));
    assert_eq!(claim(&other, at(1)).await, Ok(LogClaim::Claimed(at(1))));
    node.store.release_log().await.unwrap();
    assert_eq!(claim(&node, at(1)).await, Ok(LogClaim::UnderWay(at(1))), "it is another's");
    other.store.release_log().await.unwrap();
    for revision in 2..=12 {
        assert_eq!(claim(&node, at(revision - 1)).await, Ok(LogClaim::Claimed(at(revision - 1))));
        assert_eq!(node.append(revision, vec![revision as u8; 900_000]).await, Ok(true));
    }
    let part = other.store.read_log(none).await.unwrap();
    assert_eq!((part.log, part.since, part.changes.len()), (at(12), 3, 9));
    assert_eq!(node.changes().await, 9);
    let newest = other.store.read_log(at(11)).await.unwrap();
    assert_eq!(newest.changes, [(12, vec![12; 900_000])]);
    // The largest change exceeds the size of a message once it is sealed.
    assert_eq!(claim(&node, at(12)).await, Ok(LogClaim::Claimed(at(12))));
    assert_eq!(node.append(13, vec![13; (1 << 20) + 100]).await, Ok(true));
    let newest = other.store.read_log(at(12)).await.unwrap();
    assert_eq!(newest.changes, [(13, vec![13; (1 << 20) + 100])]);
    for revision in 14..=22 {
        assert_eq!(claim(&node, at(revision - 1)).await, Ok(LogClaim::Claimed(at(revision - 1))));
        assert_eq!(node.append(revision, vec![revision as u8; 900_000]).await, Ok(true));
    }
    assert_eq!(node.changes().await, 9, "nothing is left of the parts");
    // A log that has lost changes is begun anew from the position of the nodes.
    assert_eq!(claim(&node, at(22)).await, Ok(LogClaim::Claimed(at(22))));
    assert_eq!(node.append(30, vec![30; 10]).await, Ok(true));
    let part = other.store.read_log(at(22)).await.unwrap();
    assert_eq!((part.since, part.changes), (29, vec![(30, vec![30; 10])]));
    assert_eq!(node.changes().await, 1, "nothing is left of it");
}

/// Regression test: in NATS, a node whose claim had ended could overwrite the change of the node that claimed the log after it.
async fn change_of_a_node_whose_claim_has_ended_is_not_kept<B: Backend>() {
    const HOLD_MS: u64 = 100;
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    node.renew().await.unwrap();
    let none = LogPosition::default();
    assert_eq!(node.store.claim_log(HOLD_MS, none).await, Ok(LogClaim::Claimed(none)));
    // What it writes as its claim ends.
    let late = node.get(&Key::LogChange(1, 0)).await;
    assert!(late.is_none());
    let began = Instant::now();
    loop {
        other.renew().await.unwrap();
        match other.store.claim_log(LONG_MS, none).await.unwrap() {
            LogClaim::Claimed(_) => break,
            _ => assert!(began.elapsed() < TIMEOUT),
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(other.append(1, b"of b".to_vec()).await, Ok(true));
    assert_eq!(node.put(&Key::LogChange(1, 0), None, &change("late")).await, Ok(None));
    assert_eq!(node.append(1, b"of a".to_vec()).await, Ok(false));
    let part = node.store.read_log(none).await.unwrap();
    assert_eq!((part.log, part.changes), (at(1), vec![(1, b"of b".to_vec())]));
}

async fn messages_arrive_in_order_and_none_of_a_time_without_connection<B: Backend>() {
    let backend = B::start();
    let (mut node, mut other) = (backend.open("a").await, backend.open("b").await);
    node.renew().await.unwrap();
    let large = vec![b' '; 2 << 20];
    let all = |text: &[u8]| (Destination::All, text.to_vec());
    let to_b = (Destination::Node("b".into()), b"to b".to_vec());
    node.store.send(vec![all(b"one"), to_b, all(&large), all(b"two")]).await.unwrap();
    for wanted in [&b"one"[..], b"to b", &large, b"two"] {
        assert_eq!(other.next().await.as_deref(), Some(wanted));
    }
    for wanted in [&b"one"[..], &large, b"two"] {
        assert_eq!(node.next().await.as_deref(), Some(wanted));
    }
    other.link.cut();
    assert_eq!(other.next().await, None);
    let (uid, number) = (other.store.uid().to_string(), other.store.number());
    drop(other);
    node.store.send(vec![all(b"three")]).await.unwrap();
    assert_eq!(node.next().await.as_deref(), Some(&b"three"[..]));
    let mut again = backend.open(&uid).await;
    assert!(again.store.number() > number);
    node.store.send(vec![all(b"four")]).await.unwrap();
    assert_eq!(again.next().await.as_deref(), Some(&b"four"[..]));
    // The probe of a lease comes back, after what was sent before.
    again.store.send(vec![all(b"five")]).await.unwrap();
    again.renew().await.unwrap();
    assert_eq!(again.next().await.as_deref(), Some(&b"five"[..]));
    assert_eq!(again.messages.next().await.as_deref(), Some(&b"probe"[..]));
}

async fn store_that_lost_its_data_is_noticed_and_filled_again<B: Backend>() {
    let backend = B::start();
    let (node, other) = (backend.open("a").await, backend.open("b").await);
    let none = LogPosition::default();
    node.renew().await.unwrap();
    other.renew().await.unwrap();
    node.write(&["+1!"]).await.unwrap();
    let call = || vec![("user u".into(), br#""blocked""#.to_vec())];
    node.store.keep_absent(call()).await.unwrap();
    assert_eq!(node.store.claim_log(LONG_MS, none).await, Ok(LogClaim::Claimed(none)));
    node.append(1, b"one".to_vec()).await.unwrap();
    assert_eq!(node.store.claim_log(LONG_MS, at(1)).await, Ok(LogClaim::Claimed(at(1))));
    node.append(2, b"two".to_vec()).await.unwrap();
    backend.flush().await;
    assert!(other.present().await.is_err(), "it is no empty channel");
    let part = other.store.read_log(none).await;
    assert!(part.is_err() || part == Ok(LogPart::default()), "{part:?}");
    assert_eq!(node.renew().await, Ok(LeaseWrite::Created));
    assert_eq!(other.renew().await, Ok(LeaseWrite::Created));
    assert_eq!((node.own().await, node.kept().await), (vec![], vec![]));
    assert_eq!(node.write(&["+1!"]).await, Ok(vec![true]));
    assert_eq!(other.present().await, Ok(vec![1]));
    node.store.keep_absent(call()).await.unwrap();
    other.store.keep_absent(call()).await.unwrap();
    assert_eq!(other.kept().await, call());
    let changes = vec![(1, b"one".to_vec()), (2, b"two".to_vec())];
    let part = || LogPart { log: at(2), since: 0, changes: changes.clone() };
    let (one, two) = tokio::join!(node.store.extend_log(part()), other.store.extend_log(part()));
    assert_eq!([one, two].iter().filter(|of| **of == Ok(true)).count(), 1);
    assert_eq!(other.store.read_log(none).await, Ok(part()));
    assert_eq!(other.store.claim_log(LONG_MS, at(2)).await, Ok(LogClaim::Claimed(at(2))));
    assert_eq!(other.append(3, b"three".to_vec()).await, Ok(true));
}

contract!(
    put_by_two_connections_succeeds_once,
    list_during_writes_has_all_that_stays,
    operation_without_answer_fails_and_the_next_connection_goes_on,
    kept_call_is_replaced_by_the_next_of_its_name,
    budgets_key_is_that_of_the_first,
    settings_log_has_one_writer_and_a_bounded_number_of_changes,
    change_of_a_node_whose_claim_has_ended_is_not_kept,
    messages_arrive_in_order_and_none_of_a_time_without_connection,
    store_that_lost_its_data_is_noticed_and_filled_again,
);
