//! The files between a test and a host program.
//!
//! Jobs (all little-endian): `u32 jobs`, then for each `u32 flags` (1: falling order, 2: closed page before instead of
//! behind each buffer), `u32 buffers`, each `u32 kind, u64 bytes` and, unless an output, its bytes; `u32 launches`,
//! each `u32 device, u32 length, name, u32 grid[3], u32 threads, u32 shared, u32 arguments`, each `u32 buffer`. Outputs: the
//! bytes of each buffer that is no input, job by job.

use crate::request::LaunchShape;

/// The order in which threads and blocks run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Rising; the page behind each buffer is closed.
    Rising,
    /// Falling; the page before each buffer is closed.
    Falling,
}

/// Device memory of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum Buffer {
    /// Read only: a write is a fault.
    Input(Vec<u8>),
    /// Poisoned before the first launch.
    Output(usize),
    /// Read and written.
    Changed(Vec<u8>),
}

/// One launch of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// What is launched.
    pub shape: LaunchShape,
    /// The buffer of each argument.
    pub args: Vec<u32>,
    /// The device that runs it. Launches of one device run in order, those of several interleave.
    pub device: u32,
}

/// Buffers and the launches that work on them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Job {
    /// Device memory.
    pub buffers: Vec<Buffer>,
    /// In order.
    pub launches: Vec<Launch>,
}

pub(super) fn encode(jobs: &[Job], order: Order) -> Vec<u8> {
    let mut out = Vec::new();
    let word = |out: &mut Vec<u8>, w: u32| out.extend_from_slice(&w.to_le_bytes());
    word(&mut out, jobs.len() as u32);
    for job in jobs {
        word(&mut out, if order == Order::Falling { 3 } else { 0 });
        word(&mut out, job.buffers.len() as u32);
        for b in &job.buffers {
            let (kind, bytes, data) = match b {
                Buffer::Input(d) => (0, d.len(), d.as_slice()),
                Buffer::Output(n) => (1, *n, [].as_slice()),
                Buffer::Changed(d) => (2, d.len(), d.as_slice()),
            };
            word(&mut out, kind);
            out.extend_from_slice(&(bytes as u64).to_le_bytes());
            out.extend_from_slice(data);
        }
        word(&mut out, job.launches.len() as u32);
        for l in &job.launches {
            word(&mut out, l.device);
            word(&mut out, l.shape.symbol.len() as u32);
            out.extend_from_slice(l.shape.symbol.as_bytes());
            l.shape.grid.iter().for_each(|g| word(&mut out, *g));
            [l.shape.threads, l.shape.shared, l.args.len() as u32].iter().for_each(|w| word(&mut out, *w));
            l.args.iter().for_each(|a| word(&mut out, *a));
        }
    }
    out
}

/// The outputs of these jobs; those that the file does not hold whole are left out.
pub(super) fn decode(jobs: &[Job], mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for job in jobs {
        let mut of = Vec::new();
        for b in &job.buffers {
            let n = match b {
                Buffer::Input(_) => continue,
                Buffer::Output(n) => *n,
                Buffer::Changed(d) => d.len(),
            };
            let Some((head, rest)) = bytes.split_at_checked(n) else { return out };
            of.push(head.to_vec());
            bytes = rest;
        }
        out.push(of);
    }
    out
}
