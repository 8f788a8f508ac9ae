//! Owns what a thread that dies says: a panic of one rank is an error of the run, told once, and not the end of the
//! process.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::error::RuntimeError;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a thread's work; its panic is [`RuntimeError::Died`], with what it said and where. What the work changed may be
/// half done: whoever owns it must not use it again.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, RuntimeError>) -> Result<T, RuntimeError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                return usual(panic);
            }
            let said = panic.payload_as_str().unwrap_or("it panicked");
            let at = panic.location().map_or_else(String::new, |l| format!(", at {}:{}", l.file(), l.line()));
            SAID.set(Some(format!("{said}{at}")));
        }));
    });
    let before = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    done.unwrap_or_else(|_| {
        // A panic that another thread handed on was told by that one.
        Err(RuntimeError::Died(SAID.take().unwrap_or_else(|| "it panicked".into())))
    })
}

/// Dies on purpose.
///
/// # Panics
/// Always: that is what is asked for.
pub(crate) fn die() -> ! {
    panic!("it was made to die")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let ended = std::thread::spawn(|| guarded(|| -> Result<(), RuntimeError> { die() }).unwrap_err().to_string());
        let said = ended.join().expect("it does not die");
        assert!(said.starts_with("its thread died: it was made to die, at ") && said.contains("died.rs:"), "{said}");
        assert_eq!(guarded(|| Ok(3)).expect("it runs"), 3);
    }
}
