//! Keeps one machine for all stories of a module: its start takes longer than most of them. It
//! lives on one thread with the runtime, as long as this process; QEMU ends with that thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use tokio::runtime::{Builder, Runtime};

/// The machine of the module that played last, with its own type.
type Kept = Option<(&'static str, Box<dyn Any>)>;
type Job = Box<dyn FnOnce(&Runtime, &mut Kept) + Send>;

/// An emulated machine needs both of two processors; with one thread the tests take turns.
static THREAD: OnceLock<Sender<Job>> = OnceLock::new();

/// Plays a story on the machine of `module`: the one that the last story left, or `None`. The next
/// story gets what this one leaves; a panic leaves nothing, and fails the test.
///
/// Print and judge on the test's thread: libtest captures the output of no other.
pub(crate) fn play<S: 'static, R: Send + 'static>(
    module: &'static str,
    story: impl AsyncFnOnce(&mut Option<S>) -> R + Send + 'static,
) -> R {
    let (answer, answered) = mpsc::channel();
    let job: Job = Box::new(move |runtime, kept| {
        let played = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                let mut stage = match kept.take() {
                    Some((of, stage)) if of == module => stage.downcast().ok().map(|stage| *stage),
                    _ => None,
                };
                let result = story(&mut stage).await;
                *kept = stage.map(|stage| (module, Box::new(stage) as Box<dyn Any>));
                result
            })
        }));
        // The test that asked may be gone.
        let _ = answer.send(played.map_err(|panic| message(&*panic)));
    });
    let thread = THREAD.get_or_init(start);
    thread.send(job).expect("the machine's thread must live as long as the process");
    match answered.recv().expect("every story must be answered") {
        Ok(result) => result,
        Err(message) => panic!("{message}"),
    }
}

fn start() -> Sender<Job> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let run = move || {
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.expect("a runtime must be buildable");
        let mut kept = None;
        for job in jobs {
            job(&runtime, &mut kept);
        }
    };
    thread::Builder::new().name("machine".into()).spawn(run).expect("a thread must start");
    sender
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
