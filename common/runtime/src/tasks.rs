//! Runs a group of tasks: each one is joined, and the unexpected end of one ends all.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::time::Duration;

use futures::FutureExt as _;
use thiserror::Error;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why a group did not end cleanly.
#[derive(Debug, Error)]
pub enum TaskError {
    /// A task returned before the group's token was cancelled.
    #[error("task {name} ended although it must not")]
    Ended {
        /// The task's name.
        name: String,
    },
    /// A task failed.
    #[error("task {name} failed")]
    Failed {
        /// The task's name.
        name: String,
        /// Its error.
        #[source]
        source: BoxError,
    },
    /// A task panicked.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The task's name.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// Tasks still ran after the time limit, and were dropped.
    #[error("still running {} s after shutdown was requested: {}",
            limit.as_secs(), names.join(", "))]
    Stuck {
        /// The tasks' names.
        names: Vec<String>,
        /// The time limit.
        limit: Duration,
    },
}

/// Tasks that share one token.
#[derive(Debug)]
pub struct TaskGroup {
    token: CancellationToken,
    tasks: JoinSet<Result<(), BoxError>>,
    names: HashMap<Id, String>,
}

impl TaskGroup {
    /// Creates an empty group that ends when `token` is cancelled.
    pub fn new(token: CancellationToken) -> Self {
        Self { token, tasks: JoinSet::new(), names: HashMap::new() }
    }

    /// The token on whose cancellation every task must end.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Starts a task. It must run until the token is cancelled.
    pub fn spawn<F, E>(&mut self, name: impl Into<String>, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let handle = self.tasks.spawn(async move { task.await.map_err(Into::into) });
        self.names.insert(handle.id(), name.into());
    }

    /// Starts a task that is dropped when the token is cancelled. It must not end before.
    pub fn spawn_until_stopped<F>(&mut self, name: impl Into<String>, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let running = self.token().run_until_cancelled_owned(task);
        self.spawn(name, running.map(|_| Ok::<_, Infallible>(())));
    }

    /// Runs until the token is cancelled or a task ends, then cancels the token and joins the
    /// others within `limit`. Returns the first error and logs later ones.
    pub async fn run(mut self, limit: Duration) -> Result<(), TaskError> {
        let token = self.token.clone();
        let mut first = tokio::select! {
            biased;
            () = token.cancelled() => None,
            Some(joined) = self.tasks.join_next_with_id() => Some(self.unexpected(joined)),
        };
        token.cancel();
        let deadline = Instant::now() + limit;
        loop {
            match tokio::time::timeout_at(deadline, self.tasks.join_next_with_id()).await {
                Ok(None) => break,
                Ok(Some(joined)) => keep(&mut first, self.failure(joined)),
                Err(_) => {
                    keep(&mut first, Some(self.stuck(limit)));
                    self.tasks.shutdown().await;
                    break;
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn unexpected(&mut self, joined: Result<(Id, Result<(), BoxError>), JoinError>) -> TaskError {
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let name = self.names.get(&id).cloned().unwrap_or_default();
        self.failure(joined).unwrap_or(TaskError::Ended { name })
    }

    fn failure(
        &mut self,
        joined: Result<(Id, Result<(), BoxError>), JoinError>,
    ) -> Option<TaskError> {
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let name = self.names.remove(&id).unwrap_or_default();
        match joined {
            Ok((_, Ok(()))) => None,
            Ok((_, Err(source))) => Some(TaskError::Failed { name, source }),
            Err(error) => Some(TaskError::Panicked { name, message: panic_message(error) }),
        }
    }

    fn stuck(&self, limit: Duration) -> TaskError {
        let mut names: Vec<_> = self.names.values().cloned().collect();
        names.sort();
        TaskError::Stuck { names, limit }
    }
}

fn keep(first: &mut Option<TaskError>, next: Option<TaskError>) {
    let Some(next) = next else { return };
    if first.is_none() {
        *first = Some(next);
    } else {
        let source = next.source().map(ToString::to_string);
        tracing::error!(error = %next, source, "another task did not end well");
    }
}

fn panic_message(error: JoinError) -> String {
    let payload = match error.try_into_panic() {
        Ok(payload) => payload,
        Err(error) => return error.to_string(),
    };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn group() -> TaskGroup {
        let mut group = TaskGroup::new(CancellationToken::new());
        let token = group.token();
        group.spawn("patient", async move {
            token.cancelled().await;
            Ok::<_, Infallible>(())
        });
        group
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_group_ends_well() {
        let group = group();
        group.token().cancel();
        assert!(group.run(LIMIT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_one_task_is_the_end_of_all() {
        let mut group = group();
        let token = group.token();
        group.spawn("watch", async { Ok::<_, Infallible>(()) });
        let error = group.run(LIMIT).await.expect_err("must not end well");
        assert_eq!(error.to_string(), "task watch ended although it must not");
        assert!(token.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_until_stopped_is_dropped_at_the_end_and_must_not_end_before() {
        let mut endless = group();
        endless.spawn_until_stopped("source", std::future::pending());
        endless.token().cancel();
        assert!(endless.run(LIMIT).await.is_ok());

        let mut ending = group();
        ending.spawn_until_stopped("source", async {});
        let error = ending.run(LIMIT).await.expect_err("must not end well");
        assert_eq!(error.to_string(), "task source ended although it must not");
    }

    #[tokio::test(start_paused = true)]
    async fn errors_and_panics_have_the_task_s_name() {
        let mut failing = group();
        failing.spawn("lease", async { Err(std::io::Error::other("lost")) });
        let error = failing.run(LIMIT).await.expect_err("must fail");
        assert_eq!(error.to_string(), "task lease failed");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("lost"));

        let mut panicking = group();
        panicking.spawn("queue", async {
            assert_eq!(1, 2, "key {}", 7);
            Ok::<_, Infallible>(())
        });
        let error = panicking.run(LIMIT).await.expect_err("must fail");
        assert!(error.to_string().starts_with("task queue panicked: "), "{error}");
        assert!(error.to_string().contains("key 7"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_do_not_end_in_time_are_named_and_dropped() {
        let mut group = group();
        group.spawn("stubborn", std::future::pending::<Result<(), Infallible>>());
        group.token().cancel();
        let started = Instant::now();
        let error = group.run(LIMIT).await.expect_err("must fail");
        assert_eq!(error.to_string(), "still running 5 s after shutdown was requested: stubborn");
        assert_eq!(started.elapsed(), LIMIT);
    }
}
