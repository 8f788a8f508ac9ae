//! What a compiled kernel asks of the machine, read from the assembler's log.

use serde::{Deserialize, Serialize};

/// Resources of one kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// The kernel's symbol.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack frame.
    pub stack: u32,
    /// Bytes of registers that are stored to memory and loaded back.
    pub spill_stores: u32,
    /// Bytes of such loads.
    pub spill_loads: u32,
    /// Bytes of static shared memory; dynamic shared memory is in the launch.
    pub shared: u32,
}

/// Reads the log of `--ptxas-options=-v`.
pub(super) fn parse(log: &str) -> Vec<Resources> {
    let mut out: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|p| p.1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            out.push(Resources { kernel, ..Resources::default() });
        }
        let Some(last) = out.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            last.stack = before(line, " bytes stack frame");
            last.spill_stores = before(line, " bytes spill stores");
            last.spill_loads = before(line, " bytes spill loads");
        }
        if line.contains(" registers") {
            last.registers = before(line, " registers");
            last.shared = before(line, " bytes smem");
        }
    }
    out
}

/// The number right before `word`; 0 if there is none.
fn before(line: &str, word: &str) -> u32 {
    let Some((head, _)) = line.split_once(word) else { return 0 };
    let digits = head.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'first' for 'sm_120'\n\
            ptxas info    : Function properties for first\n\
            \u{20}   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 22 registers, used 1 barriers, 1024 bytes smem\n\
            ptxas info    : Compiling entry function 'second' for 'sm_120'\n\
            ptxas info    : Used 255 registers\n";
        let first = Resources {
            kernel: "first".into(),
            registers: 22,
            stack: 16,
            spill_stores: 8,
            spill_loads: 12,
            shared: 1024,
        };
        let second = Resources { kernel: "second".into(), registers: 255, ..Resources::default() };
        assert_eq!(parse(log), [first, second]);
    }
}
