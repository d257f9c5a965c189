//! SIGINT, SIGTERM and their like end a run between two touches instead of ending the process.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use signal_hook::{SigId, consts, flag, low_level};

/// Signals whose default would end the process with settings changed.
const SIGNALS: [i32; 4] = [
    consts::SIGINT,
    consts::SIGTERM,
    consts::SIGHUP,
    consts::SIGQUIT,
];

/// Notes signals while it lives.
#[derive(Debug)]
pub(crate) struct Signals {
    seen: Arc<AtomicUsize>,
    ids: Vec<SigId>,
}

impl Signals {
    pub(crate) fn catch() -> std::io::Result<Self> {
        let mut this = Self {
            seen: Arc::default(),
            ids: Vec::new(),
        };
        for signal in SIGNALS {
            let number = usize::try_from(signal).expect("signal numbers are positive");
            this.ids.push(flag::register_usize(
                signal,
                Arc::clone(&this.seen),
                number,
            )?);
        }
        Ok(this)
    }

    /// The last signal that came, if one did.
    pub(crate) fn seen(&self) -> Option<i32> {
        let number = self.seen.load(Ordering::Relaxed);
        (number != 0).then(|| i32::try_from(number).ok())?
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}
