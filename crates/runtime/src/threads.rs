//! Owns how many threads compute. Never what they do.

use std::error::Error;

use rayon::ThreadPoolBuilder;

/// Most threads, however many are asked for.
const MOST: usize = 1024;

/// Starts the threads, once a process: as many as the machine runs at once, or as `RAYON_NUM_THREADS` says, but no
/// more than four times the former or 1024. The note says so where it was more.
///
/// # Errors
/// The system gives no more threads.
pub fn start() -> Result<Option<String>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.trim().parse::<usize>().ok());
    let (threads, note) = clamp(asked.unwrap_or(0), cores);
    match ThreadPoolBuilder::new().num_threads(threads).build_global() {
        Err(e) if e.source().is_some() => {
            Err(format!("the system gives no {threads} threads ({e}); set RAYON_NUM_THREADS to fewer"))
        }
        // Else they run already.
        _ => Ok(note),
    }
}

/// The number of threads for those asked for (0: as many as cores), and what to say of it.
fn clamp(asked: usize, cores: usize) -> (usize, Option<String>) {
    let most = cores.saturating_mul(4).min(MOST);
    let note = || format!("RAYON_NUM_THREADS={asked} is more than this machine can use; {most} threads run");
    match asked {
        0 => (cores, None),
        n if n > most => (most, Some(note())),
        n => (n, None),
    }
}

#[cfg(test)]
mod tests {
    use super::clamp;

    #[test]
    fn no_number_of_threads_is_obeyed_blindly() {
        assert_eq!(clamp(0, 8), (8, None));
        assert_eq!(clamp(1, 8), (1, None));
        assert_eq!(clamp(32, 8), (32, None));
        let (n, note) = clamp(100_000, 8);
        assert!(n == 32 && note.unwrap().contains("100000"));
        assert_eq!(clamp(usize::MAX, 4096).0, 1024);
    }
}
