//! Flow control (§6.9): windows that limit how much may be sent.

use super::{WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MAX};

/// The number of bytes of DATA that may still be sent. It can be negative, when INITIAL_WINDOW_SIZE
/// is lowered below what was already sent (§6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(i64);

/// A window that would grow beyond 2³¹−1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

impl Window {
    /// Creates a window of `bytes` bytes.
    pub const fn new(bytes: u32) -> Window {
        Window(bytes as i64)
    }

    /// Returns the number of bytes that may be sent now.
    #[inline]
    pub fn available(self) -> u32 {
        self.0.max(0) as u32
    }

    /// Returns the window, which can be negative.
    pub fn signed(self) -> i64 {
        self.0
    }

    /// Subtracts bytes that were sent, at most [`available`](Window::available).
    #[inline]
    pub fn consume(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.available(), "more was sent than the window has");
        self.0 -= i64::from(bytes);
    }

    /// Adds the increment of a WINDOW_UPDATE.
    ///
    /// # Errors
    ///
    /// The window would exceed 2³¹−1, a flow-control error (§6.9.1).
    #[inline]
    pub fn increase(&mut self, bytes: u32) -> Result<(), WindowOverflow> {
        self.adjust(i64::from(bytes))
    }

    /// Adds the difference of a changed INITIAL_WINDOW_SIZE.
    ///
    /// # Errors
    ///
    /// Those of [`increase`](Window::increase).
    pub fn adjust(&mut self, bytes: i64) -> Result<(), WindowOverflow> {
        let window = self.0 + bytes;
        if window > i64::from(WINDOW_BYTES_MAX) {
            return Err(WindowOverflow);
        }
        self.0 = window;
        Ok(())
    }
}

impl Default for Window {
    fn default() -> Window {
        Window::new(WINDOW_BYTES_DEFAULT)
    }
}
