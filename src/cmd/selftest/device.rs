//! Runs jobs on the GPU: all buffers of a job in one piece of device memory, with poison between and in outputs.

use glmc_codegen_cuda::Generated;
use glmc_codegen_cuda::cases::POISON;
use glmc_codegen_cuda::host::{Buffer, Job, JobResult};
use glmc_runtime::device::cuda::{CudaError, Memory};

use super::super::gpu::{Gpu, Loaded};

/// Buffers start at multiples of this, with at least as much poison between them.
const GUARD: usize = 256;

/// Device memory that grows with the jobs.
pub(super) struct Bench<'g> {
    gpu: &'g Gpu,
    memory: Memory,
}

/// Where the buffers of a job lie, and what they hold before it.
struct Image {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

fn image(job: &Job) -> Image {
    let mut places = Vec::new();
    let mut at = GUARD;
    for b in &job.buffers {
        let n = match b {
            Buffer::Input(d) | Buffer::Changed(d) => d.len(),
            Buffer::Output(n) => *n,
        };
        places.push((at, n));
        at = (at + n).next_multiple_of(GUARD) + GUARD;
    }
    let mut bytes: Vec<u8> = POISON.into_iter().cycle().take(at).collect();
    for (b, (at, n)) in job.buffers.iter().zip(&places) {
        if let Buffer::Input(d) | Buffer::Changed(d) = b {
            bytes[*at..at + n].copy_from_slice(d);
        }
    }
    Image { bytes, places }
}

impl<'g> Bench<'g> {
    pub(super) fn new(gpu: &'g Gpu) -> Result<Self, CudaError> {
        Ok(Bench { gpu, memory: Memory::new(&gpu.context, 1 << 24)? })
    }

    /// Runs a job `times` times, the first without programmatic launches; its outputs, or what is wrong with them.
    /// Scratch is as a run left it.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn run(
        &mut self,
        loaded: &Loaded,
        k: &Generated,
        job: &Job,
        scratch: &[usize],
        times: usize,
    ) -> Result<JobResult, CudaError> {
        let image = image(job);
        if self.memory.bytes() < image.bytes.len() as u64 {
            self.memory = Memory::new(&self.gpu.context, (image.bytes.len() as u64).next_power_of_two())?;
        }
        let args = image.places.iter().map(|(at, _)| self.memory.address(*at as u64)).collect::<Result<Vec<_>, _>>()?;
        let mut first: Option<Vec<Vec<u8>>> = None;
        let mut now = image.bytes.clone();
        for round in 0..times.max(1) {
            // All but scratch is as before the first run.
            let mut from = 0;
            for (at, n) in scratch.iter().filter(|_| round > 0).map(|i| image.places[*i]) {
                self.memory.upload(from as u64, &image.bytes[from..at])?;
                from = at + n;
            }
            self.memory.upload(from as u64, &image.bytes[from..])?;
            loaded.launch(&self.gpu.stream, k, &args, round > 0 && self.gpu.arch.has_bulk_copy())?;
            self.gpu.stream.wait(&k.name)?;
            self.memory.download(0, &mut now)?;
            if let Err(e) = untouched(job, &image, &now) {
                return Ok(Err(e));
            }
            let back = results(job, &image, &now, scratch);
            match &first {
                None => first = Some(back),
                Some(f) if *f != back => return Ok(Err(format!("run {round} gives other bits than the first"))),
                Some(_) => {}
            }
        }
        // Judged with scratch in its place, as buffers are counted.
        Ok(first.ok_or_else(|| "no run".to_owned()))
    }
}

/// Inputs are as they were, and nothing is written between buffers.
fn untouched(job: &Job, image: &Image, now: &[u8]) -> Result<(), String> {
    let mut end = 0;
    for (i, (at, n)) in image.places.iter().enumerate() {
        if now[end..*at] != image.bytes[end..*at] {
            return Err(format!("bytes before buffer {i} are written"));
        }
        if matches!(job.buffers[i], Buffer::Input(_)) && now[*at..at + n] != image.bytes[*at..at + n] {
            return Err(format!("input {i} is written"));
        }
        end = at + n;
    }
    if now[end..] == image.bytes[end..] { Ok(()) } else { Err("bytes behind the last buffer are written".into()) }
}

/// The bytes of each buffer that is no input; of scratch none, for what is left in it is nobody's.
fn results(job: &Job, image: &Image, now: &[u8], scratch: &[usize]) -> Vec<Vec<u8>> {
    let all = job.buffers.iter().zip(&image.places).enumerate();
    let of = all.filter(|(_, (b, _))| !matches!(b, Buffer::Input(_)));
    of.map(|(i, (_, (at, n)))| if scratch.contains(&i) { Vec::new() } else { now[*at..at + n].to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let buffers = vec![Buffer::Input(vec![1; 5]), Buffer::Output(300), Buffer::Changed(vec![0; 8])];
        Job { buffers, launches: Vec::new() }
    }

    #[test]
    fn buffers_lie_apart_in_poison() {
        let i = image(&job());
        assert_eq!(i.places, [(256, 5), (768, 300), (1536, 8)]);
        assert_eq!(i.bytes[768..770], POISON);
        assert!(f32::from_le_bytes(i.bytes[768..772].try_into().expect("four bytes")).is_nan());
        assert!(untouched(&job(), &i, &i.bytes).is_ok());
    }

    #[test]
    fn a_write_outside_the_outputs_is_found() {
        let i = image(&job());
        let found = (0..i.bytes.len()).filter(|at| {
            let mut now = i.bytes.clone();
            now[*at] ^= 1;
            untouched(&job(), &i, &now).is_err()
        });
        assert_eq!(found.count(), i.bytes.len() - 300 - 8);
    }
}
