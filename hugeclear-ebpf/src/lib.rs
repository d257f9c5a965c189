//! Types shared by the kernel side and user space.
#![cfg_attr(not(test), no_std)]
