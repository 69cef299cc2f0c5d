//! Framing: where one message of a byte stream ends and the next begins.

/// How a stream of bytes is cut into frames. On a WebSocket each message is a frame, whatever this says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Lines that end with LF or CRLF, which are not part of the frame.
    Lines {
        /// The longest line, without its end.
        bytes_max: usize,
    },
    /// A length, and so many bytes.
    Length {
        /// The bytes of the length: 1, 2 or 4.
        prefix_bytes: usize,
        /// The least significant byte of the length comes first.
        little_endian: bool,
        /// The longest frame, without its length.
        bytes_max: usize,
    },
    /// The program cuts: it gets all bytes that there are, and says how many it has taken.
    Raw {
        /// The most bytes that it may leave.
        bytes_max: usize,
    },
}

/// The beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut<'a> {
    /// A frame, and the bytes that it took of the stream.
    Frame(&'a [u8], usize),
    /// No whole frame yet.
    More,
    /// A frame that is longer than it may be.
    TooLong,
}

impl Framing {
    /// Cuts the first frame off. `searched`: so many bytes were looked at before, without success.
    pub fn cut<'a>(&self, input: &'a [u8], searched: usize) -> Cut<'a> {
        match *self {
            Framing::Lines { bytes_max } => {
                let found = input[searched.min(input.len())..].iter().position(|of| *of == b'\n');
                let Some(end) = found.map(|at| at + searched) else {
                    // One byte more may be the CR.
                    return if input.len() > bytes_max + 1 { Cut::TooLong } else { Cut::More };
                };
                let line = &input[..end];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if line.len() > bytes_max { Cut::TooLong } else { Cut::Frame(line, end + 1) }
            }
            Framing::Length { prefix_bytes, little_endian, bytes_max } => {
                let Some((prefix, rest)) = input.split_at_checked(prefix_bytes) else {
                    return Cut::More;
                };
                let add = |length: usize, byte: &u8| length << 8 | usize::from(*byte);
                let length = match little_endian {
                    true => prefix.iter().rev().fold(0, add),
                    false => prefix.iter().fold(0, add),
                };
                match rest.get(..length) {
                    _ if length > bytes_max => Cut::TooLong,
                    Some(frame) => Cut::Frame(frame, prefix_bytes + length),
                    None => Cut::More,
                }
            }
            // What a program has left waits for more.
            Framing::Raw { .. } if input.len() <= searched => Cut::More,
            Framing::Raw { .. } => Cut::Frame(input, input.len()),
        }
    }

    /// Returns the longest frame.
    pub fn bytes_max(&self) -> usize {
        match *self {
            Framing::Lines { bytes_max }
            | Framing::Length { bytes_max, .. }
            | Framing::Raw { bytes_max } => bytes_max,
        }
    }
}

/// The input of a stream that was not taken yet.
#[derive(Clone, Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    /// So many bytes are taken.
    taken: usize,
    /// So many bytes after those were searched for the end of a frame, in vain.
    searched: usize,
}

impl Input {
    /// Adds bytes of the stream.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Looks at the next frame.
    pub fn peek(&mut self, framing: &Framing) -> Cut<'_> {
        let cut = framing.cut(&self.bytes[self.taken..], self.searched);
        if cut == Cut::More {
            self.searched = self.bytes.len() - self.taken;
        }
        cut
    }

    /// Cuts the next frame off.
    pub fn cut(&mut self, framing: &Framing) -> Cut<'_> {
        let (bytes, frame_bytes) = match framing.cut(&self.bytes[self.taken..], self.searched) {
            Cut::Frame(frame, bytes) => (bytes, frame.len()),
            Cut::TooLong => return Cut::TooLong,
            Cut::More => {
                self.searched = self.len();
                if self.searched == 0 {
                    // An idle connection has no buffer.
                    *self = Input::default();
                }
                return Cut::More;
            }
        };
        let begin = self.taken
            + match *framing {
                Framing::Length { prefix_bytes, .. } => prefix_bytes,
                Framing::Lines { .. } | Framing::Raw { .. } => 0,
            };
        self.taken += bytes;
        self.searched = 0;
        Cut::Frame(&self.bytes[begin..begin + frame_bytes], bytes)
    }

    /// Gives the last `bytes` taken bytes back, which a program that cuts has left.
    ///
    /// Returns `false` if they are more than it may leave.
    pub fn give_back(&mut self, bytes: usize, framing: &Framing) -> bool {
        self.taken -= bytes.min(self.taken);
        self.searched = self.len();
        bytes <= framing.bytes_max()
    }

    /// The bytes that are not taken.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether all bytes are taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(framing: &Framing, pieces: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
        let (mut input, mut frames) = (Input::default(), Vec::new());
        for piece in pieces {
            input.add(piece);
            loop {
                match input.cut(framing) {
                    Cut::Frame(frame, _) => frames.push(frame.to_vec()),
                    Cut::More => break,
                    Cut::TooLong => return (frames, true),
                }
            }
        }
        (frames, false)
    }

    #[test]
    fn a_line_ends_with_lf_or_crlf_and_may_be_empty() {
        let framing = Framing::Lines { bytes_max: 4 };
        let (of, _) = frames(&framing, &[b"ab\r\n\ncd\n\r\nabcd\r\nef"]);
        assert_eq!(of, [&b"ab"[..], b"", b"cd", b"", b"abcd"]);
    }

    #[test]
    fn a_line_that_never_ends_is_too_long_at_its_bound() {
        let framing = Framing::Lines { bytes_max: 4 };
        assert_eq!(framing.cut(b"abcde", 0), Cut::More, "the fifth may be a CR");
        assert_eq!(framing.cut(b"abcdef", 0), Cut::TooLong);
        assert_eq!(framing.cut(b"abcde\n", 0), Cut::TooLong);
    }

    #[test]
    fn a_length_is_read_in_either_order_and_is_bounded() {
        let big = Framing::Length { prefix_bytes: 2, little_endian: false, bytes_max: 3 };
        let little = Framing::Length { prefix_bytes: 4, little_endian: true, bytes_max: 3 };
        assert_eq!(big.cut(&[0, 2, 7, 8, 9], 0), Cut::Frame(&[7, 8], 4));
        assert_eq!(little.cut(&[1, 0, 0, 0, 9], 0), Cut::Frame(&[9], 5));
        assert_eq!(little.cut(&[1, 0, 0, 1], 0), Cut::TooLong);
        assert_eq!(big.cut(&[0], 0), Cut::More);
    }

    #[test]
    fn a_program_that_cuts_gets_what_it_has_left_again() {
        let (framing, mut input) = (Framing::Raw { bytes_max: 2 }, Input::default());
        input.add(b"abc");
        assert_eq!(input.cut(&framing), Cut::Frame(b"abc", 3));
        assert!(input.give_back(2, &framing));
        assert_eq!(input.cut(&framing), Cut::More, "it waits for more");
        input.add(b"d");
        assert_eq!(input.cut(&framing), Cut::Frame(b"bcd", 3));
        assert!(!input.give_back(3, &framing));
    }

    fn framing() -> impl Strategy<Value = Framing> {
        prop_oneof![
            (0usize..12).prop_map(|bytes_max| Framing::Lines { bytes_max }),
            (prop_oneof![Just(1), Just(2), Just(4)], any::<bool>(), 0usize..12).prop_map(
                |(prefix_bytes, little_endian, bytes_max)| Framing::Length {
                    prefix_bytes,
                    little_endian,
                    bytes_max
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_stream_cut_anywhere_has_the_same_frames(
            framing in framing(),
            stream in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(0), 0u8..6, any::<u8>()], 0..80),
            cuts in proptest::collection::vec(0usize..80, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|of| &stream[of[0]..of[1]]).collect();
            let whole = frames(&framing, &[&stream]);
            let apart = frames(&framing, &pieces);
            prop_assert_eq!(&whole.0, &apart.0);
            prop_assert_eq!(whole.1, apart.1);
        }
    }
}
