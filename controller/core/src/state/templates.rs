//! Bounds the memory of what Jobs keep for their writes, template and metadata as they came, and of
//! their selectors. A Job without them runs as well. Template and metadata are read from the API
//! when a sync writes them. By a selector that is not kept, no pod is adopted or disowned.

use std::collections::HashMap;
use std::sync::Arc;

use epilogue_common::names::MANAGED_BY;

use crate::job::{self, has_labels};
use crate::view::{Job, Selector, Source};

/// How much the Jobs of one namespace keep, in bytes. A tenant can store 1.3 MB in each Job, and
/// the controller must not need a gigabyte for one tenant.
pub(super) const BUDGET: usize = 32 << 20;
/// What one Job keeps at least, of each of the two: the rest of its view is as large.
const FREE_MAX: usize = 4 << 10;

/// What is kept, by namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Templates {
    /// Whether Jobs of upstream are ours; `None` if that is not known.
    manages_all: Option<bool>,
    of: HashMap<Arc<str>, Kept>,
}

/// What the Jobs of a namespace keep.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    bytes: usize,
    /// Whether some Job had no place.
    is_full: bool,
}

impl Templates {
    /// Whether Jobs of upstream are ours is known from now on.
    pub(super) fn manage(&mut self, all: bool) {
        self.manages_all = Some(all);
    }

    /// Nothing is kept, by the same settings.
    pub(super) fn emptied(&self) -> Self {
        Self { manages_all: self.manages_all, ..Self::default() }
    }

    /// Whether the Job is ours, as far as is known.
    pub(super) fn is_ours(&self, job: &Job) -> bool {
        job::is_ours(job, self.manages_all == Some(true))
    }

    /// Whether Jobs with this `spec.managedBy` are ours, as far as is known.
    pub(super) fn is_run_by_us(&self, managed_by: Option<&str>) -> bool {
        job::is_run_by_us(managed_by, self.manages_all == Some(true))
    }

    /// Whether another controller runs the Job.
    pub(super) fn is_foreign(&self, job: &Job) -> bool {
        let by_upstream = || job.is_managed_by_upstream() && self.manages_all != Some(false);
        let is_ours = job.spec.managed_by.as_deref() == Some(MANAGED_BY);
        self.manages_all.is_some() && !is_ours && !by_upstream()
    }

    /// The Job as it is kept, in the place of an earlier version, and whether it is the first of
    /// its namespace that has no place.
    pub(super) fn keep(&mut self, old: Option<&Job>, job: &Arc<Job>) -> (Arc<Job>, bool) {
        if let Some(old) = old {
            self.release(old);
        }
        if job.is_finished() || self.is_foreign(job) {
            // Nothing is written to it.
            let slim = Job { source: job.source.unkept(), ..Job::clone(job) };
            return (Arc::new(without_selector(slim)), false);
        }
        let size = size(job);
        if size == 0 {
            return (Arc::clone(job), false);
        }
        let kept = self.of.entry(Arc::clone(&job.key.namespace)).or_default();
        if kept.bytes + size > BUDGET {
            let slim = Job { source: job.source.unkept(), ..Job::clone(job) };
            let slim = Arc::new(without_selector(slim));
            return (slim, !std::mem::replace(&mut kept.is_full, true));
        }
        kept.bytes += size;
        (Arc::clone(job), false)
    }

    /// Whether the sizes are those of these Jobs.
    pub(super) fn is_sound<'a>(&self, jobs: impl Iterator<Item = &'a Arc<Job>>) -> bool {
        let mut sizes: HashMap<&str, usize> = HashMap::new();
        for job in jobs {
            let size = size(job);
            if size > 0 {
                *sizes.entry(&job.key.namespace).or_default() += size;
            }
        }
        let kept = self.of.iter().filter(|(_, kept)| kept.bytes > 0);
        kept.map(|(namespace, kept)| (&**namespace, kept.bytes)).collect::<HashMap<_, _>>() == sizes
    }

    /// A Job is no longer kept.
    pub(super) fn release(&mut self, job: &Job) {
        let size = Some(size(job)).filter(|size| *size > 0);
        if let (Some(size), Some(kept)) = (size, self.of.get_mut(&job.key.namespace)) {
            kept.bytes -= size;
            if kept.bytes == 0 {
                self.of.remove(&job.key.namespace);
            }
        }
    }
}

/// What a Job keeps beyond what is free, in bytes.
fn size(job: &Job) -> usize {
    let all = [job.source.size(), job.spec.selector.size()];
    all.into_iter().filter(|size| *size > FREE_MAX).sum()
}

/// The Job without a selector that takes more than is free.
///
/// DIVERGES(upstream): it adopts no pod, and none of its pods leaves it when labels change.
/// Upstream keeps each selector, whatever its size. ([L1])
fn without_selector(mut job: Job) -> Job {
    if job.spec.selector.size() > FREE_MAX {
        job.spec.selector = Selector::unkept();
    }
    job
}

impl Source {
    /// What is left of it where it is not kept.
    fn unkept(&self) -> Self {
        Self::Unkept { template_size: self.template_size(), has_labels: has_labels(self) }
    }

    /// What is kept of it, in bytes.
    fn size(&self) -> usize {
        match self {
            Self::Json { metadata, template, .. } => {
                metadata.as_str().len() + template.as_str().len()
            }
            Self::Protobuf { metadata, template, status_unknown } => {
                let unknown = status_unknown.conditions.iter().map(|(_, _, fields)| fields.len());
                let unknown = status_unknown.status.len() + unknown.sum::<usize>();
                metadata.len() + template.len() + unknown
            }
            Self::Unkept { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::event_handlers::samples;
    use crate::view::WireJob;

    /// A Job whose template has this many bytes, or a few more.
    fn job(name: &str, bytes: usize, edit: impl FnOnce(&mut Value)) -> Arc<Job> {
        let mut job = json!({
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"managedBy": MANAGED_BY, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"nodeName": "x".repeat(bytes)}}},
        });
        edit(&mut job);
        Arc::new(WireJob::parse(job).and_then(WireJob::view).expect("must be a Job"))
    }

    fn is_kept(kept: &(Arc<Job>, bool)) -> bool {
        !kept.0.source.is_unkept()
    }

    #[test]
    fn the_jobs_of_a_namespace_keep_templates_up_to_a_budget() {
        let mut templates = Templates::default();
        let big = |number: u32| job(&format!("j{number}"), BUDGET / 4, |_| {});
        let all: Vec<_> = (0..6).map(|number| templates.keep(None, &big(number))).collect();
        let kept: Vec<bool> = all.iter().map(is_kept).collect();
        assert_eq!(kept, [true, true, true, false, false, false]);
        let said: Vec<bool> = all.iter().map(|each| each.1).collect();
        assert_eq!(said, [false, false, false, true, false, false], "it is said once");
        // What a Job without its template needs is known all the same.
        let (whole, slim) = (big(5), &all[5].0);
        assert_eq!(slim.source.template_size(), whole.source.template_size());
        assert_eq!(Job { source: whole.source.clone(), ..Job::clone(slim) }, *whole);

        assert!(is_kept(&templates.keep(None, &job("small", 100, |_| {}))), "small ones are free");
        let other = job("j", BUDGET / 2, |job| job["metadata"]["namespace"] = "other".into());
        assert!(is_kept(&templates.keep(None, &other)), "of another namespace");
        templates.release(&all[0].0);
        templates.release(&all[5].0);
        assert!(is_kept(&templates.keep(Some(&all[3].0), &big(3))), "there is room again");
        assert!(!is_kept(&templates.keep(Some(&all[4].0), &big(4))));
        // A change of a Job takes no further room.
        assert!(is_kept(&templates.keep(Some(&all[1].0), &big(1))));
    }

    /// A tenant can store a hundred thousand values in each.
    #[test]
    fn selectors_are_part_of_the_budget() {
        let mut templates = Templates::default();
        let big = |number: u32| {
            let values: Vec<String> = (0..100_000).map(|number| format!("v{number}")).collect();
            job(&format!("j{number}"), 10, |job| {
                job["spec"]["selector"] = json!({"matchLabels": {"a": "v7"}, "matchExpressions": [
                    {"key": "b", "operator": "NotIn", "values": values}]});
            })
        };
        let all: Vec<_> = (0..60).map(|number| templates.keep(None, &big(number)).0).collect();
        let kept: usize = all.iter().map(|job| job.spec.selector.size()).sum();
        assert!(kept <= BUDGET && kept > BUDGET / 2, "{kept} bytes");
        assert!(templates.is_sound(all.iter()));
        let pod = |labels: Value, owner: Value| {
            let mut pod = json!({"metadata": {"name": "p", "labels": labels}});
            pod["metadata"]["ownerReferences"] = json!([owner]);
            samples::pod(pod)
        };
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j59", "uid": "j59",
                           "controller": true});
        let stray = pod(
            json!({"a": "v7"}),
            json!({"apiVersion": "v1", "kind": "Job", "name": "x",
                                                   "uid": "x"}),
        );
        let (first, last) = (&all[0].spec.selector, &all[59].spec.selector);
        assert!(stray.matches(first) && !stray.matches(last), "no pod is adopted");
        let own = pod(json!({}), owner);
        assert!(!own.matches(first) && own.matches(last), "no pod is disowned");
        assert_eq!(last.query(), None);
        for job in &all {
            templates.release(job);
        }
        assert!(!templates.keep(Some(&all[59]), &big(59)).0.spec.selector.is_unkept());
    }

    #[test]
    fn a_finished_or_foreign_job_keeps_no_template() {
        type Edit = fn(&mut Value);
        let rows: [(&str, Edit, Option<bool>, bool); 7] = [
            ("ours", |_| {}, Some(false), true),
            (
                "finished",
                |job| job["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]),
                None,
                false,
            ),
            ("of another", |job| job["spec"]["managedBy"] = "a.io/b".into(), Some(true), false),
            ("of upstream", |job| job["spec"]["managedBy"] = json!(null), Some(false), false),
            (
                "of upstream, managed",
                |job| job["spec"]["managedBy"] = json!(null),
                Some(true),
                true,
            ),
            ("of upstream, unknown", |job| job["spec"]["managedBy"] = json!(null), None, true),
            ("of another, unknown", |job| job["spec"]["managedBy"] = "a.io/b".into(), None, true),
        ];
        for (name, edit, manages_all, expected) in rows {
            let mut templates = Templates { manages_all, ..Templates::default() };
            assert_eq!(is_kept(&templates.keep(None, &job("j", 10, edit))), expected, "{name}");
        }
    }
}
