//! All-reduces over several devices on the emulation, again and again with numbers of their own: exact every time. The
//! devices run interleaved, each as far ahead as it can get.
#![allow(clippy::print_stdout, reason = "tests say how much they compared")]

use std::path::Path;

use glmc_codegen_cuda::host::{Buffer, Job, Launch, Order, Program};
use glmc_codegen_cuda::kernels::{Header, headers};
use glmc_codegen_cuda::program::links::{AllReduce, all_reduce, probe};
use glmc_codegen_cuda::{Generated, Role, emit};
use glmc_ir::kernel::Access;
use glmc_ir::launch::Meets;

/// Nanoseconds of the emulation that a wait may take.
const LIMIT: u64 = 20_000_000;

/// `meetings` meetings in one job; for each device how many were compared, and how many words were wrong, or what a
/// device waited for.
fn run(
    all: &AllReduce,
    map: &[usize],
    words: u64,
    meetings: usize,
    headers: &[Header],
    order: Order,
) -> Result<Vec<[u64; 2]>, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let devices = all.kernels.len();
    let kernels = all.kernels.iter().chain(&all.make).chain(&all.check);
    let program = Program::build_with(&emit::unit(kernels), headers, dir).map_err(|e| e.to_string())?;
    let meets = Meets { devices, me: 0, slot: all.slot };
    let mut job = Job::default();
    let mut add = |b: Buffer| {
        job.buffers.push(b);
        job.buffers.len() as u32 - 1
    };
    let halt = add(Buffer::Changed(vec![0; meets.halt() as usize]));
    let slabs: Vec<u32> = (0..devices).map(|_| add(Buffer::Changed(vec![0; meets.slab() as usize]))).collect();
    let mut states = Vec::new();
    let mut programs = Vec::new();
    for me in 0..devices {
        let ranks = map.iter().filter(|d| **d == me).count();
        let control = meets.control(LIMIT).iter().flat_map(|w| w.to_le_bytes()).collect();
        let (control, state) = (add(Buffer::Changed(control)), add(Buffer::Changed(vec![0; 16])));
        states.push(state);
        let xs: Vec<u32> = (0..ranks).map(|_| add(Buffer::Output(4 * words as usize))).collect();
        let ys: Vec<u32> = (0..ranks).map(|_| add(Buffer::Output(4 * words as usize))).collect();
        let args = |k: &Generated, x: &[u32], y: &[u32]| -> Vec<u32> {
            let (mut x, mut y) = (x.iter(), y.iter());
            let of = |role: &Role| match role {
                Role::Param { access: Access::Update, .. } => state,
                Role::Param { access: Access::Read, .. } => *x.next().unwrap(),
                Role::Param { .. } => *y.next().unwrap(),
                Role::Slab { device } => slabs[*device],
                Role::Control => control,
                _ => halt,
            };
            k.signature.0.iter().map(|f| f.role.clone()).collect::<Vec<_>>().iter().map(of).collect()
        };
        let (k, make, check) = (&all.kernels[me], &all.make[me], &all.check[me]);
        programs.push([(make, args(make, &[], &xs)), (k, args(k, &xs, &ys)), (check, args(check, &ys, &[]))]);
    }
    for (me, steps) in programs.iter().enumerate() {
        for (k, args) in (0..meetings).flat_map(|_| steps) {
            let one =
                |s: &glmc_codegen_cuda::LaunchShape| Launch { shape: s.clone(), args: args.clone(), device: me as u32 };
            job.launches.extend(k.launches.iter().map(one));
        }
    }
    let back = program.run(&[job.clone()], order).map_err(|e| e.to_string())?.pop().unwrap()?;
    let number = |buffer: u32, at: usize| {
        let i = job.buffers[..buffer as usize].iter().filter(|b| !matches!(b, Buffer::Input(_))).count();
        u64::from_le_bytes(back[i][at..at + 8].try_into().unwrap())
    };
    for d in 0..devices {
        let peer = number(halt, 16 + 16 * d);
        if peer != 0 {
            return Err(format!("device {d} waits for device {} in meeting {}", peer - 1, number(halt, 24 + 16 * d)));
        }
    }
    Ok(states.iter().map(|s| [number(*s, 0), number(*s, 8)]).collect())
}

const CASES: [(&[usize], u64, u64); 7] = [
    (&[0, 0, 0], 70, 0),
    (&[0, 1], 70, 1 << 20),
    (&[0, 1], 6145, 0),
    (&[0, 0, 1, 1], 3, 0),
    (&[1, 0, 1], 1030, 1 << 20),
    (&[0, 1, 2], 1030, 0),
    (&[0, 1, 2, 3, 2, 1, 0, 0], 4099, 0),
];

#[test]
fn sums_are_exact_in_every_meeting() {
    for (map, words, small) in CASES {
        let all = all_reduce(words, map, small).unwrap();
        for order in [Order::Rising, Order::Falling] {
            let found = run(&all, map, words, 9, &headers(), order).unwrap();
            assert!(found.iter().all(|f| *f == [9, 0]), "{map:?}, {words} words, small {small}: {found:?}");
        }
        println!("{map:?}: 9 all-reduces of {words} words, up to {small} bytes whole, exact");
    }
}

#[test]
fn faults_of_the_protocol_are_found() {
    let faults = [
        ("the generation is not counted", "  c->generation = generation;\n", "", true),
        ("one slot for all meetings", "(generation & 1) * control_of", "0 * control_of", true),
        ("a flag that is awaited one too low", "(flag) < generation;", "(flag) + 1 < generation;", true),
        (
            "flags that are not raised",
            "if (d != C::ME) glmc_release_system",
            "if (d == C::ME) glmc_release_system",
            true,
        ),
        (
            "the second round in the slot of the first",
            "(C::ME + n) % C::DEVICES, generation + 1);",
            "(C::ME + n) % C::DEVICES, generation);",
            false,
        ),
        (
            "a second round that raises the first one's flags",
            "raise_flags<C>(args, generation + 1);",
            "raise_flags<C>(args, generation);",
            false,
        ),
        ("parts merged in another order", "got + m * stride", "got + (C::MEMBERS - 1 - m) * stride", true),
        ("the last words left out", "if (4 * at + i < words)", "if (4 * at + i + 1 < words)", true),
    ];
    for (what, from, to, small) in faults {
        let mut changed = 0;
        let planted: Vec<Header> = headers()
            .into_iter()
            .map(|h| {
                let text = if h.name == "exchange.cuh" { h.text.replace(from, to) } else { h.text.clone() };
                changed += usize::from(text != h.text);
                Header { name: h.name, text }
            })
            .collect();
        assert_eq!(changed, 1, "{what}: the text is not there");
        // Ranks are not on devices in order, so that a part that is another's is found.
        let cases: [(&[usize], u64, u64); 2] =
            [(&[0, 0, 1], 997, if small { 1 << 20 } else { 0 }), (&[0, 1, 2], 997, 0)];
        for (map, words, small) in cases {
            let all = all_reduce(words, map, small).unwrap();
            let found = run(&all, map, words, 9, &planted, Order::Rising);
            let seen = found.as_ref().map_or(true, |f| f.iter().any(|f| *f != [9, 0]));
            println!("{what}, {map:?}: {found:?}");
            let first = |why: &String| why.ends_with("in meeting 0");
            assert!(found.as_ref().err().is_none_or(first), "{what}, {map:?}: {found:?}");
            assert!(seen, "{what}: nothing is wrong on {map:?}");
        }
    }
}

#[test]
fn the_probe_writes_its_pattern() {
    let k = probe();
    let program = Program::build(&emit::unit([&k]), Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let words = 1 << 18;
    let buffers =
        vec![Buffer::Output(4 * words), Buffer::Changed(vec![0; 4]), Buffer::Input(7u32.to_le_bytes().into())];
    let launches = vec![Launch { shape: k.launches[0].clone(), args: vec![0, 1, 2], device: 0 }];
    let back = program.run(&[Job { buffers, launches }], Order::Rising).unwrap().pop().unwrap().unwrap();
    let want = |i: u32| {
        let x = (i ^ 7).wrapping_mul(0x9e37_79b1);
        x ^ (x >> 15)
    };
    let got: Vec<u32> = back[0].as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    assert!(got.iter().zip(0..).all(|(w, i)| *w == want(i)));
    assert_eq!(back[1], [0; 4]);
}
