//! What the fuzzer feeds to framing, and what must hold whatever it feeds.
//!
//! Shared by `fuzz/`, which explores, and by the tests, which replay the seeds.

use dunlin_program::{Cut, Framing, Input};

/// A target by the name of its corpus.
pub type Target = fn(&[u8]);

/// All targets: `fuzz/corpus/NAME` holds the seeds of each.
pub const TARGETS: &[(&str, Target)] = &[("program_framing", framing)];

/// Three bytes say how frames are cut, how long they may be, and in what pieces the rest arrives: no piece changes a frame.
fn framing(data: &[u8]) {
    let [kind, bytes_max, piece, stream @ ..] = data else { return };
    let bytes_max = usize::from(*bytes_max);
    let length =
        |prefix_bytes, little_endian| Framing::Length { prefix_bytes, little_endian, bytes_max };
    let framing = match kind % 7 {
        0 => Framing::Lines { bytes_max },
        1 => length(1, false),
        2 => length(2, false),
        3 => length(2, true),
        4 => length(4, false),
        5 => length(4, true),
        _ => Framing::Raw { bytes_max },
    };
    let (whole, whole_ends) = frames(&framing, &[stream]);
    let pieces: Vec<&[u8]> = stream.chunks(usize::from(*piece).max(1)).collect();
    let (apart, apart_ends) = frames(&framing, &pieces);
    if let Framing::Raw { .. } = framing {
        assert_eq!(whole.concat(), apart.concat(), "nothing is lost");
        return;
    }
    assert_eq!((&whole, whole_ends), (&apart, apart_ends));
    assert!(whole.iter().all(|frame| frame.len() <= bytes_max));
}

/// The frames, and whether they end with one that is too long.
fn frames(framing: &Framing, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
    let (mut input, mut frames) = (Input::default(), Vec::new());
    for piece in pieces {
        input.add(piece);
        loop {
            let peeked = match input.peek(framing) {
                Cut::Frame(frame, bytes) => Some((frame.to_vec(), bytes)),
                Cut::More | Cut::TooLong => None,
            };
            match input.cut(framing) {
                Cut::Frame(frame, bytes) => {
                    assert_eq!(peeked, Some((frame.to_vec(), bytes)), "a look changes nothing");
                    frames.push(frame.to_vec());
                }
                Cut::More => break,
                Cut::TooLong => return (frames, true),
            }
        }
    }
    (frames, false)
}
