//! SETTINGS (§6.5): pairs of identifier and value.

use super::{Error, FRAME_BYTES_DEFAULT, FRAME_BYTES_MAX, WINDOW_BYTES_MAX};

/// Bytes of one setting on the wire.
const SETTING_BYTES: usize = 6;

/// Which parameter a setting is about (§6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// Bytes of the table that header blocks to the sender of the setting may use.
    HeaderTableSize,
    /// Whether the server may push; 0 or 1.
    EnablePush,
    /// Streams that the peer of the sender may have open at once.
    MaxConcurrentStreams,
    /// Bytes with which the windows of streams begin; a change applies to open streams too.
    InitialWindowSize,
    /// The most payload of a frame, 16,384 to 2²⁴−1.
    MaxFrameSize,
    /// The most bytes of a header list, advisory.
    MaxHeaderListSize,
    /// One this codec does not know, to be ignored.
    Unknown(u16),
}

impl Setting {
    /// The identifier on the wire.
    pub fn id(self) -> u16 {
        match self {
            Setting::HeaderTableSize => 1,
            Setting::EnablePush => 2,
            Setting::MaxConcurrentStreams => 3,
            Setting::InitialWindowSize => 4,
            Setting::MaxFrameSize => 5,
            Setting::MaxHeaderListSize => 6,
            Setting::Unknown(id) => id,
        }
    }

    fn new(id: u16) -> Setting {
        match id {
            1 => Setting::HeaderTableSize,
            2 => Setting::EnablePush,
            3 => Setting::MaxConcurrentStreams,
            4 => Setting::InitialWindowSize,
            5 => Setting::MaxFrameSize,
            6 => Setting::MaxHeaderListSize,
            id => Setting::Unknown(id),
        }
    }
}

/// The settings of one frame, validated, in order; a later value replaces an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a>(&'a [u8]);

impl<'a> Settings<'a> {
    pub(super) fn parse(payload: &'a [u8]) -> Result<Settings<'a>, Error> {
        if !payload.len().is_multiple_of(SETTING_BYTES) {
            return Err(Error::frame_size("SETTINGS is no multiple of six bytes"));
        }
        let settings = Settings(payload);
        for (setting, value) in settings.iter() {
            match setting {
                Setting::EnablePush if value > 1 => {
                    return Err(Error::protocol("ENABLE_PUSH is neither 0 nor 1"));
                }
                Setting::InitialWindowSize if value > WINDOW_BYTES_MAX => {
                    return Err(Error::flow_control("INITIAL_WINDOW_SIZE is beyond 2^31-1"));
                }
                Setting::MaxFrameSize
                    if !(FRAME_BYTES_DEFAULT..=FRAME_BYTES_MAX).contains(&value) =>
                {
                    return Err(Error::protocol("MAX_FRAME_SIZE is out of bounds"));
                }
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Each setting and its value.
    pub fn iter(&self) -> impl Iterator<Item = (Setting, u32)> + use<'a> {
        self.0.chunks_exact(SETTING_BYTES).map(|pair| {
            let id = u16::from_be_bytes([pair[0], pair[1]]);
            (Setting::new(id), u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]))
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len() / SETTING_BYTES
    }

    /// True for an empty frame, which is legal.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
