//! One execution of a target; a panic of it is a result.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static IS_TRYING: Cell<bool> = const { Cell::new(false) };
}

/// The output of a target for an input, or its panic message. Panics of a trial are not printed as
/// others are: a shrink makes thousands.
pub(crate) fn run(target: &dyn Fn(&[u8]) -> String, input: &[u8]) -> Result<String, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_TRYING.get() {
                others(info);
            }
        }));
    });
    IS_TRYING.set(true);
    // Targets hold nothing between two inputs, so nothing half done is seen afterwards.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| target(input)));
    IS_TRYING.set(false);
    outcome.map_err(|payload| output(payload.as_ref()))
}

fn output(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}
