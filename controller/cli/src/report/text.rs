//! Formats a report as text for a terminal.

use std::collections::BTreeMap;

use crate::report::rules::{
    AffectedJob, CauseEnds, DisruptedPod, DisruptionTime, Ends, Figure, Help, JobLostWork, Report,
    Unit,
};
use controller_core::job::plain;
use epilogue_common::finding_code::{DOCS, docs_line};
use jiff::Timestamp;

use crate::colour::Paint;

/// The text lists at most this many pods and Jobs and counts the rest.
const LISTED_MAX: usize = 20;
/// It lists at most this many causes of one Job, node or hour.
const CAUSES_MAX: usize = 4;
/// The most characters of what the controller's lease says.
const CONTROLLER_MAX: usize = 400;
/// The title of the Jobs with what they have lost.
const LOST_WORK: &str = "WORK LOST BY JOBS (ESTIMATED)";
/// What it says if there is nothing else.
pub(super) const NOTHING: &str =
    "nothing to report: no disrupted pods were found, and no Job's event tells how a pod ended";

/// The text of a report.
pub(super) fn text(report: &Report, paint: Paint) -> String {
    let mut lines = head(report);
    if is_empty(report) {
        lines.extend([String::new(), NOTHING.to_owned()]);
    }
    let of = |unit: Unit, is_code: bool| {
        let all = report.figures.iter().filter(move |it| it.unit == unit);
        all.filter(move |it| is_part(it) != is_code && (it.seen, it.estimated) != (0, 0))
    };
    let sections: [(&str, Vec<&Figure>); 4] = [
        ("DISRUPTED PODS", of(Unit::Pods, true).collect()),
        ("WITH EPILOGUE", of(Unit::Pods, false).collect()),
        ("JOBS", of(Unit::Jobs, true).collect()),
        ("TIME", of(Unit::Seconds, true).collect()),
    ];
    for (title, figures) in sections {
        lines.extend(table(title, &figures, paint));
    }
    lines.extend(causes(&report.ends, paint));
    ends(&mut lines, paint, &report.ends);
    if report.pods.is_empty() && report.ends.disruptions == 0 && !is_empty(report) {
        lines.extend([String::new(), "no disrupted pods were found".to_owned()]);
    }
    listed(&mut lines, paint, "PODS", report.pods.iter().map(pod));
    listed(&mut lines, paint, "JOBS IN DETAIL", report.jobs.iter().map(job));
    listed(&mut lines, paint, LOST_WORK, report.lost_work.iter().map(lost_work));
    lines.extend(disruption_times(&report.disruption_times, paint));
    let events = report
        .events
        .iter()
        .map(|it| format!("{} {}: {} (objects: {})", it.program, it.reason, it.events, it.objects));
    listed(&mut lines, paint, "EVENTS OF EPILOGUE", events);
    let metrics = report.metrics.iter().map(|it| {
        let labels = &it.labels;
        format!(
            "{}{{{labels}}}: {} since the start (processes: {})",
            it.metric, it.value, it.processes
        )
    });
    listed(&mut lines, paint, "METRICS OF EPILOGUE", metrics);
    lines.push(String::new());
    let not_known = report.not_known.iter();
    lines.extend(not_known.map(|it| format!("not known: {}  [{}]", it.text, it.code)));
    lines.extend([
        String::new(),
        docs_line(),
        format!(
            "how each number came about: -o json, or {}",
            DOCS.replace("troubleshooting", "report")
        ),
    ]);
    lines.join("\n")
}

/// Whether there is nothing but what is not known.
pub(super) fn is_empty(report: &Report) -> bool {
    report.pods.is_empty()
        && report.jobs.is_empty()
        && report.nodes.is_empty()
        && report.ends.total == 0
}

/// A sentence with a capital at its beginning.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// How ends of one cause counted.
pub(super) fn counted(ends: &CauseEnds) -> String {
    let each = ends.counted.iter().map(|(counted, number)| format!("{number} {counted}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The causes, with how many ends each has.
fn causes(ends: &Ends, paint: Paint) -> Vec<String> {
    const TITLE: &str = "HOW PODS ENDED";
    let rows = || ends.by_cause.iter().take(LISTED_MAX);
    if ends.total == 0 {
        return Vec::new();
    }
    let width = rows().map(|it| it.cause.chars().count()).max().unwrap_or(0).max(TITLE.len());
    let titles = format!("{TITLE:width$}  {:>8}  COUNTED AS", "ENDS");
    let mut lines = vec![String::new(), paint.title(&titles)];
    lines.extend(rows().map(|it| {
        let line = format!("{:width$}  {:>8}  {}", it.cause, it.ends, counted(it));
        line.trim_end().to_owned()
    }));
    let more = ends.by_cause.len().saturating_sub(LISTED_MAX);
    lines.extend((more > 0).then(|| format!("… and {more} more causes (-o json lists all)")));
    lines
}

/// The worst Jobs and nodes, and the hours.
fn ends(lines: &mut Vec<String>, paint: Paint, ends: &Ends) {
    let jobs = ends.by_job.iter().map(|it| {
        format!("{}/{}: {}, {}", it.namespace, it.name, number(it.ends), by_cause(&it.causes))
    });
    listed(lines, paint, "WORST JOBS", jobs);
    let nodes = ends.by_node.iter().map(|it| {
        let node = it.node.as_deref().unwrap_or("node not known");
        format!("{node}: {}, {}", number(it.ends), by_cause(&it.causes))
    });
    listed(lines, paint, "WORST NODES", nodes);
    let mut hours: BTreeMap<Timestamp, BTreeMap<String, u64>> = BTreeMap::new();
    for it in &ends.by_hour {
        hours.entry(it.at).or_default().insert(it.cause.clone(), it.ends);
    }
    let hours: Vec<String> = hours
        .iter()
        .rev()
        .map(|(at, causes)| format!("{}: {}", time(*at), by_cause(causes)))
        .collect();
    listed(lines, paint, "HOURS, LATEST FIRST", hours.into_iter());
    let between = ends
        .between
        .iter()
        .map(|it| format!("{} to {}: {} {}", time(it.from), time(it.to), it.ends, it.cause));
    listed(lines, paint, "AT A TIME BETWEEN", between);
}

fn number(ends: u64) -> String {
    if ends == 1 { "1 end".to_owned() } else { format!("{ends} ends") }
}

/// The most frequent causes, with their numbers.
fn by_cause(causes: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<_> = causes.iter().collect();
    all.sort_by_key(|(_, ends)| std::cmp::Reverse(**ends));
    let shown = all.iter().take(CAUSES_MAX).map(|(cause, ends)| format!("{ends} {cause}"));
    let more = all.len().saturating_sub(CAUSES_MAX);
    let plural = if more == 1 { "" } else { "s" };
    let more = (more > 0).then(|| format!("{more} more cause{plural}"));
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

/// The first lines: time range, and what runs.
fn head(report: &Report) -> Vec<String> {
    let where_ = report
        .namespace
        .as_ref()
        .map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
    let range = format!("Disruptions from {} to {}, {where_}", time(report.from), time(report.to));
    vec![range, installed(report)].into_iter().chain(controller(report)).collect()
}

/// How the controller runs, as its lease says.
pub(super) fn controller(report: &Report) -> Option<String> {
    let runs = report.controller.as_ref()?;
    if let Some(idle) = &runs.idle {
        return Some(format!("{}.", capital(idle)));
    }
    let version = runs.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let jobs = match runs.manage_all_jobs {
        Some(true) => "runs all Jobs without spec.managedBy too",
        Some(false) => "runs the Jobs that name it in spec.managedBy",
        None => "does not say which Jobs it runs",
    };
    let pods = match runs.mode.as_deref() {
        Some("observe") => ", and writes nothing of pod GC (--pod-gc=observe)",
        Some("off") => ", and runs no pod GC (--pod-gc=off)",
        _ => "",
    };
    let scope = match &runs.namespaces[..] {
        [] => String::new(),
        names => format!(", in {} alone", names.join(", ")),
    };
    let says = format!("The controller{version} {jobs}{pods}{scope}.");
    Some(plain(&says, CONTROLLER_MAX))
}

/// Which programs of Epilogue run, and whether they acted.
pub(super) fn installed(report: &Report) -> String {
    let Some(found) = report.installed else {
        return "One namespace was read: whether Epilogue runs is not known.".to_owned();
    };
    if found.agents + found.controllers == 0 {
        if report.ends.by_cause.iter().any(|it| !it.counted.is_empty()) {
            return "No pod of Epilogue runs, but events of its controller are there.".to_owned();
        }
        return "No pod of Epilogue runs. What follows is Kubernetes' own work.".to_owned();
    }
    let acted = report.pods.iter().filter(|pod| pod.epilogue == Help::Acted).count();
    let (agents, controllers) = (found.agents, found.controllers);
    format!(
        "Epilogue runs (agents: {agents}, controllers: {controllers}). Pods that it acted on: \
         {acted}."
    )
}

/// Whether a figure counts what Epilogue has to do with pods.
pub(super) fn is_part(figure: &Figure) -> bool {
    figure.name.starts_with("epilogue-")
}

fn table(title: &str, figures: &[&Figure], paint: Paint) -> Vec<String> {
    if figures.is_empty() {
        return Vec::new();
    }
    let width = figures.iter().map(|it| it.text.len()).max().unwrap_or(0).max(title.len());
    let titles = format!("{title:width$}  {:>8}  {:>9}", "SEEN", "ESTIMATED");
    let mut lines = vec![String::new(), paint.title(&titles)];
    lines.extend(figures.iter().map(|figure| {
        let (seen, estimated) = (amount(figure, figure.seen), amount(figure, figure.estimated));
        let line = format!("{:width$}  {seen:>8}  {estimated:>9}", figure.text);
        let has_code = figure.unit != Unit::Seconds && !is_part(figure);
        if has_code { format!("{line}  [{}]", figure.name) } else { line }
    }));
    lines
}

/// A number of a figure in its unit.
pub(super) fn amount(figure: &Figure, number: u64) -> String {
    if figure.unit == Unit::Seconds { duration(number) } else { number.to_string() }
}

fn listed(
    lines: &mut Vec<String>,
    paint: Paint,
    title: &str,
    items: impl ExactSizeIterator<Item = String>,
) {
    let number = items.len();
    if number == 0 {
        return;
    }
    lines.extend([String::new(), paint.title(title)]);
    lines.extend(items.take(LISTED_MAX));
    if number > LISTED_MAX {
        lines.push(format!("… and {} more (-o json lists all)", number - LISTED_MAX));
    }
}

fn pod(pod: &DisruptedPod) -> String {
    let at = pod.at.map_or_else(|| "-".to_owned(), time);
    let waited = pod.waited_seconds.map(|seconds| format!(", {} ago", duration(seconds)));
    let node = pod.node.as_deref().unwrap_or("-");
    format!(
        "{at}  {}/{} on {node}: {}{}  [{}]\n  -> {}",
        pod.namespace,
        pod.name,
        one_line(&pod.how),
        waited.unwrap_or_default(),
        pod.code,
        part(pod.epilogue, &pod.epilogue_how)
    )
}

fn lost_work(job: &JobLostWork) -> String {
    let name = one_line(&format!("{}/{}", job.namespace, job.name));
    let plural = if job.pods == 1 { "" } else { "s" };
    format!("{name}: {} in {} pod{plural}", duration(job.seconds), job.pods)
}

/// How long disruptions took until each phase, a row for each source and phase.
fn disruption_times(times: &[DisruptionTime], paint: Paint) -> Vec<String> {
    if times.is_empty() {
        return Vec::new();
    }
    let row = |cells: [&str; 6]| {
        let [source, phase, count, mean, half, most] = cells;
        format!("{source:25}  {phase:8}  {count:>8}  {mean:>8}  {half:>11}  {most:>11}")
    };
    let titles =
        ["HOW LONG DISRUPTIONS TOOK", "PHASE", "COUNT", "MEAN", "P50 AT MOST", "P99 AT MOST"];
    let rows = times.iter().map(|it| {
        let (count, mean) = (it.count.to_string(), fine(it.mean_seconds));
        row([
            it.source,
            it.phase,
            &count,
            &mean,
            &at_most(it.p50_at_most),
            &at_most(it.p99_at_most),
        ])
    });
    [String::new(), paint.title(&row(titles))].into_iter().chain(rows).collect()
}

/// The bound of a percentile, if it has one.
pub(super) fn at_most(bound: Option<f64>) -> String {
    bound.map_or_else(|| "longer".to_owned(), fine)
}

/// A duration that may be short.
pub(super) fn fine(seconds: f64) -> String {
    let places = if seconds < 10.0 { 2 } else { 1 };
    let text = format!("{seconds:.places$}");
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn job(job: &AffectedJob) -> String {
    let at = job.at.map_or_else(|| "-".to_owned(), time);
    let (name, how) = (format!("{}/{}", job.namespace, job.name), one_line(&job.how));
    format!("{at}  {name}: {how}  [{}]\n  -> {}", job.code, part(job.epilogue, &job.epilogue_how))
}

/// What Epilogue has to do with it, and why.
pub(super) fn part(help: Help, how: &str) -> String {
    let words = match help {
        Help::Acted => "Epilogue acted",
        Help::WouldHaveActed => "Epilogue would act",
        Help::Nothing => "Epilogue would not change it",
        Help::NotNeeded => "no part of Epilogue",
    };
    format!("{words}: {}", one_line(how))
}

/// A text without control characters, which a terminal would carry out.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// A time as the API writes it.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A duration in the unit that gives two digits.
pub(super) fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        _ => format!("{}.{}h", seconds / 3_600, seconds % 3_600 / 360),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let table = [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (9_000, "2.5h")];
        for (seconds, expected) in table {
            assert_eq!(duration(seconds), expected);
        }
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(one_line("a\u{1b}[31m\nb"), "a [31m b");
    }
}
