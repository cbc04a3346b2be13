//! Adds up pods and Jobs into figures, and says what a report cannot know.

use controller_core::disruption_times::Phase;
use epilogue_common::finding_code::FindingCode as Code;

use super::answer::{AffectedJob, Basis, DisruptedPod, EventCount, Figure, Help, Installed, Unit};
use super::cluster::seconds;
use super::event_log::{About, EventLog, Writer};
use super::{Input, Metrics};
use crate::doctor::rules::Omission;
use crate::kind::Kind;

/// The codes of pods, from the worst on, with what a figure says and how it came about.
const PODS: [(Code, &str, &str); 7] = [
    (
        Code::StatusMissingNodeGone,
        "no terminal phase; the node is gone",
        "pods of the API without a terminal phase whose node object does not exist",
    ),
    (
        Code::StatusMissingNodeRebooted,
        "no terminal phase; the node has booted since",
        "pods of the API that are not terminal, and started before an event or record of a boot",
    ),
    (
        Code::StatusMissingNodeSilent,
        "no terminal phase; the node does not report",
        "pods of nodes whose Ready is Unknown for 5 min; estimated if the pod was not deleted, as \
         it may still run",
    ),
    (
        Code::StatusMissingTerminating,
        "no terminal phase; Terminating beyond its grace period",
        "deleted pods whose grace period is over for a minute, under a node that reports",
    ),
    (
        Code::StatusMissingPodDeleted,
        "gone from the API after a disruption; last phase not known",
        "events about pods that the API no longer has",
    ),
    (
        Code::FailureWithoutDisruptionTarget,
        "Failed by a disruption, without DisruptionTarget",
        "Failed pods without the condition; status.reason, an event or a boot shows the \
         disruption; estimated by exit codes",
    ),
    (
        Code::DisruptionReported,
        "disrupted, with the true cause",
        "Failed pods with DisruptionTarget, pods that Epilogue acted on, and those of an event \
         PodDisrupted of a Job; estimated for other pods that are gone",
    ),
];

/// The parts of Epilogue, likewise.
const PARTS: [(Help, &str, &str, &str); 4] = [
    (
        Help::Acted,
        "epilogue-acted",
        "Epilogue acted on",
        "events of agents and pod GC, and the condition epilogue.dev/Ended",
    ),
    (
        Help::WouldHaveActed,
        "epilogue-would-have-acted",
        "Epilogue would act on, set to enforce",
        "its events that say so, and evidence that pod GC accepts; estimated by its rules",
    ),
    (Help::Nothing, "epilogue-no-help", "Epilogue would not change", "no rule of Epilogue applies"),
    (
        Help::NotNeeded,
        "epilogue-not-needed",
        "Kubernetes reported itself",
        "pods with DisruptionTarget that Epilogue did not set; estimated for pods that are gone",
    ),
];

/// All figures. Disruptions that a Job's event only counts are in no list of pods.
pub(super) fn figures(pods: &[DisruptedPod], jobs: &[AffectedJob], unnamed: u64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (code, text, how) in PODS {
        let of = pods.iter().filter(|pod| pod.code == code);
        let counted = of.map(|pod| (pod.basis, 1));
        let more = (code == Code::DisruptionReported).then_some((Basis::Seen, unnamed));
        let all = counted.chain(more);
        figures.push(figure((code.as_str(), text, how), Unit::Pods, all));
    }
    for (help, name, text, how) in PARTS {
        let of = pods.iter().filter(|pod| pod.epilogue == help);
        let counted = of.map(|pod| (pod.epilogue_basis, 1));
        let more = (help == Help::NotNeeded).then_some((Basis::Estimated, unnamed));
        figures.push(figure((name, text, how), Unit::Pods, counted.chain(more)));
    }
    for (code, text, how) in [
        (
            Code::JobFailedByDisruptions,
            "Jobs that failed by disruptions",
            "failed Jobs that were within backoffLimit without their disrupted pods, by pods, \
             events and the condition's message; estimated for other reasons and for restarts in \
             place",
        ),
        (
            Code::JobWaitsForLostPod,
            "Jobs that wait for a terminal phase",
            "unfinished Jobs that own a pod without its terminal phase",
        ),
    ] {
        let of = jobs.iter().filter(|job| job.code == code);
        let counted = of.map(|job| (job.basis, 1));
        figures.push(figure((code.as_str(), text, how), Unit::Jobs, counted));
    }
    figures.extend(times(pods, jobs));
    figures
}

fn times(pods: &[DisruptedPod], jobs: &[AffectedJob]) -> [Figure; 3] {
    let waited = pods.iter().filter_map(|pod| Some((pod.basis, pod.waited_seconds?)));
    let lost = pods.iter().filter_map(|pod| pod.work_seconds);
    let failed = jobs.iter().filter(|job| job.code == Code::JobFailedByDisruptions);
    let estimated = |seconds| (Basis::Estimated, seconds);
    [
        figure(
            (
                "waited",
                "time that pods have been without their terminal phase",
                "from the disruption, or the end of the grace period, until now; only of pods \
                 that are in the API",
            ),
            Unit::Seconds,
            waited,
        ),
        figure(
            (
                "work-lost",
                "work of disrupted pods; Epilogue does not bring it back",
                "from the first start of a container until the last ended, or the disruption where \
                 that is not shown; without checkpoints; only of pods in the API that run to \
                 completion",
            ),
            Unit::Seconds,
            lost.map(estimated),
        ),
        figure(
            (
                "failed-job-work",
                "work of the other pods of Jobs that failed by disruptions",
                "from start to end of each such pod that is still in the API",
            ),
            Unit::Seconds,
            failed.map(|job| job.work_seconds).map(estimated),
        ),
    ]
}

fn figure(
    (name, text, how): (&'static str, &'static str, &'static str),
    unit: Unit,
    numbers: impl Iterator<Item = (Basis, u64)>,
) -> Figure {
    let mut figure = Figure { name, text, unit, seen: 0, estimated: 0, how };
    for (basis, number) in numbers {
        let part = match basis {
            Basis::Seen => &mut figure.seen,
            Basis::Estimated => &mut figure.estimated,
        };
        *part = part.saturating_add(number);
    }
    figure
}

/// The events of Epilogue in the time range, by program and reason.
pub(super) fn events(input: &Input) -> Vec<EventCount> {
    let range = input.from()..=input.now;
    let mut counts: Vec<EventCount> = Vec::new();
    let mut objects: Vec<(&'static str, &'static str, &About)> = Vec::new();
    let of_ours = input.events.kept.iter().filter(|event| event.writer != Writer::Kubernetes);
    for event in of_ours.filter(|event| range.contains(&event.at)) {
        let (program, reason) = (event.writer.program(), event.reason);
        objects.push((program, reason, &event.about));
        match counts.iter_mut().find(|it| (it.program, it.reason) == (program, reason)) {
            Some(count) => count.events = count.events.saturating_add(event.count),
            None => counts.push(EventCount { program, reason, events: event.count, objects: 0 }),
        }
    }
    objects.sort();
    objects.dedup();
    for count in &mut counts {
        let of = objects.iter().filter(|it| (it.0, it.1) == (count.program, count.reason));
        count.objects = of.count() as u64;
    }
    counts.sort_by_key(|count| (count.program, count.reason));
    counts
}

/// What the report cannot know.
pub(super) fn not_known(
    input: &Input,
    unclear: u64,
    before: u64,
    installed: Option<Installed>,
) -> Vec<Omission> {
    let mut all = Vec::new();
    let mut add = |code, text: String| all.push(Omission { code, text });
    let kinds = [
        (Kind::Pod, Code::PodsNotRead, "pods in the API, and the work of each"),
        (Kind::Job, Code::JobsNotRead, "Jobs that failed or wait"),
        (Kind::Node, Code::NodesNotRead, "nodes that are gone or do not report"),
        (Kind::Event, Code::EventsNotRead, "preemptions, boots, deleted pods, what Epilogue said"),
    ];
    for (kind, code, open) in kinds.into_iter().filter(|(kind, ..)| !input.read.contains(kind)) {
        add(code, format!("{} were not read; not known: {open}", kind.plural()));
    }
    if input.read.contains(&Kind::Event) {
        add(Code::EventsWindow, window(&input.events, input));
    }
    if before > 0 {
        add(
            Code::EventsWindow,
            format!(
                "events of Jobs count {before} further ends of pods without their times, perhaps \
                 of outside the time range; they are in no figure"
            ),
        );
    }
    if unclear > 0 {
        add(
            Code::EvictionCauseUnknown,
            format!(
                "{unclear} pods were evicted, and no message says whether the node was short or \
                 the pod exceeded its own limit; they are not counted"
            ),
        );
    }
    add(
        Code::PodsCollected,
        "a pod that was deleted or garbage collected leaves only its events and its Job's; its \
         work is in no figure"
            .to_owned(),
    );
    add(
        Code::JobsExpired,
        "a Job that was deleted, by its ttlSecondsAfterFinished or by its CronJob, is in no figure"
            .to_owned(),
    );
    for why in Metrics::not_included(&input.metrics) {
        add(Code::MetricsNotIncluded, format!("metrics are not included: {why}"));
    }
    if let Some(text) = phases(&input.metrics, installed) {
        add(Code::PhasesNotMeasured, text.to_owned());
    }
    all
}

/// Which phases of disruptions are in no metric because one of the two programs does not run.
fn phases(metrics: &Metrics, installed: Option<Installed>) -> Option<&'static str> {
    let installed = installed.filter(|_| metrics.is_read())?;
    let has_notice = metrics.times().iter().any(|it| it.phase == Phase::Notice.label());
    if installed.controllers == 0 {
        Some("no controller of Epilogue runs: how long disruptions took is measured in no phase")
    } else if installed.agents == 0 && !has_notice {
        Some(
            "no agent runs in a pod, so no end is announced: of how long disruptions took the \
             phase notice is absent, and marked is 0 unless a kubelet announces its shutdown",
        )
    } else {
        None
    }
}

fn window(events: &EventLog, input: &Input) -> String {
    let mut text = match events.oldest {
        Some(oldest) if oldest > input.from() => {
            let minutes = input.now.duration_since(oldest).as_mins().max(0);
            format!(
                "the oldest event is of {}, {minutes} min before the end of the report. What only \
                 events show is missing before that: kube-apiserver keeps them 1h by default \
                 (--event-ttl)",
                seconds(oldest)
            )
        }
        Some(oldest) => {
            format!("events go back to {}, beyond the beginning of the report", seconds(oldest))
        }
        None => "the API has no events; what only events show is missing".to_owned(),
    };
    if events.left_off > 0 {
        text = format!("{text}; {} further events were left out", events.left_off);
    }
    text
}
