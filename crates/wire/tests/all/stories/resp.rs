//! RESP, value by value.

use dunlin_wire::resp::{Error, Limits, Scan, Scanner, Value, encode_command, encode_value};
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: Limits = Limits { depth_max: 4, elements_max: 20, value_bytes_max: 200 };

fn scan(bytes: &[u8]) -> Result<Scan, Error> {
    Scanner::new(&LIMITS).scan(bytes)
}

fn read(bytes: &[u8]) -> Value<'_> {
    assert_eq!(scan(bytes), Ok(Scan::Value(bytes.len())));
    Value::parse(bytes).expect("it has been scanned")
}

#[test]
fn every_type_is_read() {
    use Value::{Array, Bulk, Integer, Map, Null, Push, Set, Simple};
    for (bytes, value) in [
        ("+OK\r\n", Simple("OK")),
        ("-ERR no\r\n", Value::Error("ERR no")),
        ("!6\r\nERR\r\nx\r\n", Value::Error("ERR\r\nx")),
        (":-12\r\n", Integer(-12)),
        (":9223372036854775807\r\n", Integer(i64::MAX)),
        ("$3\r\na\r\n\r\n", Bulk(b"a\r\n")),
        ("$0\r\n\r\n", Bulk(b"")),
        ("$-1\r\n", Null),
        ("*-1\r\n", Null),
        ("_\r\n", Null),
        ("#t\r\n", Value::Boolean(true)),
        (",1.5\r\n", Value::Double(1.5)),
        (",-inf\r\n", Value::Double(f64::NEG_INFINITY)),
        (
            "(-3492890328409238509324850943850943825024385\r\n",
            Value::BigNumber("-3492890328409238509324850943850943825024385"),
        ),
        ("=7\r\ntxt:abc\r\n", Value::Verbatim(b"txt", b"abc")),
        ("*2\r\n:1\r\n*0\r\n", Array(vec![Integer(1), Array(vec![])])),
        ("~1\r\n+a\r\n", Set(vec![Simple("a")])),
        (">2\r\n+a\r\n_\r\n", Push(vec![Simple("a"), Null])),
        ("%1\r\n+a\r\n:1\r\n", Map(vec![(Simple("a"), Integer(1))])),
        (
            "|1\r\n+a\r\n:1\r\n:2\r\n",
            Value::Attributed(vec![(Simple("a"), Integer(1))], Box::new(Integer(2))),
        ),
    ] {
        assert_eq!(read(bytes.as_bytes()), value, "{bytes:?}");
        for cut in 0..bytes.len() {
            assert_eq!(
                scan(&bytes.as_bytes()[..cut]),
                Ok(Scan::Incomplete),
                "{bytes:?} cut at {cut}"
            );
        }
    }
}

#[test]
fn malformed_value_is_refused_without_an_allocation() {
    for (bytes, error) in [
        ("HTTP/1.1 200 OK\r\n", Error::Type),
        (":1a\r\n", Error::Number),
        (":9223372036854775808\r\n", Error::Number),
        ("$-2\r\n", Error::Number),
        ("+a\nb\r\n", Error::LineEnd),
        ("$1\r\nabc", Error::LineEnd),
        ("$1\r\nax", Error::LineEnd),
        ("#x\r\n", Error::Malformed),
        (",1,5\r\n", Error::Malformed),
        ("=5\r\nab:cd\r\n", Error::Malformed),
        ("(\r\n", Error::Malformed),
        ("$?\r\n", Error::Streamed),
        ("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", Error::TooDeep),
    ] {
        assert_eq!(scan(bytes.as_bytes()), Err(error), "{bytes:?}");
    }
    for (beyond, dropped) in
        [("$201\r\nabc", 9), ("*21\r\n:1\r\n", 9), ("%9223372036854775807\r\n", 22)]
    {
        assert_eq!(scan(beyond.as_bytes()), Ok(Scan::Drop(dropped)), "{beyond:?}");
    }
    let long = "x".repeat(70_000);
    assert_eq!(
        Scanner::new(&Limits::default()).scan(format!("+{long}").as_bytes()),
        Err(Error::TooLong)
    );
    assert_eq!(Value::parse(b"*1000000000\r\n"), None);
    assert_eq!(Value::parse(&b"*1\r\n".repeat(100_000)), None, "deeper than any limit");
}

#[test]
fn a_command_is_an_array_of_strings() {
    let mut out = Vec::new();
    encode_command(&mut out, &[b"SET", b"k", b"a\r\nb"]);
    let value = read(&out);
    let words: Vec<_> = value.elements().expect("an array").iter().map(Value::bytes).collect();
    assert_eq!(words, [Some(&b"SET"[..]), Some(b"k"), Some(b"a\r\nb")]);
}

/// A value that owns its strings, to be lent.
#[derive(Clone, Debug)]
enum Owned {
    Null,
    Simple(String),
    Error(String),
    Integer(i64),
    Double(f64),
    Boolean(bool),
    Bulk(Vec<u8>),
    Verbatim(Vec<u8>),
    Array(Vec<Owned>),
    Set(Vec<Owned>),
    Push(Vec<Owned>),
    Map(Vec<(Owned, Owned)>),
    Attributed(Vec<(Owned, Owned)>, Box<Owned>),
}

impl Owned {
    fn lend(&self) -> Value<'_> {
        match self {
            Owned::Null => Value::Null,
            Owned::Simple(text) => Value::Simple(text),
            Owned::Error(text) => Value::Error(text),
            Owned::Integer(number) => Value::Integer(*number),
            Owned::Double(number) => Value::Double(*number),
            Owned::Boolean(yes) => Value::Boolean(*yes),
            Owned::Bulk(bytes) => Value::Bulk(bytes),
            Owned::Verbatim(bytes) => Value::Verbatim(b"txt", bytes),
            Owned::Array(values) => Value::Array(values.iter().map(Owned::lend).collect()),
            Owned::Set(values) => Value::Set(values.iter().map(Owned::lend).collect()),
            Owned::Push(values) => Value::Push(values.iter().map(Owned::lend).collect()),
            Owned::Map(pairs) => Value::Map(lend_pairs(pairs)),
            Owned::Attributed(about, value) => {
                Value::Attributed(lend_pairs(about), Box::new(value.lend()))
            }
        }
    }
}

fn lend_pairs(pairs: &[(Owned, Owned)]) -> Vec<(Value<'_>, Value<'_>)> {
    pairs.iter().map(|(key, value)| (key.lend(), value.lend())).collect()
}

fn value() -> impl Strategy<Value = Owned> {
    let leaf = prop_oneof![
        Just(Owned::Null),
        "[ -~]{0,8}".prop_map(Owned::Simple),
        "[ -~]{0,8}".prop_map(Owned::Error),
        any::<i64>().prop_map(Owned::Integer),
        any::<f64>()
            .prop_filter("equal to itself", |number| !number.is_nan())
            .prop_map(Owned::Double),
        any::<bool>().prop_map(Owned::Boolean),
        vec(any::<u8>(), 0..12).prop_map(Owned::Bulk),
        vec(any::<u8>(), 0..12).prop_map(Owned::Verbatim),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let pairs = vec((inner.clone(), inner.clone()), 0..3);
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Owned::Array),
            vec(inner.clone(), 0..5).prop_map(Owned::Set),
            vec(inner.clone(), 0..5).prop_map(Owned::Push),
            pairs.clone().prop_map(Owned::Map),
            (pairs, inner).prop_map(|(about, value)| Owned::Attributed(about, Box::new(value))),
        ]
    })
}

proptest! {
    #[test]
    fn values_survive_the_round_trip_and_any_cut(values in vec(value(), 1..6), piece in 1..40usize) {
        let mut bytes = Vec::new();
        for value in &values {
            encode_value(&mut bytes, &value.lend());
        }
        let mut scanner = Scanner::new(&Limits::default());
        let (mut begin, mut end, mut read) = (0, 0, 0);
        while read < values.len() {
            match scanner.scan(&bytes[begin..end]).expect("it is well-formed") {
                Scan::Value(length) => {
                    let value = Value::parse(&bytes[begin..begin + length]);
                    prop_assert_eq!(value, Some(values[read].lend()));
                    begin += length;
                    read += 1;
                }
                Scan::Incomplete => {
                    prop_assert!(end < bytes.len());
                    end = (end + piece).min(bytes.len());
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert_eq!(begin, bytes.len());
    }
}
