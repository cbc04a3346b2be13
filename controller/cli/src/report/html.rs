//! Renders a report as one HTML file, without any reference to another.

use std::fmt::Write as _;

use crate::report::rules::{Basis, Figure, Help, Report, Unit};

use super::ends_picture;
use super::picture::{GROUPS, bar, escaped, timeline};
use super::text::{
    NOTHING, amount, at_most, capital, controller, counted, duration, fine, installed, is_empty,
    is_part, part, time,
};

/// Rows of a table; JSON has all.
const ROWS_MAX: usize = 500;

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;\
--missing:#b42318;--uncaused:#b35900;--reported:#1a7f37;--event:#6e40c9;\
--k0:#0969da;--k1:#bc4c00;--k2:#1a7f37;--k3:#8250df;\
--k4:#bf3989;--k5:#9a6700;--k6:#0e7490;--k7:#6e7781}\
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9198a1;--line:#3d444d;\
--card:#151b23;--missing:#ff7b72;--uncaused:#e3a04a;--reported:#56d364;--event:#bc8cff;\
--k0:#58a6ff;--k1:#f0883e;--k2:#3fb950;--k3:#bc8cff;\
--k4:#f778ba;--k5:#d29922;--k6:#39c5cf;--k7:#8b949e}}\
*{box-sizing:border-box}\
body{margin:0 auto;max-width:70rem;padding:1.5rem;background:var(--bg);color:var(--fg);\
font:15px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
p{margin:.25rem 0;overflow-wrap:anywhere}.soft{color:var(--soft)}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.75rem;\
margin:1rem 0}\
.card{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.75rem}\
.card b{display:block;font-size:1.6rem}\
table{border-collapse:collapse;width:100%;font-size:.875rem}\
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;\
border-bottom:1px solid var(--line);overflow-wrap:anywhere}td:first-child code{display:block}\
td.n,th.n{text-align:right}td.n,th.n,td.t{white-space:nowrap}code{font-size:.85em}\
svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--soft)}\
svg text.on{fill:var(--bg);font-weight:600}\
.missing{fill:var(--missing)}.uncaused{fill:var(--uncaused)}.reported{fill:var(--reported)}\
.event{fill:var(--event)}.faint{opacity:.55}\
.k0{fill:var(--k0);background:var(--k0)}.k1{fill:var(--k1);background:var(--k1)}\
.k2{fill:var(--k2);background:var(--k2)}.k3{fill:var(--k3);background:var(--k3)}\
.k4{fill:var(--k4);background:var(--k4)}.k5{fill:var(--k5);background:var(--k5)}\
.k6{fill:var(--k6);background:var(--k6)}.k7{fill:var(--k7);background:var(--k7)}\
.bar{stroke:var(--bg)}.keys span{display:inline-block;margin-right:1em}.keys .key{margin-left:0}\
.grid{stroke:var(--line)}\
.key{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 1em}\
.key.missing{background:var(--missing)}.key.uncaused{background:var(--uncaused)}\
.key.reported{background:var(--reported)}.key.event{background:var(--event)}\
@media print{:root{--bg:#fff;--fg:#000;--soft:#444;--line:#bbb;--card:#fff;--missing:#b42318;\
--uncaused:#b35900;--reported:#1a7f37;--event:#6e40c9;\
--k0:#0969da;--k1:#bc4c00;--k2:#1a7f37;--k3:#8250df;\
--k4:#bf3989;--k5:#9a6700;--k6:#0e7490;--k7:#6e7781}body{max-width:none;padding:0}\
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}tr,.card,svg{break-inside:avoid}}";

/// The page.
pub(super) fn page(report: &Report) -> String {
    let range = format!("{} to {}", time(report.from), time(report.to));
    let scope = report.namespace.as_deref().unwrap_or("all namespaces");
    let runs: Vec<String> = [installed(report)].into_iter().chain(controller(report)).collect();
    let runs = runs.join(" ");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Disruptions, {range}</title><style>{STYLE}</style></head><body>\n\
         <h1>Disruptions</h1><p class=\"soft\">{range} · {}</p><p>{}</p>\n",
        escaped(scope),
        escaped(&runs)
    );
    if is_empty(report) {
        let _ = writeln!(page, "<p>{}.</p>", capital(NOTHING));
    } else {
        page += &found(report);
    }
    page += &disruption_times(report);
    page += &epilogue(report);
    page += "<h2>Not known</h2><ul>";
    for each in &report.not_known {
        let _ = write!(page, "<li>{} <code>{}</code></li>", escaped(&each.text), each.code);
    }
    page + "</ul></body></html>"
}

/// What there is to report.
fn found(report: &Report) -> String {
    let mut page = cards(report);
    page += &ends(report);
    if report.pods.is_empty() {
        if report.ends.disruptions == 0 {
            page += "<p>No disrupted pods were found.</p>\n";
        }
    } else {
        page += "<h2>What became of the disrupted pods</h2>\n";
        page += &bar(report);
        page += &legend(false);
    }
    if !report.pods.is_empty() || !report.nodes.is_empty() {
        page += "<h2>Disruptions of each node</h2>\n";
        page += &timeline(report);
        page += &legend(true);
    }
    page + &figures(report) + &pods(report) + &jobs(report) + &lost_work(report)
}

/// How pods ended: over time, the worst Jobs and nodes, and the causes as a table.
fn ends(report: &Report) -> String {
    let ends = &report.ends;
    if ends.total == 0 {
        return String::new();
    }
    let colours = ends_picture::colours(ends);
    let mut page = "<h2>How pods ended</h2>\n".to_owned();
    page += &ends_picture::timeline(report, &colours);
    page += &ends_picture::legend(&colours);
    let untimed = ends.between.iter().fold(0_u64, |sum, it| sum.saturating_add(it.ends));
    if untimed > 0 {
        let _ = writeln!(
            page,
            "<p class=\"soft\">{untimed} ends are in no bar: events count them between two times \
             and do not say when.</p>"
        );
    }
    let jobs = ends.by_job.iter().map(|it| (format!("{}/{}", it.namespace, it.name), &it.causes));
    page += &ends_picture::worst("Worst Jobs", jobs, &colours);
    let nodes = ends
        .by_node
        .iter()
        .map(|it| (it.node.clone().unwrap_or_else(|| "node not known".to_owned()), &it.causes));
    page += &ends_picture::worst("Worst nodes", nodes, &colours);
    let rows = ends.by_cause.iter().map(|it| {
        let kind = if it.disruption { "disruption" } else { "failure" };
        format!(
            "<tr><td><code>{}</code></td><td>{kind}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            escaped(&it.cause),
            it.ends,
            escaped(&counted(it))
        )
    });
    let titles = "<th>cause</th><th>kind</th><th class=\"n\">ends</th><th>counted as</th>";
    page + &table("Causes", titles, rows)
}

/// The figures that say most.
fn cards(report: &Report) -> String {
    let add = u64::saturating_add;
    let sum = |names: &dyn Fn(&Figure) -> bool| {
        let all = report.figures.iter().filter(|it| names(it));
        all.fold((0, 0), |(seen, estimated), it| (add(seen, it.seen), add(estimated, it.estimated)))
    };
    let missing = sum(&|it| it.name.starts_with("status-missing-"));
    let uncaused = sum(&|it| it.name == "failure-without-disruption-target");
    let jobs = sum(&|it| it.name == "job-failed-by-disruptions");
    let would = sum(&|it| it.name == "epilogue-would-have-acted");
    let acted = sum(&|it| it.name == "epilogue-acted");
    let waited = sum(&|it| it.name == "waited");
    let all = [
        ("ends of pods", (report.ends.total, 0), Unit::Pods),
        ("of them disruptions", (report.ends.disruptions, 0), Unit::Pods),
        ("pods without a terminal phase", missing, Unit::Pods),
        ("failures without their cause", uncaused, Unit::Pods),
        ("Jobs that failed by it", jobs, Unit::Jobs),
        ("pods have waited", waited, Unit::Seconds),
        ("pods that Epilogue would act on", would, Unit::Pods),
        ("pods that Epilogue acted on", acted, Unit::Pods),
    ];
    let mut out = "<div class=\"cards\">".to_owned();
    for (words, (seen, estimated), unit) in all.into_iter().filter(|it| it.1 != (0, 0)) {
        let show =
            |number| if unit == Unit::Seconds { duration(number) } else { number.to_string() };
        let _ = write!(
            out,
            "<div class=\"card\"><b>{}</b>{words}<br><span class=\"soft\">{} seen, {} \
             estimated</span></div>",
            show(add(seen, estimated)),
            show(seen),
            show(estimated)
        );
    }
    out + "</div>\n"
}

fn legend(with_events: bool) -> String {
    let mut out = "<p class=\"soft\">".to_owned();
    for (class, words) in GROUPS {
        let _ = write!(out, "<span class=\"key {class}\"></span>{words}");
    }
    out += if with_events {
        "<span class=\"key event\"></span>event of the node"
    } else {
        "; the paler part is estimated"
    };
    out + "</p>\n"
}

fn figures(report: &Report) -> String {
    let rows = report.figures.iter().filter(|it| (it.seen, it.estimated) != (0, 0)).map(|figure| {
        let code = figure.unit != Unit::Seconds && !is_part(figure);
        let code = if code { format!(" <code>{}</code>", figure.name) } else { String::new() };
        format!(
            "<tr><td>{}{code}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"soft\">{}</td></tr>",
            escaped(figure.text),
            amount(figure, figure.seen),
            amount(figure, figure.estimated),
            escaped(figure.how)
        )
    });
    table(
        "Figures",
        "<th>what</th><th class=\"n\">seen</th><th class=\"n\">estimated</th><th>how</th>",
        rows,
    )
}

fn pods(report: &Report) -> String {
    let rows = report.pods.iter().map(|pod| {
        let at = pod.at.map_or_else(|| "–".to_owned(), time);
        let waited = pod.waited_seconds.map(duration).unwrap_or_default();
        format!(
            "<tr><td class=\"t\">{at}</td><td>{}/{}<br><span class=\"soft\">{}</span></td>\
             <td><code>{}</code><br>{}{}</td><td class=\"n\">{waited}</td><td>{}</td></tr>",
            escaped(&pod.namespace),
            escaped(&pod.name),
            escaped(pod.node.as_deref().unwrap_or("node not known")),
            pod.code,
            escaped(&pod.how),
            basis(pod.basis),
            escaped(&part(pod.epilogue, &pod.epilogue_how)),
        )
    });
    let titles = "<th>when</th><th>pod</th><th>what</th><th class=\"n\">waits for</th>\
                  <th>Epilogue</th>";
    table("Pods", titles, rows)
}

fn jobs(report: &Report) -> String {
    let rows = report.jobs.iter().map(|job| {
        let at = job.at.map_or_else(|| "–".to_owned(), time);
        format!(
            "<tr><td class=\"t\">{at}</td><td>{}/{}</td><td><code>{}</code><br>{}{}</td>\
             <td>{}</td></tr>",
            escaped(&job.namespace),
            escaped(&job.name),
            job.code,
            escaped(&job.how),
            basis(job.basis),
            escaped(&part(job.epilogue, &job.epilogue_how)),
        )
    });
    table("Jobs", "<th>when</th><th>Job</th><th>what</th><th>Epilogue</th>", rows)
}

/// What each Job has lost.
fn lost_work(report: &Report) -> String {
    let rows = report.lost_work.iter().map(|job| {
        format!(
            "<tr><td>{}/{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escaped(&job.namespace),
            escaped(&job.name),
            job.pods,
            duration(job.seconds)
        )
    });
    let titles = "<th>Job</th><th class=\"n\">pods</th><th class=\"n\">they had run</th>";
    table("Work lost by Jobs (estimated)", titles, rows)
}

/// How long disruptions took until each phase.
fn disruption_times(report: &Report) -> String {
    let rows = report.disruption_times.iter().map(|it| {
        format!(
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            it.source,
            it.phase,
            it.count,
            fine(it.mean_seconds),
            at_most(it.p50_at_most),
            at_most(it.p99_at_most)
        )
    });
    let titles = "<th>source</th><th>phase</th><th class=\"n\">count</th><th class=\"n\">mean</th>\
                  <th class=\"n\">half of them at most</th><th class=\"n\">99 of 100 at most</th>";
    table("How long disruptions took since the controller started", titles, rows)
}

fn basis(basis: Basis) -> &'static str {
    match basis {
        Basis::Seen => "",
        Basis::Estimated => " <em>(estimated)</em>",
    }
}

/// Events and metrics of Epilogue's own programs.
fn epilogue(report: &Report) -> String {
    let events = report.events.iter().map(|it| {
        format!(
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            it.program, it.reason, it.events, it.objects
        )
    });
    let titles = "<th>program</th><th>reason</th><th class=\"n\">events</th>\
                  <th class=\"n\">objects</th>";
    let mut out = table("Events of Epilogue", titles, events);
    let metrics = report.metrics.iter().map(|it| {
        format!(
            "<tr><td>{}</td><td><code>{}{{{}}}</code></td><td class=\"n\">{}</td></tr>",
            it.program,
            it.metric,
            escaped(&it.labels),
            it.value
        )
    });
    let titles = "<th>program</th><th>metric</th><th class=\"n\">since the start</th>";
    out += &table("Metrics of Epilogue", titles, metrics);
    if report.pods.iter().any(|pod| pod.epilogue == Help::Nothing) {
        out += "<p class=\"soft\">Epilogue changes what is reported, and when. It does not bring \
                back the work of a pod that was terminated.</p>\n";
    }
    out
}

fn table(title: &str, titles: &str, rows: impl Iterator<Item = String>) -> String {
    let rows: Vec<String> = rows.collect();
    let number = rows.len();
    if number == 0 {
        return String::new();
    }
    let mut out = format!("<h2>{title}</h2><table><thead><tr>{titles}</tr></thead><tbody>\n");
    for row in rows.iter().take(ROWS_MAX) {
        out += row;
        out.push('\n');
    }
    out += "</tbody></table>\n";
    if number > ROWS_MAX {
        let more = number - ROWS_MAX;
        let _ = writeln!(out, "<p class=\"soft\">… and {more} more; -o json lists all.</p>");
    }
    out
}
