//! Arrays of the kernel side, mapped into our memory.

use std::{
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _},
};

use anyhow::{Context as _, Result};
use aya::maps::MapData;
use memmap2::{MmapOptions, MmapRaw};

/// A BPF array of `T` that the kernel writes while we read.
pub(super) struct MappedArray<T> {
    memory: MmapRaw,
    entries: usize,
    element: PhantomData<T>,
}

impl<T: Copy> MappedArray<T> {
    /// Maps `array`, made with `BPF_F_MMAPABLE` and room for `entries` elements.
    pub(super) fn new(array: &MapData, entries: u32) -> Result<Self> {
        let entries = entries as usize;
        let memory = MmapOptions::new()
            .len(entries * size_of::<T>())
            .map_raw_read_only(array.fd().as_fd().as_raw_fd())
            .context("mapping a BPF array into memory")?;
        Ok(Self {
            memory,
            entries,
            element: PhantomData,
        })
    }

    /// Address of an element.
    ///
    /// Read it with volatile reads: the kernel may be writing.
    pub(super) fn element(&self, index: usize) -> *const T {
        assert!(index < self.entries, "element {index} of {}", self.entries);
        // SAFETY: within the mapping, which is page-aligned and holds `entries` elements: the kernel
        // lays elements out at the size of `T` rounded up to 8, and `T` has a multiple of that.
        unsafe { self.memory.as_ptr().cast::<T>().add(index) }
    }
}
