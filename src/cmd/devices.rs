//! `glmc devices`: the GPUs of this machine and the libraries that a GPU run needs, each with where it was found. A
//! machine without any is a fact to print, not an error.

use serde_json::json;

use glmc_codegen_cuda::nvrtc::{self, Compiler};
use glmc_runtime::device::cuda::{self, Driver};

use super::gpu::Gpu;
use super::measure::{self, Measured};
use super::{human_bytes, print_json, print_line};
use crate::cli::DevicesArgs;
use crate::error::CliError;
use crate::terminal::escaped;

pub(crate) fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let driver = Driver::open().map_err(|e| e.to_string());
    let devices = driver.as_ref().map_err(Clone::clone).and_then(|d| d.devices().map_err(|e| e.to_string()));
    let nvrtc = Compiler::find(args.nvrtc.as_deref(), None).map_err(|e| e.to_string());
    let nccl = cuda::nccl(&nvrtc::wheels()).map_err(|e| e.to_string());
    let measured = if args.measure { Some(measured(args)?) } else { None };
    let dotted = |v: (u32, u32)| format!("{}.{}", v.0, v.1);
    if args.json {
        let found = |version: String, path: &std::path::Path| json!({ "version": version, "path": path });
        return print_json(&json!({
            "driver": driver.as_ref().map_or_else(
                |e| json!({ "error": e }), |d| found(dotted(d.version()), d.path())),
            "devices": devices.as_ref().map_or(json!([]), |d| json!(d)),
            "nvrtc": nvrtc.as_ref().map_or_else(
                |e| json!({ "error": e }), |c| found(dotted(c.version()), c.path())),
            "nccl": nccl.as_ref().map_or_else(
                |e| json!({ "error": e }),
                |n| found(format!("{}.{}.{}", n.version.0, n.version.1, n.version.2), &n.path)),
            "links": measured.as_ref().map(|m| m.json()),
        }));
    }
    let line = |name: &str, text: &str| print_line(&escaped(&format!("{name:<8} {text}")));
    match &devices {
        Ok(list) if list.is_empty() => line("devices", "no GPU")?,
        Ok(list) => {
            for d in list {
                let text =
                    format!("{}, {}, {}, {} multiprocessors", d.name, d.arch, human_bytes(d.memory), d.multiprocessors);
                line(&format!("cuda:{}", d.index), &text)?;
            }
        }
        Err(_) => line("devices", "no GPU: the driver is not usable")?,
    }
    let at = |v: String, p: &std::path::Path| format!("{v} at {}", p.display());
    let or = |r: Result<String, &String>| r.unwrap_or_else(|e| format!("none: {e}"));
    line("driver", &or(driver.as_ref().map(|d| at(format!("CUDA {}", dotted(d.version())), d.path()))))?;
    line("NVRTC", &or(nvrtc.as_ref().map(|c| at(dotted(c.version()), c.path()))))?;
    let three = |v: (u32, u32, u32)| format!("{}.{}.{}", v.0, v.1, v.2);
    line("NCCL", &or(nccl.as_ref().map(|n| at(three(n.version), &n.path))))?;
    measured.map_or(Ok(()), |m| m.print())
}

/// All GPUs of the first one's architecture against each other.
fn measured(args: &DevicesArgs) -> Result<Measured, CliError> {
    let first = Gpu::open(0, args.nvrtc.as_deref())?;
    let all = first.driver.devices()?;
    let same = all.iter().skip(1).filter(|d| d.arch == first.context.info().arch);
    let more = same.map(|d| Gpu::open(d.index, args.nvrtc.as_deref())).collect::<Result<Vec<_>, _>>()?;
    let gpus: Vec<&Gpu> = std::iter::once(&first).chain(&more).collect();
    if gpus.len() < 2 {
        return Err(CliError::usage("one-gpu", "one GPU exchanges nothing: --measure needs two").class("device"));
    }
    measure::measure(&gpus)
}
