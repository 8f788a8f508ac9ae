use std::path::Path;
use glmc_codegen_cuda::cases::{Check, checks, meaning};
use glmc_codegen_cuda::host::{Job, Order, Program};
use glmc_codegen_cuda::{Activations, Arch, Generated, Options, emit};
#[test]
fn seed() {
    let seed = 5222036076u64;
    for name in ["matmul", "grouped_matmul"] {
        for activations in [Activations::F32, Activations::BF16] {
            let list = checks(name, seed, &Options { activations, ..Options::default() });
            let list: Vec<Check> = list.into_iter().filter(|c| c.quant().is_none_or(|q| q.block_elems() == 1)).collect();
            for list in list.chunks(60) {
                let kernels: Vec<Generated> = list.iter().map(|c| c.kernel(Arch::Sm90).unwrap()).collect();
                let program = Program::build(&emit::unit(&kernels), Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
                let pairs: Vec<_> = list.iter().zip(&kernels).map(|(c, k)| c.job(k).unwrap()).collect();
                let jobs: Vec<Job> = pairs.iter().map(|p| p.0.clone()).collect();
                for (((c, k), (_, b)), r) in list.iter().zip(&kernels).zip(&pairs).zip(program.run(&jobs, Order::Rising).unwrap()) {
                    let r = r.and_then(|r| c.judge(b, &r, &meaning(&c.case)?));
                    match r {
                        Err(e) => println!("FAIL {name} {activations:?} {}: {e}; {} {}", c.what, k.config, k.name),
                        Ok(l2) if l2 > 0.5 * c.budget() => println!("near {name} {activations:?} {}: {l2:e}", c.what),
                        _ => {}
                    }
                }
            }
        }
    }
}
