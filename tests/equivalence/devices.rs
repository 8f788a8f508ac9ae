//! The shipped Q4_K_M model with its ranks on several devices of the host emulation, which run interleaved and meet in the
//! memory that they have for each other: the bits of one device.

use glmc_codegen_cuda::kernels::{Header, headers};
use glmc_codegen_cuda::nvrtc::{Compiler, Unit};
use glmc_codegen_cuda::program::{Choices, Program, Spread, links};
use glmc_codegen_cuda::{Arch, Generated, emit};
use glmc_frontend_gguf::arch::LiftOptions;
use glmc_ir::plan::Plan;
use glmc_ir::ty::PendingKind;
use glmc_passes::target::Target;

use super::compile::compile_for;
use super::emulated::{OPTIONS, PARTS, PARTS_FIT, emulated, model, pending};

/// The plan of ranks on several devices gives the bits of the same plan on one, in every step's outputs.
fn spread(machine: &Target, options: &LiftOptions, maps: &[(&[usize], Option<u64>)]) -> (Plan, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let plan = compile_for(&model(folder.path()), options, machine).unwrap().plan;
    let one = Program::new(&plan, Arch::Sm90, &Choices::default()).unwrap();
    let (want, seen, _) = emulated(&plan, one.into(), &headers()).unwrap();
    let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut meetings = Vec::new();
    for (map, small_bytes) in maps {
        let choices = Choices { small_bytes: *small_bytes, ..Choices::default() };
        let program = Spread::new(&plan, Arch::Sm90, &choices, map).unwrap();
        let met = program.devices[0].phases[0].meetings.len();
        let (got, got_seen, _) = emulated(&plan, program, &headers()).unwrap_or_else(|e| panic!("{map:?}: {e}"));
        for (at, w) in &seen {
            let same = got_seen[at].iter().map(|x| x.to_bits()).eq(w.iter().map(|x| x.to_bits()));
            let name = plan.phases.iter().map(|p| p.steps.get(at.1).map_or("", |s| s.name.as_str()));
            assert!(same, "{map:?}: run {}, step {} ({:?}) differs", at.0, at.1, name.collect::<Vec<_>>());
        }
        assert_eq!(bits(&got), bits(&want), "{map:?}: logits");
        println!("{} over {map:?}, small up to {small_bytes:?}: {met} meetings a step, equal bits", machine.name);
        meetings.push(met);
    }
    (plan, meetings)
}

#[test]
fn ranks_of_several_devices_give_the_bits_of_one_device() {
    let machine = crate::run::machine("8x-cpu").target;
    let maps: [(&[usize], Option<u64>); 3] = [
        (&[0, 0, 0, 0, 1, 1, 1, 1], None),
        // Large values, whose tails are no multiples of four words a device, in an order that is not that of devices.
        (&[0, 1, 2, 0, 1, 2, 2, 0], Some(64)),
        (&[0, 1, 2, 3, 4, 5, 6, 7], Some(4096)),
    ];
    let (_, meetings) = spread(&machine, &OPTIONS, &maps);
    assert!(meetings.iter().all(|n| *n > 0), "the devices never meet");
}

#[test]
fn merges_of_several_devices_give_the_bits_of_one_device() {
    let mut machine = crate::run::machine("8x-cpu").target;
    machine.device.memory_bytes = Some(PARTS_FIT);
    let (plan, _) = spread(&machine, &PARTS, &[(&[0, 0, 0, 0, 1, 1, 1, 1], None)]);
    assert!([PendingKind::Softmax, PendingKind::TopK].iter().all(|k| pending(&plan, *k) > 0));
}

/// More of them are planted where they cost less: `links` of the kernels' own tests.
#[test]
fn faults_of_meetings_are_seen() {
    let machine = crate::run::machine("8x-cpu").target;
    let folder = tempfile::tempdir().unwrap();
    let plan = compile_for(&model(folder.path()), &OPTIONS, &machine).unwrap().plan;
    let choices = Choices { small_bytes: Some(1 << 10), ..Choices::default() };
    let program = || Spread::new(&plan, Arch::Sm90, &choices, &[0, 0, 0, 0, 1, 1, 1, 1]).unwrap();
    let (want, ..) = emulated(&plan, program(), &headers()).unwrap();
    let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let faults = [
        ("the generation is not counted", "  c->generation = generation;\n", ""),
        (
            "flags that are not raised",
            "glmc_release_system(flags_of<C>(args, d, C::ME) + glmc_block_x(), generation)",
            ";",
        ),
    ];
    for (what, from, to) in faults {
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
        match emulated(&plan, program(), &planted) {
            Ok((got, ..)) => assert_ne!(bits(&got), bits(&want), "{what}: nothing differs"),
            Err(why) => {
                println!("{what}: {why}");
                assert!(what != "flags that are not raised" || why.contains("waits for device"), "{what}: {why}");
            }
        }
    }
}

#[test]
fn kernels_of_several_devices_compile_without_spills() {
    let compiler = match Compiler::find(None, None) {
        Ok(c) => c,
        Err(e) => return println!("SKIPPED: {e}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let plan = compile_for(&model(folder.path()), &OPTIONS, &crate::run::machine("8x-cpu").target).unwrap().plan;
    for arch in [Arch::Sm80, Arch::Sm90, Arch::Sm120] {
        let program = Spread::new(&plan, arch, &Choices::default(), &[0, 0, 0, 0, 1, 1, 1, 1]).unwrap();
        let mut kernels: Vec<Generated> =
            program.kernels.into_iter().filter(|k| k.name.starts_with("exchange_")).collect();
        let met = kernels.len();
        let all = links::all_reduce(3072, &[0, 0, 1], 1 << 12).unwrap();
        kernels.extend(all.kernels.into_iter().chain(all.make).chain(all.check).chain([links::probe()]));
        let unit = Unit { name: "meetings".into(), source: emit::unit(&kernels) };
        let made = compiler.compile_all(&[unit], arch, 1, &|_| ()).unwrap_or_else(|e| panic!("{arch}: {e}"));
        made[0].check(&kernels, arch).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let spills: Vec<_> = made[0].resources.iter().filter(|r| r.spill_stores + r.spill_loads > 0).collect();
        assert!(met > 0 && spills.is_empty(), "{arch}: {spills:#?}");
        println!("{arch}: {met} kernels of meetings and {} more, no spills", kernels.len() - met);
    }
}
