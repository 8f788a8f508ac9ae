//! Owns the meeting of ranks: parts that are posted once and read by every member, bounded waits, and the end of all
//! when one fails. Never looks into a part.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::MeetError;

/// How often a waiting rank looks whether the one it waits for has moved.
const LOOK: Duration = Duration::from_millis(200);

/// Where the ranks of one run of a phase meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
    /// For each rank the step it began last.
    at: Vec<AtomicUsize>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// By step and rank.
    posts: HashMap<(usize, usize), Post>,
    failed: bool,
}

#[derive(Debug)]
struct Post {
    words: Arc<[u32]>,
    /// Members that have not read it.
    readers: usize,
}

impl Meeting {
    /// For `ranks` ranks; one that makes no step for `patience` while another waits for it ends the run.
    pub(crate) fn new(ranks: usize, patience: Duration) -> Self {
        Meeting {
            state: Mutex::default(),
            changed: Condvar::new(),
            at: (0..ranks).map(|_| AtomicUsize::new(0)).collect(),
            patience,
        }
    }

    /// `rank` begins `step`.
    pub(crate) fn begins(&self, rank: usize, step: usize) {
        self.at[rank].store(step, Ordering::Relaxed);
    }

    /// A rank failed: all that wait or come later stop.
    pub(crate) fn fail(&self) {
        self.lock().failed = true;
        self.changed.notify_all();
    }

    /// Hands over the part of `rank` for `step`, to be read by `readers` members.
    pub(super) fn post(&self, rank: usize, step: usize, words: Arc<[u32]>, readers: usize) {
        self.lock().posts.insert((step, rank), Post { words, readers });
        self.changed.notify_all();
    }

    /// The parts of `members` for `step`, in their order, as soon as all are there.
    ///
    /// # Errors
    /// A member that does not come, or a rank that failed.
    pub(super) fn parts(&self, step: usize, members: &[usize]) -> Result<Vec<Arc<[u32]>>, MeetError> {
        let mut state = self.lock();
        let mut since = Instant::now();
        let mut waited = None;
        loop {
            if state.failed {
                return Err(MeetError::Stopped);
            }
            let Some(&missing) = members.iter().find(|m| !state.posts.contains_key(&(step, **m))) else {
                return Ok(members.iter().filter_map(|m| state.read(step, *m)).collect());
            };
            let now = Some((missing, self.at[missing].load(Ordering::Relaxed)));
            if now != waited {
                (waited, since) = (now, Instant::now());
            } else if since.elapsed() >= self.patience {
                let at = self.at[missing].load(Ordering::Relaxed);
                return Err(MeetError::Late { rank: missing, seconds: self.patience.as_secs(), at });
            }
            let look = LOOK.min(self.patience);
            state = self.changed.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can leave the posts half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A posted part; it goes with its last reader.
    fn read(&mut self, step: usize, rank: usize) -> Option<Arc<[u32]>> {
        let post = self.posts.get_mut(&(step, rank))?;
        post.readers = post.readers.saturating_sub(1);
        let words = Arc::clone(&post.words);
        if post.readers == 0 {
            self.posts.remove(&(step, rank));
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_reads_every_part_once() {
        let m = Meeting::new(2, Duration::from_secs(5));
        std::thread::scope(|s| {
            for rank in 0..2 {
                let m = &m;
                s.spawn(move || {
                    for step in 0..100 {
                        m.begins(rank, step);
                        m.post(rank, step, vec![(10 * step + rank) as u32].into(), 2);
                        let parts = m.parts(step, &[0, 1]).unwrap();
                        let got: Vec<u32> = parts.iter().map(|p| p[0]).collect();
                        assert_eq!(got, [10 * step as u32, 10 * step as u32 + 1]);
                    }
                });
            }
        });
        assert!(m.lock().posts.is_empty());
    }

    #[test]
    fn a_rank_that_stays_away_is_named() {
        let m = Meeting::new(3, Duration::from_millis(50));
        m.begins(2, 7);
        m.post(0, 9, vec![].into(), 3);
        m.post(1, 9, vec![].into(), 3);
        assert_eq!(m.parts(9, &[0, 1, 2]), Err(MeetError::Late { rank: 2, seconds: 0, at: 7 }));
    }

    #[test]
    fn one_failure_ends_the_wait_of_all() {
        let m = Meeting::new(2, Duration::from_secs(600));
        std::thread::scope(|s| {
            let waits = s.spawn(|| m.parts(0, &[0, 1]));
            m.fail();
            assert_eq!(waits.join().unwrap(), Err(MeetError::Stopped));
        });
    }
}
