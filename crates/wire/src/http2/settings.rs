//! SETTINGS (§6.5): pairs of identifier and value.

use super::{Error, FRAME_BYTES_DEFAULT, FRAME_BYTES_MAX, WINDOW_BYTES_MAX};

/// Length of a setting in bytes.
const SETTING_BYTES: usize = 6;

/// The parameter of a setting (§6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// Size in bytes of the table for header blocks sent to the sender of the setting.
    HeaderTableSize,
    /// Whether the server may push; 0 or 1.
    EnablePush,
    /// Maximum number of concurrent streams opened by the recipient of the setting.
    MaxConcurrentStreams,
    /// Initial window of streams in bytes; a change also applies to open streams.
    InitialWindowSize,
    /// Maximum payload of a frame in bytes, 16,384 to 2²⁴−1.
    MaxFrameSize,
    /// Maximum size of a header list in bytes; advisory.
    MaxHeaderListSize,
    /// A parameter that this codec does not know; to be ignored.
    Unknown(u16),
}

impl Setting {
    /// Returns the identifier on the wire.
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

/// The validated settings of one frame, in order; a later value replaces an earlier one.
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

    /// Iterates over the settings and their values.
    pub fn iter(&self) -> impl Iterator<Item = (Setting, u32)> + use<'a> {
        self.0.chunks_exact(SETTING_BYTES).map(|pair| {
            let id = u16::from_be_bytes([pair[0], pair[1]]);
            (Setting::new(id), u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]))
        })
    }

    /// Returns the number of settings.
    pub fn len(&self) -> usize {
        self.0.len() / SETTING_BYTES
    }

    /// Returns true for an empty frame, which is valid.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
