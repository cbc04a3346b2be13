//! Keeps the disruptions that are not over, in the order in which they began, and finds them by
//! their pod, by the pod that took its place, and by their Job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::Source;
use crate::view::{Job, Pod, Uid};

/// The most that are kept; beyond it, the oldest is forgotten.
pub(super) const OPEN_MAX: usize = 10_000;

/// A disruption that is not over.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) pod: Uid,
    pub(super) job: Uid,
    /// The completion index, in an Indexed Job.
    pub(super) index: Option<u32>,
    pub(super) source: Source,
    /// The first sign of it.
    pub(super) sign: Timestamp,
    /// When it was first known.
    pub(super) opened: Timestamp,
    /// Whether its pod has the mark; until then, notice was given of its node's end alone.
    pub(super) is_marked: bool,
    pub(super) has_notice: bool,
    pub(super) is_reported: bool,
    pub(super) was_replaced: bool,
    /// When its containers ended.
    pub(super) ended: Option<Timestamp>,
    /// When a pod in its place first ran. The first one may still terminate then.
    pub(super) ran: Option<Timestamp>,
    pub(super) replacement: Option<Uid>,
}

/// All of them. Numbers grow, so that their order is that of the beginnings.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenDisruptions {
    all: BTreeMap<u64, Open>,
    next: u64,
    by_pod: HashMap<Uid, u64>,
    by_replacement: HashMap<Uid, u64>,
    by_job: HashMap<Uid, OfJob>,
}

/// Those of a Job.
#[derive(Clone, Debug, Default)]
struct OfJob {
    all: BTreeSet<u64>,
    /// Those whose place is free, by the completion index.
    waiting: BTreeSet<(Option<u32>, u64)>,
}

impl Open {
    /// One of which a sign is seen now.
    pub(super) fn new(pod: &Pod, job: &Job, source: Source, now: Timestamp) -> Self {
        Self {
            pod: pod.uid.clone(),
            job: job.uid.clone(),
            index: pod.index.filter(|_| job.is_indexed()),
            source,
            sign: now,
            opened: now,
            is_marked: false,
            has_notice: false,
            is_reported: false,
            was_replaced: false,
            ended: None,
            ran: None,
            replacement: None,
        }
    }

    /// Whether nothing more comes of it.
    pub(super) fn is_done(&self) -> bool {
        self.is_reported && self.ran.is_some()
    }
}

impl OpenDisruptions {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Keeps one more, in place of an earlier one of this pod.
    pub(super) fn insert(&mut self, open: Open) -> u64 {
        if let Some(number) = self.by_pod.get(&open.pod).copied() {
            self.forget(number);
        }
        let number = self.next;
        self.next = self.next.saturating_add(1);
        self.by_pod.insert(open.pod.clone(), number);
        self.by_job.entry(open.job.clone()).or_default().all.insert(number);
        self.all.insert(number, open);
        if self.all.len() > OPEN_MAX
            && let Some(oldest) = self.all.keys().next().copied()
        {
            self.forget(oldest);
        }
        number
    }

    /// Forgets those that were known before this time.
    pub(super) fn expire(&mut self, before: Timestamp) {
        while let Some((number, oldest)) = self.all.first_key_value() {
            if oldest.opened >= before {
                return;
            }
            let number = *number;
            self.forget(number);
        }
    }

    pub(super) fn of_pod(&mut self, pod: &Uid) -> Option<(u64, &mut Open)> {
        let number = *self.by_pod.get(pod)?;
        Some((number, self.all.get_mut(&number)?))
    }

    pub(super) fn of_replacement(&mut self, pod: &Uid) -> Option<(u64, &mut Open)> {
        let number = *self.by_replacement.get(pod)?;
        Some((number, self.all.get_mut(&number)?))
    }

    /// Its place is free: the next new pod takes it.
    pub(super) fn wait(&mut self, number: u64) {
        let Some(open) = self.all.get_mut(&number) else { return };
        if let Some(former) = open.replacement.take() {
            self.by_replacement.remove(&former);
        }
        if let Some(of_job) = self.by_job.get_mut(&open.job) {
            of_job.waiting.insert((open.index, number));
        }
    }

    /// A new pod takes the place of the oldest one that waits, of this index.
    pub(super) fn replace(
        &mut self,
        job: &Uid,
        index: Option<u32>,
        pod: &Uid,
    ) -> Option<&mut Open> {
        let of_job = self.by_job.get_mut(job)?;
        let first = of_job.waiting.range((index, 0)..=(index, u64::MAX)).next().copied()?;
        of_job.waiting.remove(&first);
        let (_, number) = first;
        let open = self.all.get_mut(&number)?;
        open.replacement = Some(pod.clone());
        self.by_replacement.insert(pod.clone(), number);
        Some(open)
    }

    pub(super) fn forget(&mut self, number: u64) {
        let Some(open) = self.all.remove(&number) else { return };
        self.by_pod.remove(&open.pod);
        if let Some(replacement) = &open.replacement {
            self.by_replacement.remove(replacement);
        }
        if let Some(of_job) = self.by_job.get_mut(&open.job) {
            of_job.all.remove(&number);
            of_job.waiting.remove(&(open.index, number));
            if of_job.all.is_empty() {
                self.by_job.remove(&open.job);
            }
        }
    }

    pub(super) fn forget_job(&mut self, job: &Uid) {
        let numbers = self.by_job.get(job).map(|of_job| of_job.all.clone()).unwrap_or_default();
        for number in numbers {
            self.forget(number);
        }
    }

    /// Whether each index names what there is, and nothing else.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        let of_jobs = self.by_job.values();
        self.by_pod.len() == self.all.len()
            && of_jobs.clone().map(|of| of.all.len()).sum::<usize>() == self.all.len()
            && of_jobs
                .flat_map(|of| &of.waiting)
                .all(|(_, it)| self.all.get(it).is_some_and(|open| open.replacement.is_none()))
            && self.by_replacement.iter().all(|(pod, it)| {
                self.all.get(it).is_some_and(|open| open.replacement.as_ref() == Some(pod))
            })
    }
}
