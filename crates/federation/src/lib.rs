#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
mod budget;
mod frame;
mod handshake;
mod inbound;
mod message;
mod outbound;
mod peer;
mod reason;

pub use address::{Address, is_domain};
pub use budget::{Admission, BudgetConfig};
pub use frame::{
    Close, CloseCode, FRAGMENT_BYTES_MAX, FRAME_BYTES_MAX, Fragment, Frame, FrameError,
    FrameReader, Hello, NAME_BYTES_MAX, Resume, VERSION,
};
pub use handshake::{
    EXPORTER_BYTES, EXPORTER_LABEL, Handshake, HandshakeError, Identity, KEY_BYTES, KeyError,
    NONCE_BYTES, PeerKeys, Progress, PublicKey, Side,
};
pub use message::{Format, MESSAGE_BYTES_MAX, Message, MessageError, USER_BYTES_MAX};
pub use outbound::Full;
pub use peer::{Event, LinkId, NewLink, Peer, PeerConfig, PeerStats};
pub use reason::Reason;
