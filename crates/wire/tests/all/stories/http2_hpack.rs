//! Header compression: the examples of RFC 7541, appendix C, and hostile blocks.

use dunlin_wire::http2::hpack::{
    Decoder, Encoder, Error, Indexing, decode_huffman, encode_huffman,
};

type Field = (&'static str, &'static str);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .map(|b| (b as char).to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Error> {
    let mut fields = Vec::new();
    decoder.decode(block, 4096, |name, value| {
        fields.push((
            String::from_utf8(name.to_vec()).unwrap(),
            String::from_utf8(value.to_vec()).unwrap(),
        ));
    })?;
    Ok(fields)
}

fn owned(fields: &[Field]) -> Vec<(String, String)> {
    fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Three requests on one connection, C.3 without and C.4 with Huffman codes.
const REQUESTS: [&[Field]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

const REQUESTS_CODED: [&str; 3] = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
];

#[test]
fn requests_of_c_3_are_read() {
    let mut decoder = Decoder::new(4096);
    let blocks = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    for (block, fields) in blocks.iter().zip(REQUESTS) {
        assert_eq!(decoded(&mut decoder, &hex(block)), Ok(owned(fields)));
    }
}

#[test]
fn requests_of_c_4_are_read_and_written_octet_by_octet() {
    let (mut decoder, mut encoder) = (Decoder::new(4096), Encoder::new());
    for (block, fields) in REQUESTS_CODED.iter().zip(REQUESTS) {
        assert_eq!(decoded(&mut decoder, &hex(block)), Ok(owned(fields)));
        let mut written = Vec::new();
        for (name, value) in fields {
            encoder.encode(&mut written, name.as_bytes(), value.as_bytes(), Indexing::Table);
        }
        assert_eq!(written, hex(block));
    }
}

#[test]
fn responses_of_c_6_push_each_other_out_of_a_small_table() {
    const RESPONSES: [(&str, &[Field]); 3] = [
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e
             919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            &[
                (":status", "302"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ],
        ),
        (
            "4883 640e ffc1 c0bf",
            &[
                (":status", "307"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
                ("location", "https://www.example.com"),
            ],
        ),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7
             821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed
             4ee5 b106 3d50 07",
            &[
                (":status", "200"),
                ("cache-control", "private"),
                ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
                ("location", "https://www.example.com"),
                ("content-encoding", "gzip"),
                ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
            ],
        ),
    ];
    let mut decoder = Decoder::new(256);
    for (block, fields) in RESPONSES {
        assert_eq!(decoded(&mut decoder, &hex(block)), Ok(owned(fields)));
    }
}

#[test]
fn a_field_that_is_not_to_be_kept_is_not_kept() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new(4096);
    for indexing in [Indexing::None, Indexing::Never] {
        let mut first = Vec::new();
        encoder.encode(&mut first, b"apns-id", b"x", indexing);
        let mut second = Vec::new();
        encoder.encode(&mut second, b"apns-id", b"x", indexing);
        assert_eq!(first, second);
        assert_eq!(decoded(&mut decoder, &first), Ok(owned(&[("apns-id", "x")])));
    }
}

#[test]
fn a_table_that_shrank_and_grew_between_blocks_is_announced_with_both_sizes() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new(4096);
    let mut block = Vec::new();
    encoder.encode(&mut block, b"apns-topic", b"com.example", Indexing::Table);
    decoded(&mut decoder, &block).unwrap();
    encoder.set_table_size(0);
    encoder.set_table_size(1 << 20);
    let mut block = Vec::new();
    encoder.encode(&mut block, b"apns-topic", b"com.example", Indexing::Table);
    assert_eq!(block[..4], [0x20, 0x3f, 0xe1, 0x1f], "0, then 4,096");
    let topic = Ok(owned(&[("apns-topic", "com.example")]));
    assert_eq!(decoded(&mut decoder, &block), topic);
    let mut block = Vec::new();
    encoder.encode(&mut block, b"apns-topic", b"com.example", Indexing::Table);
    assert_eq!(block, [0xbe]);
    assert_eq!(decoded(&mut decoder, &block), topic);
}

#[test]
fn hostile_blocks_are_refused() {
    for (block, error) in [
        ("80", Error::Index),
        ("be", Error::Index),
        ("ff ff ff ff ff ff ff ff ff 01", Error::Integer),
        ("ff 80 80 80 80 80 80 80 00", Error::Integer),
        ("ff", Error::Integer),
        ("40 05 61", Error::Length),
        ("41 ff ff ff ff 0f", Error::Length),
        // A larger table than was announced, and a change behind a field.
        ("3f e2 1f", Error::TableSize),
        ("82 20", Error::TableSize),
        // The end of string; padding of zeros; eight bits of padding.
        ("00 01 61 84 ff ff ff ff", Error::Huffman),
        ("00 01 61 81 18", Error::Huffman),
        ("00 01 61 82 1f ff", Error::Huffman),
    ] {
        assert_eq!(decoded(&mut Decoder::new(4096), &hex(block)), Err(error), "{block}");
    }
}

#[test]
fn a_list_too_long_leaves_the_table_in_step() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new(4096);
    let mut block = Vec::new();
    encoder.encode(&mut block, b"a", &[b'x'; 200], Indexing::Table);
    encoder.encode(&mut block, b"b", b"y", Indexing::Table);
    let mut seen = 0;
    assert_eq!(decoder.decode(&block, 100, |_, _| seen += 1), Err(Error::ListTooLong));
    assert_eq!(seen, 0);
    let mut block = Vec::new();
    encoder.encode(&mut block, b"b", b"y", Indexing::Table);
    assert_eq!(decoded(&mut decoder, &block), Ok(owned(&[("b", "y")])));
}

#[test]
fn every_octet_survives_the_code() {
    let text: Vec<u8> = (0..=255).collect();
    let (mut code, mut back) = (Vec::new(), Vec::new());
    encode_huffman(&mut code, &text);
    decode_huffman(&mut back, &code).unwrap();
    assert_eq!(back, text);
}
