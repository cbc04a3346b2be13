//! Renders dashboards in Grafana's JSON, from a title, variables and a table of panels.

use serde::Serialize;
use serde_json::{Value, json};

/// The schema of Grafana 12. Later versions migrate it when they load the dashboard.
const SCHEMA_VERSION: u32 = 41;

/// Columns of Grafana's grid.
const COLUMNS: usize = 24;
/// Width and height of a number.
const NUMBER: (usize, usize) = (6, 4);
/// Width and height of a graph.
const GRAPH: (usize, usize) = (12, 8);

/// What a panel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// The last value of each query.
    Number,
    /// The name of the series whose value is 1.
    Name,
    /// Values over time.
    Graph,
}

/// A panel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    pub(super) shows: Shows,
    pub(super) title: &'static str,
    /// What it means, in the panel's corner.
    pub(super) about: &'static str,
    /// Grafana's name of the unit.
    pub(super) unit: &'static str,
    /// Expressions and legends.
    pub(super) queries: &'static [(&'static str, &'static str)],
}

/// A variable that is chosen from the values of a label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// A metric that has the label, perhaps with matchers.
    pub(super) of: &'static str,
    pub(super) label: &'static str,
    /// Whether several values, or all, may be chosen.
    pub(super) many: bool,
}

/// A dashboard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dashboard {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) variables: &'static [Variable],
    pub(super) panels: &'static [Panel],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Model {
    uid: String,
    title: &'static str,
    description: &'static str,
    tags: [&'static str; 1],
    schema_version: u32,
    editable: bool,
    graph_tooltip: u32,
    refresh: &'static str,
    time: Time,
    timezone: &'static str,
    templating: Templating,
    panels: Vec<PanelModel>,
}

#[derive(Serialize)]
struct Time {
    from: &'static str,
    to: &'static str,
}

#[derive(Serialize)]
struct Templating {
    list: Vec<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PanelModel {
    id: usize,
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    description: &'static str,
    datasource: Value,
    grid_pos: GridPos,
    field_config: Value,
    options: Value,
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Serialize)]
struct GridPos {
    h: usize,
    w: usize,
    x: usize,
    y: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    ref_id: String,
    datasource: Value,
    expr: &'static str,
    legend_format: &'static str,
}

impl Dashboard {
    /// The file's name without its ending.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The file's content.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let positions = positions(self.panels);
        let panels = self.panels.iter().zip(positions).enumerate();
        let list = [source_variable()].into_iter().chain(self.variables.iter().map(variable));
        let model = Model {
            uid: format!("epilogue-{}", self.name),
            title: self.title,
            description: self.about,
            tags: ["epilogue"],
            schema_version: SCHEMA_VERSION,
            editable: true,
            // A shared crosshair.
            graph_tooltip: 1,
            refresh: "1m",
            time: Time { from: "now-6h", to: "now" },
            timezone: "browser",
            templating: Templating { list: list.collect() },
            panels: panels.map(|(at, (panel, place))| panel.model(at + 1, place)).collect(),
        };
        serde_json::to_string_pretty(&model).map(|text| text + "\n")
    }
}

impl Panel {
    fn size(&self) -> (usize, usize) {
        if self.shows == Shows::Graph { GRAPH } else { NUMBER }
    }

    fn model(&self, id: usize, grid_pos: GridPos) -> PanelModel {
        let kind = if self.shows == Shows::Graph { "timeseries" } else { "stat" };
        let options = match self.shows {
            Shows::Graph => json!({"legend": {"displayMode": "list", "placement": "bottom"},
                                   "tooltip": {"mode": "multi", "sort": "desc"}}),
            shows => json!({"reduceOptions": {"calcs": ["lastNotNull"]},
                            "graphMode": "none",
                            "textMode": if shows == Shows::Name { "name" } else { "auto" }}),
        };
        // No figure here is below 0.
        let custom = json!({"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"});
        let mut defaults = json!({"unit": self.unit, "color": {"mode": "palette-classic"}});
        if self.shows == Shows::Graph {
            defaults["min"] = 0.into();
            defaults["custom"] = custom;
        }
        let targets = self.queries.iter().enumerate().map(|(at, (expr, legend_format))| Target {
            ref_id: ref_id(at),
            datasource: datasource(),
            expr,
            legend_format,
        });
        PanelModel {
            id,
            kind,
            title: self.title,
            description: self.about,
            datasource: datasource(),
            grid_pos,
            field_config: json!({"defaults": defaults, "overrides": []}),
            options,
            targets: targets.collect(),
        }
    }
}

/// The queries of a panel are called A, B, and so on.
fn ref_id(at: usize) -> String {
    let letter = u8::try_from(at).ok().and_then(|at| b'A'.checked_add(at));
    char::from(letter.unwrap_or(b'Z')).to_string()
}

/// Places panels from left to right; a panel that does not fit begins the next line.
fn positions(panels: &[Panel]) -> Vec<GridPos> {
    let (mut x, mut y, mut height) = (0, 0, 0);
    let place = |panel: &Panel| {
        let (w, h) = panel.size();
        if x + w > COLUMNS || height != 0 && height != h {
            (x, y) = (0, y + height);
        }
        let place = GridPos { h, w, x, y };
        (x, height) = (x + w, h);
        place
    };
    panels.iter().map(place).collect()
}

/// The source that the variable `datasource` selects.
fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn source_variable() -> Value {
    json!({"name": "datasource", "label": "Data source", "type": "datasource",
           "query": "prometheus", "refresh": 1})
}

fn variable(variable: &Variable) -> Value {
    let Variable { name, of, label, many } = variable;
    let query = format!("label_values({of}, {label})");
    let mut made = json!({"name": name, "label": name, "type": "query",
        "datasource": datasource(), "definition": query,
        "query": {"query": query, "refId": "Variable"},
        // With each change of the time range: nodes come and go.
        "refresh": 2, "sort": 1, "multi": many, "includeAll": many});
    if *many {
        // A metric that never had a value has no label either.
        made["allValue"] = ".*".into();
        made["current"] = json!({"text": ["All"], "value": ["$__all"]});
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn panel(shows: Shows) -> Panel {
        Panel { shows, title: "T", about: "A.", unit: "s", queries: &[("up", "a"), ("up", "b")] }
    }

    #[test]
    fn panels_fill_lines_and_never_overlap() {
        let (number, graph) = (panel(Shows::Number), panel(Shows::Graph));
        let panels = [number, number, number, number, number, graph, graph, graph];
        let places: Vec<_> = positions(&panels).iter().map(|it| (it.x, it.y)).collect();
        let numbers = [(0, 0), (6, 0), (12, 0), (18, 0), (0, 4)];
        assert_eq!(places, [&numbers[..], &[(0, 8), (12, 8), (0, 16)]].concat());
    }

    #[test]
    fn each_query_has_an_id_of_its_own_and_the_chosen_source() {
        let model = panel(Shows::Graph).model(1, GridPos { h: 1, w: 1, x: 0, y: 0 });
        let model = serde_json::to_value(model).expect("must be written");
        assert_eq!(model["targets"][0]["refId"], "A");
        assert_eq!(model["targets"][1]["refId"], "B");
        assert_eq!(model["targets"][1]["datasource"]["uid"], "${datasource}");
    }
}
