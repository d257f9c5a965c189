//! What the kernel says on its console: kept in full, and watched for texts that mean the guest
//! will not come to a good end. Knows nothing of QEMU.

/// Texts by which a kernel says that it is broken or stuck. Matched within one line.
const TROUBLE: [&str; 9] = [
    "Kernel panic",
    "Oops: ",
    "kernel BUG at",
    "BUG: unable to handle",
    "BUG: kernel NULL pointer",
    "BUG: soft lockup",
    "hard LOCKUP",
    "self-detected stall",
    "detected stalls",
];

/// The lines shown of a console when something went wrong.
const TAIL_LINES: usize = 40;

/// The console of one guest, so far.
#[derive(Debug, Default)]
pub(crate) struct Console {
    bytes: Vec<u8>,
    /// Where the last, possibly unfinished line starts that was not yet searched for trouble.
    searched: usize,
    trouble: Option<String>,
}

impl Console {
    /// Takes in what came from the console.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        while let Some(length) = self.bytes[self.searched..]
            .iter()
            .position(|&byte| byte == b'\n')
        {
            let end = self.searched + length;
            let line = String::from_utf8_lossy(&self.bytes[self.searched..end]);
            if self.trouble.is_none() && TROUBLE.iter().any(|text| line.contains(text)) {
                self.trouble = Some(line.trim().to_owned());
            }
            self.searched = end + 1;
        }
    }

    /// The first line that says that the kernel is broken or stuck.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// All of it, with plain line ends.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).replace('\r', "")
    }

    /// Its last lines, each indented, for the end of an error.
    pub(crate) fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        let start = lines.len().saturating_sub(TAIL_LINES);
        lines[start..]
            .iter()
            .map(|line| format!("    {line}\n"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_found_across_reads_and_the_first_line_is_kept() {
        let mut console = Console::default();
        console.push(b"[    1.5] sysrq: Trigger a crash\r\n[    1.6] Kernel pa");
        assert_eq!(console.trouble(), None);
        console.push(b"nic - not syncing: sysrq\r\n[ 2.0] Oops: 0000 [#1] SMP\n");
        assert_eq!(
            console.trouble(),
            Some("[    1.6] Kernel panic - not syncing: sysrq")
        );
        assert!(
            console
                .text()
                .starts_with("[    1.5] sysrq: Trigger a crash\n[    1.6]")
        );
    }

    #[test]
    fn every_kind_of_trouble_is_recognised() {
        for line in [
            "Oops: int3: 0000 [#1] PREEMPT SMP PTI",
            "kernel BUG at mm/huge_memory.c:1234!",
            "BUG: unable to handle page fault for address: ffff888",
            "BUG: kernel NULL pointer dereference, address: 0",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [sh:1]",
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        ] {
            let mut console = Console::default();
            console.push(format!("[   60.0] {line}\r\n").as_bytes());
            assert!(console.trouble().is_some(), "{line}");
        }
        let mut console = Console::default();
        console.push(b"[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c\n");
        assert_eq!(console.trouble(), None);
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        let mut console = Console::default();
        for number in 0..100 {
            console.push(format!("line {number}\r\n\r\n").as_bytes());
        }
        let tail = console.tail();
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("    line 99\n"));
    }
}
