//! Whether kernels can be run as programs here.

/// False, with a line that says so, on a machine that has no C++ compiler. `.ci/run` sees to it that there is one.
pub(crate) fn compiler_is_there() -> bool {
    let found = glmc_codegen_cuda::host::compiler();
    if let Err(e) = &found {
        println!("SKIPPED: {e}");
    }
    found.is_ok()
}
