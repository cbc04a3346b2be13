//! What the processes of pods do, for a model of the nodes' container runtimes.

use std::fmt;
use std::sync::Arc;

/// The state of a pod's processes; all main containers of a pod share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processes {
    /// None has started.
    #[default]
    None,
    /// They run.
    Run,
    /// They run and must end.
    End,
    /// They have exited with this code.
    Exited(i32),
}

/// A signal to the processes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Asks them to end.
    Term,
    /// Ends them at once.
    Kill,
}

/// A change of a pod's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The name of the node.
    pub node: &'a str,
    pub uid: &'a str,
    /// The name of the pod's first main container.
    pub container: &'a str,
    /// The new state; `None`: the node has removed all of the pod.
    pub now: Option<Processes>,
}

/// Called with each change.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Change<'_>) + Send + Sync>);

impl Observer {
    /// An observer that calls this.
    pub fn new(call: impl Fn(Change<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(super) fn tell(&self, change: Change<'_>) {
        (self.0)(change);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").finish_non_exhaustive()
    }
}
