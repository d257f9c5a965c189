//! The ring buffer of events.

use std::os::fd::{AsRawFd, RawFd};

use aya::maps::{Map, MapData, MapError, RingBuf};
use hugeclear_ebpf::maps::{Event, EventWithStack, STACK_FRAMES};

/// One clear, copy or fault as the kernel side wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    /// What is known of it.
    pub event: Event,
    /// Return addresses, innermost first. `None`: not asked for, or the kernel could not walk it.
    pub stack: Option<Vec<u64>>,
}

impl RawEvent {
    /// From the bytes of a record; `None` if they are of neither kind.
    #[must_use]
    pub fn parse(record: &[u8]) -> Option<Self> {
        if record.len() == size_of::<Event>() {
            // SAFETY: as long as an `Event`, which is only integers: any bytes are valid.
            let event = unsafe { record.as_ptr().cast::<Event>().read_unaligned() };
            return Some(Self { event, stack: None });
        }
        if record.len() != size_of::<EventWithStack>() {
            return None;
        }
        // SAFETY: as long as an `EventWithStack`, which is only integers: any bytes are valid.
        let EventWithStack {
            event,
            stack_bytes,
            stack,
        } = unsafe { record.as_ptr().cast::<EventWithStack>().read_unaligned() };
        let frames = usize::try_from(stack_bytes).ok();
        let stack = frames.map(|bytes| {
            let frames = (bytes / size_of::<u64>()).min(STACK_FRAMES);
            stack[..frames].to_vec()
        });
        Some(Self { event, stack })
    }
}

/// The events that the kernel side reports one by one. It outlives the probes, so what they wrote last
/// can be read once they are gone.
pub struct Events(RingBuf<MapData>);

impl Events {
    pub(super) fn new(map: Map) -> Result<Self, MapError> {
        RingBuf::try_from(map).map(Self)
    }

    /// Takes the oldest event out of the buffer. `None`: there is none now. `Some(None)`: a record that is
    /// no event.
    pub fn take(&mut self) -> Option<Option<RawEvent>> {
        let record = self.0.next()?;
        Some(RawEvent::parse(&record))
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<T: Copy>(value: &T) -> Vec<u8> {
        // SAFETY: the records are integers without padding.
        unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }.to_vec()
    }

    #[test]
    fn records_are_told_apart_by_their_length() {
        let event = Event {
            start_ns: 1,
            tid: 7,
            ..Event::default()
        };
        let plain = RawEvent { event, stack: None };
        assert_eq!(RawEvent::parse(&bytes(&event)), Some(plain.clone()));

        let with_stack = |stack_bytes| {
            let mut stack = [0; STACK_FRAMES];
            stack[..2].copy_from_slice(&[10, 20]);
            bytes(&EventWithStack {
                event,
                stack_bytes,
                stack,
            })
        };
        let stack_of = |stack_bytes| RawEvent::parse(&with_stack(stack_bytes)).unwrap().stack;
        assert_eq!(stack_of(16), Some(vec![10, 20]));
        assert_eq!(stack_of(i64::MAX).unwrap().len(), STACK_FRAMES);
        // -EFAULT
        assert_eq!(stack_of(-14), None);

        assert_eq!(RawEvent::parse(&bytes(&event)[1..]), None);
        assert_eq!(RawEvent::parse(&[]), None);
    }
}
