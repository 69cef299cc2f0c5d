//! The primitives of `std`, or those of `loom` in loom tests.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence},
};

/// `std`'s cell with the closure interface of loom's, so that loom sees each access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A value on its own cache lines: 128 bytes, because the prefetcher fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
