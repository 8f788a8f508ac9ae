//! What the kernels' tests share: random data, exact sums, and runs on several pool sizes.

use glmc_ir::quant::QuantType;

/// A small deterministic generator (splitmix64).
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [-1, 1).
    pub(super) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Random rows `[n, k]` of a type, as bytes and as the reference decoder reads them. Blocks whose values are not
/// finite are drawn again.
pub(super) fn weights(ty: QuantType, n: usize, k: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let mut rng = Rng::new(seed);
    let (elems, len) = (ty.block_elems(), ty.block_bytes());
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    let mut block = vec![0; len];
    let mut w = vec![0.0; elems];
    for _ in 0..n * k / elems {
        loop {
            block.iter_mut().for_each(|b| *b = rng.next() as u8);
            if ty == QuantType::F32 {
                block = rng.float().to_le_bytes().to_vec();
            }
            ty.decode_block(&block, &mut w);
            if w.iter().all(|v| v.is_finite() && v.abs() < 1e6) {
                break;
            }
        }
        bytes.extend_from_slice(&block);
        values.extend_from_slice(&w);
    }
    (bytes, values)
}

/// Asserts that `got` is the sum of the products, within `tol` times the sum of their magnitudes.
#[track_caller]
pub(super) fn close(got: f32, terms: impl Iterator<Item = (f32, f32)>, tol: f64) {
    let (sum, size) = terms.fold((0.0, 0.0), |(s, m), (a, b)| {
        let p = f64::from(a) * f64::from(b);
        (s + p, m + p.abs())
    });
    let error = (f64::from(got) - sum).abs();
    assert!(error <= tol * size, "got {got}, want {sum}: off by {error:e}, allowed {:e}", tol * size);
}

/// Runs on pools of 1, 2 and 3 threads, asserts equal bits, returns the result.
#[track_caller]
pub(super) fn on_threads(f: impl Fn() -> Vec<f32> + Sync) -> Vec<f32> {
    let run = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&f);
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let one = run(1);
    for threads in [2, 3] {
        assert!(bits(&run(threads)) == bits(&one), "{threads} threads give other bits than one");
    }
    one
}
