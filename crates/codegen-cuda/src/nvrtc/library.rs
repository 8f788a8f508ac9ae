//! The NVRTC library, opened at run time by path. The only unsafe code of the crate.
//!
//! Its ten functions are declared here and not taken from a binding crate: a binding chooses the library by name, so a
//! path that the user gives could lose to a system library without a word, and result codes that are newer than the
//! binding would be invalid values of its enum. Here a code is a number.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use super::NvrtcError;
use crate::kernels::Header;

type Handle = *mut std::ffi::c_void;
type Strings = *const *const c_char;

macro_rules! functions {
    ($($name:ident: fn($($arg:ty),*);)*) => {
        /// The entry points, valid as long as the library is open.
        #[allow(non_snake_case, reason = "the names of the C functions")]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            fn load(library: &Library, path: &Path) -> Result<Self, NvrtcError> {
                Ok(Functions { $($name: {
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: the type is that of NVRTC's C header, unchanged since CUDA 8.
                    let found = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>(symbol.as_bytes()) };
                    *found.map_err(|e| NvrtcError::Library { path: path.to_owned(), why: why(&e) })?
                },)* })
            }
        }
    };
}

functions! {
    nvrtcVersion: fn(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs: fn(*mut c_int);
    nvrtcGetSupportedArchs: fn(*mut c_int);
    nvrtcCreateProgram: fn(*mut Handle, *const c_char, *const c_char, c_int, Strings, Strings);
    nvrtcDestroyProgram: fn(*mut Handle);
    nvrtcCompileProgram: fn(Handle, c_int, Strings);
    nvrtcGetCUBINSize: fn(Handle, *mut usize);
    nvrtcGetCUBIN: fn(Handle, *mut c_char);
    nvrtcGetProgramLogSize: fn(Handle, *mut usize);
    nvrtcGetProgramLog: fn(Handle, *mut c_char);
}

/// What the loader says, with its reason.
fn why(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |s| s.to_string())
}

/// An open NVRTC.
pub(super) struct Nvrtc {
    functions: Functions,
    // Kept open: the functions point into it.
    _library: Library,
    pub(super) path: PathBuf,
    pub(super) version: (u32, u32),
    pub(super) archs: Vec<u32>,
}

/// A program that is destroyed when it goes.
struct Program<'a> {
    f: &'a Functions,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
        unsafe { (self.f.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

impl Nvrtc {
    /// Opens the library at `path` (or a name that the system's loader finds).
    pub(super) fn open(path: &Path) -> Result<Self, NvrtcError> {
        let fail = |why: String| NvrtcError::Library { path: path.to_owned(), why };
        // SAFETY: NVRTC's initialisers have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|e| fail(why(&e)))?;
        let functions = Functions::load(&library, path)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: both calls write the integers that they are given.
        let code = unsafe {
            (functions.nvrtcVersion)(&raw mut major, &raw mut minor)
                | (functions.nvrtcGetNumSupportedArchs)(&raw mut count)
        };
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has as many entries as the library has just said.
        let code = code | unsafe { (functions.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) };
        if code != 0 || major < 11 {
            return Err(fail(format!("it answers with code {code}, version {major}.{minor}")));
        }
        let positive = |n: c_int| u32::try_from(n).unwrap_or(0);
        let archs = archs.into_iter().map(positive).collect();
        let version = (positive(major), positive(minor));
        Ok(Nvrtc { functions, _library: library, path: path.to_owned(), version, archs })
    }

    /// The cubin and the log of one translation unit.
    pub(super) fn compile(
        &self,
        source: &str,
        headers: &[Header],
        options: &[String],
    ) -> Result<(Vec<u8>, String), NvrtcError> {
        let text = |s: &str| CString::new(s).map_err(|_| NvrtcError::Source);
        let source = text(source)?;
        let texts = headers.iter().map(|h| text(&h.text)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|h| text(h.name)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (texts_p, names_p, options_p) = (pointers(&texts), pointers(&names), pointers(&options));
        let f = &self.functions;
        let mut program = Program { f, handle: ptr::null_mut() };
        // SAFETY: all strings outlive the program; the arrays have the stated lengths.
        let code = unsafe {
            (f.nvrtcCreateProgram)(
                &raw mut program.handle,
                source.as_ptr(),
                c"kernels.cu".as_ptr(),
                headers.len() as c_int,
                texts_p.as_ptr(),
                names_p.as_ptr(),
            )
        };
        if code != 0 {
            // There is nothing to destroy.
            std::mem::forget(program);
            return Err(NvrtcError::Call { call: "nvrtcCreateProgram", code });
        }
        // SAFETY: the program is live and the options are as many as stated.
        let compiled = unsafe { (f.nvrtcCompileProgram)(program.handle, options_p.len() as c_int, options_p.as_ptr()) };
        let log = fetch(program.handle, f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog, "nvrtcGetProgramLog")?;
        let log = CStr::from_bytes_until_nul(&log).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        if compiled != 0 {
            return Err(NvrtcError::Compile { code: compiled, log });
        }
        let cubin = fetch(program.handle, f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN, "nvrtcGetCUBIN")?;
        Ok((cubin, log))
    }
}

type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// Bytes that the library hands out by a size and a copy.
fn fetch(program: Handle, size: Size, get: Get, call: &'static str) -> Result<Vec<u8>, NvrtcError> {
    let mut n = 0;
    // SAFETY: the program is live; the call writes one size.
    let code = unsafe { size(program, &raw mut n) };
    let mut bytes = vec![0u8; n];
    // SAFETY: the buffer has the size that the library asked for.
    let code = if code == 0 { unsafe { get(program, bytes.as_mut_ptr().cast()) } } else { code };
    if code == 0 { Ok(bytes) } else { Err(NvrtcError::Call { call, code }) }
}
