//! Kernel-matrix tests: real kernels in QEMU.
