//! Backups of etcd: takes one, restores it later, and remembers both times for the verdicts.

use model_api::{Kind, ModelApi, Snapshot};
use serde_json::Value;

use super::gangs;
use super::plots::Plot;
use super::world::NAMESPACE;

/// Writes of other kinds of objects since the first backup; half as many since each later one. A
/// restored API must not reach the version again at which a watch was, before the watch asks:
/// whoever restores a backup that is so young has to bump the versions.
const OTHER_WRITES: u64 = 1 << 40;

/// A restore: what was called between the backup and it has never happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restore {
    /// How many calls the backup has.
    pub(super) taken: usize,
    /// How many calls there were at the restore.
    pub(super) restored: usize,
}

/// Whoever cares for etcd.
pub(super) struct Backups {
    api: ModelApi,
    plots: Vec<Plot>,
    /// Lets the kubelets start again.
    restart: Box<dyn Fn() + Send + Sync>,
    last: Option<(Snapshot, usize)>,
    pub(super) restores: Vec<Restore>,
}

impl Backups {
    pub(super) fn new(
        api: &ModelApi,
        plots: &[Plot],
        restart: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let (api, plots) = (api.clone(), plots.to_vec());
        Self { api, plots, restart, last: None, restores: Vec::new() }
    }

    /// Takes a backup, or restores the one that it has.
    pub(super) async fn turn(&mut self) {
        let calls = self.api.calls();
        let Some((snapshot, taken)) = self.last.take() else {
            self.last = Some((self.api.snapshot(), calls));
            self.api.skip_versions(OTHER_WRITES >> self.restores.len());
            return;
        };
        let before = self.api.list(Kind::Job, NAMESPACE);
        self.api.restore(&snapshot);
        self.restores.push(Restore { taken, restored: calls });
        (self.restart)();
        self.create_again(&before).await;
    }

    /// Users create the Jobs that the backup has not.
    async fn create_again(&self, before: &[impl std::ops::Deref<Target = Value>]) {
        for plot in &self.plots {
            let was_there = before.iter().any(|job| job["metadata"]["name"] == *plot.name);
            if was_there && self.api.get(Kind::Job, NAMESPACE, &plot.name).is_none() {
                gangs::create(&self.api, NAMESPACE, &plot.job).await;
            }
        }
    }
}
