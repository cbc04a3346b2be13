//! Checks the page of `kubectl epilogue report` in a real browser: its bars are where they should
//! be and have their colours, no text is cut off, and each can be read, in both themes.
//!
//! `cargo lab test report_page --all` installs the browser where it may.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};

/// Debian's browser without a screen, and others of the same flags.
const BROWSERS: [&str; 4] =
    ["chromium-headless-shell", "chromium", "google-chrome", "chrome-headless-shell"];
/// What WCAG 2.2 asks of text, and of the parts of a picture.
const TEXT_CONTRAST: f64 = 4.5;
const PART_CONTRAST: f64 = 3.0;

/// Writes what the page looks like into the page.
const MEASURE: &str = r#"<pre id="measured" hidden></pre><script>
const box = it => { const b = it.getBoundingClientRect();
  return {x: b.x, y: b.y, width: b.width, height: b.height} };
const all = list => [...document.querySelectorAll(list)];
const visible = it => it.getClientRects().length > 0 && it.textContent.trim() !== "";
const bars = all("svg rect.bar, svg rect[class^=k]").map(it => ({...box(it),
  fill: getComputedStyle(it).fill, title: it.textContent, timed: it.matches(".bar")}));
const texts = all("svg text").filter(visible).map(it => ({...box(it),
  title: it.firstChild.textContent, inside: box(it.ownerSVGElement),
  colour: getComputedStyle(it).fill, on: it.matches(".on")}));
const words = all("h1, h2, p, td, th, b, code, li").filter(visible).map(it => ({
  cut: it.scrollWidth > it.clientWidth + 1 && getComputedStyle(it).display !== "inline",
  title: it.textContent.slice(0, 60), colour: getComputedStyle(it).color}));
document.getElementById("measured").textContent = JSON.stringify({bars, texts, words,
  background: getComputedStyle(document.body).backgroundColor,
  width: document.documentElement.scrollWidth, window: innerWidth});
</script>"#;

/// Writes the colours of these points of a picture into the page.
const LOOK: &str = r#"<pre id="measured"></pre><img id="shot" src="SHOT"><script>
addEventListener("load", () => { const shot = document.getElementById("shot");
  const canvas = document.createElement("canvas");
  canvas.width = shot.naturalWidth; canvas.height = shot.naturalHeight;
  const context = canvas.getContext("2d"); context.drawImage(shot, 0, 0);
  document.getElementById("measured").textContent = JSON.stringify(POINTS.map(([x, y]) =>
    [...context.getImageData(x, y, 1, 1).data].slice(0, 3))); });
</script>"#;

#[derive(Debug, Deserialize)]
struct Measured {
    bars: Vec<Bar>,
    texts: Vec<Text>,
    words: Vec<Words>,
    background: String,
    width: f64,
    window: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

#[derive(Debug, Deserialize)]
struct Bar {
    #[serde(flatten)]
    area: Area,
    fill: String,
    title: String,
    /// Whether it is one of the bars over time.
    timed: bool,
}

#[derive(Debug, Deserialize)]
struct Text {
    #[serde(flatten)]
    area: Area,
    title: String,
    inside: Area,
    colour: String,
    /// Whether it is written on a bar.
    on: bool,
}

#[derive(Debug, Deserialize)]
struct Words {
    cut: bool,
    title: String,
    colour: String,
}

impl Area {
    fn is_inside(self, of: Self) -> bool {
        const ROUNDED: f64 = 1.0;
        self.x >= of.x - ROUNDED
            && self.y >= of.y - ROUNDED
            && self.x + self.width <= of.x + of.width + ROUNDED
            && self.y + self.height <= of.y + of.height + ROUNDED
    }

    fn overlaps(self, of: Self) -> bool {
        let apart = |a: f64, wide: f64, b: f64, other: f64| a + wide <= b || b + other <= a;
        !apart(self.x, self.width, of.x, of.width) && !apart(self.y, self.height, of.y, of.height)
    }
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let places = BROWSERS.iter().flat_map(|name| directories.iter().map(move |it| it.join(name)));
    places.into_iter().find(|path| path.is_file())
}

/// Opens a page in a theme; returns what the page then is.
fn open(browser: &Path, page: &Path, dark: bool, more: &[&str]) -> String {
    let profile = tempfile::tempdir().expect("must be creatable");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--allow-file-access-from-files", "--virtual-time-budget=20000"])
        .arg("--window-size=1200,3000")
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser must be startable");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a script of the page has written.
fn measured<T: serde::de::DeserializeOwned>(page: &str) -> T {
    let (_, rest) = page.split_once("<pre id=\"measured\"").expect("the script must be there");
    let (_, rest) = rest.split_once('>').expect("must be an element");
    let (text, _) = rest.split_once("</pre>").expect("must have an end");
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// `rgb(1, 2, 3)` as numbers.
fn colour(text: &str) -> [u8; 3] {
    let numbers = text.trim_start_matches("rgba(").trim_start_matches("rgb(").trim_end_matches(')');
    let numbers: Vec<u8> = numbers.split(", ").filter_map(|it| it.parse().ok()).collect();
    numbers[..3].try_into().expect("must have three parts")
}

/// The contrast of two colours, as WCAG 2.2 defines it.
fn contrast(one: [u8; 3], other: [u8; 3]) -> f64 {
    let part = |value: u8| {
        let value = f64::from(value) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    let light = |[red, green, blue]: [u8; 3]| {
        0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue)
    };
    let (one, other) = (light(one) + 0.05, light(other) + 0.05);
    one.max(other) / one.min(other)
}

/// An event of a Job about ends of one cause, the last ones in this hour.
fn event(job: &str, cause: &str, hour: u32, count: u32) -> Value {
    let at = |minute: u32| format!("2026-11-21T{hour:02}:{minute:02}:00Z");
    let end = |number: u32| {
        json!({"pod": format!("{job}-{cause}-{hour}-{number}"), "node": format!("n-{}", number % 3),
               "at": at(10 + number), "says": "pod <b>p</b> on n ended"})
    };
    let ends: Vec<Value> = (0..count.min(10)).map(end).collect();
    let own = ["ExitCode", "ContainerOOM", "StartFailed"];
    let reason = if own.contains(&cause) { "PodFailed" } else { "PodDisrupted" };
    json!({"kind": "Event", "apiVersion": "v1", "reason": reason, "count": count, "message": "m",
           "metadata": {"namespace": "work", "name": format!("{job}.{cause}.{hour}"),
                        "annotations": {
               "epilogue.dev/cause": cause, "epilogue.dev/counted": "Failed",
               "epilogue.dev/ends": json!(ends).to_string(),
               "epilogue.dev/nodes": json!({"n-0": count / 2, "n-1": count / 4}).to_string()}},
           "involvedObject": {"kind": "Job", "namespace": "work", "name": job, "uid": job},
           "source": {"component": "job-controller"},
           "firstTimestamp": at(1), "lastTimestamp": at(30)})
}

/// The page about nine causes in some hours, of Jobs with short and with the longest names.
fn page(directory: &Path) -> String {
    let long = "w".repeat(63);
    let items = [
        event("train", "EvictionByEvictionAPI", 3, 7),
        event("train", "PreemptionByScheduler", 3, 3),
        event("train", "TerminationByKubelet", 9, 1),
        event("import", "ExitCode", 5, 40),
        event("import", "ContainerOOM", 5, 8),
        event("import", "StartFailed", 11, 4),
        event(&long, "NodeGone", 11, 2),
        event(&long, "LostByNode", 12, 2),
        event(&long, "DeletionByTaintManager", 12, 30),
    ];
    let dump = directory.join("dump.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    std::fs::write(&dump, list.to_string()).expect("must be writable");
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .args(["report", "-o", "html", "--since=24h", "--at=2026-11-21T13:00:00Z", "-f"])
        .arg(&dump)
        .output()
        .expect("the program must be startable");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("must be UTF-8")
}

#[test]
fn rare_the_page_is_right_in_a_real_browser_in_both_themes() {
    let Some(browser) = browser() else {
        println!("not run: [no-browser] none of {} is installed", BROWSERS.join(", "));
        return;
    };
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().join("report.html");
    let text = page(directory.path()).replace("</body>", &format!("{MEASURE}</body>"));
    std::fs::write(&path, text).expect("must be writable");
    let mut backgrounds = Vec::new();
    for dark in [false, true] {
        let found: Measured = measured(&open(&browser, &path, dark, &["--dump-dom"]));
        assert_bars(&found);
        assert_texts(&found);
        let shot = directory.path().join(format!("dark-{dark}.png"));
        open(&browser, &path, dark, &[&format!("--screenshot={}", shot.display())]);
        assert_pixels(&browser, &shot, &found);
        backgrounds.push(colour(&found.background));
    }
    assert!(contrast(backgrounds[0], backgrounds[1]) > 15.0, "{backgrounds:?}");
}

/// The bars over time are as high as their numbers say.
fn assert_bars(found: &Measured) {
    let number = |bar: &Bar| {
        let (_, words) = bar.title.rsplit_once(": ").expect("must have a number");
        words.split(' ').next().and_then(|it| it.parse::<f64>().ok()).expect("must be a number")
    };
    let bars: Vec<&Bar> = found.bars.iter().filter(|bar| bar.timed).collect();
    let highest = bars.iter().max_by(|a, b| number(a).total_cmp(&number(b))).expect("bars");
    assert_eq!((bars.len(), number(highest)), (9, 40.0), "{bars:?}");
    for bar in &bars {
        let expected = highest.area.height * number(bar) / 40.0;
        assert!((bar.area.height - expected).abs() < 2.5, "{bar:?} of {highest:?}");
    }
    for (at, bar) in found.bars.iter().enumerate() {
        let others = found.bars[at + 1..].iter();
        let inner = |area: Area| Area { x: area.x + 0.5, width: area.width - 1.0, ..area };
        let hit = others.filter(|it| it.timed == bar.timed).find(|it| {
            let (mut one, mut other) = (inner(bar.area), inner(it.area));
            (one.height, other.height) = (one.height - 0.5, other.height - 0.5);
            one.overlaps(other)
        });
        assert!(hit.is_none(), "{bar:?} is under {hit:?}");
        let by = contrast(colour(&bar.fill), colour(&found.background));
        assert!(by >= PART_CONTRAST, "{by} of {bar:?}");
    }
}

/// No text is cut off, is on another one, or has little contrast.
fn assert_texts(found: &Measured) {
    assert!(found.width <= found.window, "{} of {}", found.width, found.window);
    let background = colour(&found.background);
    for (at, text) in found.texts.iter().enumerate() {
        assert!(text.area.is_inside(text.inside), "{text:?}");
        let hit = found.texts[at + 1..].iter().find(|it| it.area.overlaps(text.area));
        assert!(hit.is_none(), "{text:?} is on {hit:?}");
        let hit = found.bars.iter().find(|it| it.area.overlaps(text.area));
        assert!(text.on || hit.is_none(), "{text:?} is on {hit:?}");
        let by = contrast(colour(&text.colour), background);
        assert!(text.on || by >= TEXT_CONTRAST, "{by} of {text:?}");
    }
    assert!(found.texts.iter().any(|text| text.title.ends_with('…')), "{:?}", found.texts);
    assert!(found.words.len() > 50, "{:?}", found.words);
    for words in &found.words {
        let by = contrast(colour(&words.colour), background);
        assert!(!words.cut && by >= TEXT_CONTRAST, "{by} of {}", words.title);
    }
}

/// The screenshot has each bar's colour in the middle of the bar, and the page its background.
fn assert_pixels(browser: &Path, shot: &Path, found: &Measured) {
    let wide = found.bars.iter().filter(|bar| bar.area.width > 4.0 && bar.area.height > 4.0);
    let bars: Vec<&Bar> = wide.collect();
    assert!(bars.iter().filter(|bar| bar.timed).count() > 2, "{bars:?}");
    let middle = |bar: &&Bar| {
        let Area { x, y, width, height } = bar.area;
        ((x + width / 2.0).floor(), (y + height / 2.0).floor())
    };
    let mut points: Vec<(f64, f64)> = bars.iter().map(middle).collect();
    points.push((2.0, 2.0));
    let look = LOOK.replace("SHOT", &format!("file://{}", shot.display()));
    let look = look.replace("POINTS", &json!(points).to_string());
    let page = shot.with_extension("html");
    std::fs::write(&page, look).expect("must be writable");
    let seen: Vec<[u8; 3]> = measured(&open(browser, &page, false, &["--dump-dom"]));
    for (bar, seen) in bars.iter().zip(&seen) {
        assert_eq!(*seen, colour(&bar.fill), "{bar:?} in {}", shot.display());
    }
    assert_eq!(seen.last(), Some(&colour(&found.background)));
}
