//! Lists the cells of the pages: which ways to end are shown, and with what installed. Pure.

use serde::{Deserialize, Serialize};

use super::case::{Case, JobController, Kubelet, Scenario};
use crate::vm::agent::Install;

/// One cell of the pages' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// How the node ends.
    pub scenario: Scenario,
    /// Whether the kubelet's own graceful shutdown is on.
    pub graceful: bool,
    /// What is installed.
    pub column: Column,
}

/// What is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Nothing of ours; the Jobs are kube-controller-manager's.
    Today,
    /// The agent as a service of the host, with its defaults; the Jobs are
    /// kube-controller-manager's.
    Agent,
    /// The chart with its defaults: the agent as a DaemonSet, and our controller, which runs the
    /// Jobs.
    Release,
    /// The same as `Agent`, but it may also terminate bare pods.
    BarePods,
}

/// The flag of [`Column::BarePods`].
pub(super) const BARE_PODS: [&str; 1] = ["--bare-pods=deadline-lever"];

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) scenario: Scenario,
    pub(super) graceful: bool,
    /// How the node ends, in words.
    pub(super) words: &'static str,
}

const fn row(scenario: Scenario, graceful: bool, words: &'static str) -> Row {
    Row { scenario, graceful, words }
}

pub(super) const PLANNED: [Row; 4] = [
    row(Scenario::Poweroff, false, "power-off"),
    row(Scenario::Poweroff, true, "power-off"),
    row(Scenario::Reboot, false, "reboot"),
    row(Scenario::Reboot, true, "reboot"),
];

pub(super) const BROKEN: [Row; 7] = [
    row(Scenario::AgentKilled, false, "reboot; the agent is killed by SIGKILL in the middle"),
    row(Scenario::AgentKilled, true, "reboot; the agent is killed by SIGKILL in the middle"),
    row(Scenario::KubeletStopped, false, "power-off; the kubelet is stopped in the middle"),
    row(Scenario::KubeletStopped, true, "power-off; the kubelet is stopped in the middle"),
    row(Scenario::Forgotten, false, "logind restarts and forgets the shutdown"),
    row(Scenario::Forgotten, true, "logind restarts and forgets the shutdown"),
    row(Scenario::Refused, true, "the target of the shutdown cannot start any more"),
];

pub(super) const UNPLANNED: [Row; 4] = [
    row(Scenario::PowerCut, false, "power cut, and the power comes back"),
    row(Scenario::PowerCutDuring, false, "power cut in the middle of a shutdown; it comes back"),
    row(Scenario::PowerCutDuring, true, "power cut in the middle of a shutdown; it comes back"),
    row(Scenario::PowerLost, false, "power cut, and the machine stays off"),
];

/// The cells with a flag that is not a default.
pub(super) const WITH_BARE_PODS: [Row; 2] = [PLANNED[0], PLANNED[2]];

impl Row {
    pub(super) fn cell(self, column: Column) -> Cell {
        Cell { scenario: self.scenario, graceful: self.graceful, column }
    }

    /// Without an agent there is no process to kill.
    pub(super) fn has(self, column: Column) -> bool {
        self.scenario != Scenario::AgentKilled || column != Column::Today
    }
}

impl Cell {
    /// The columns of the tables.
    pub(super) const COLUMNS: [Column; 3] = [Column::Today, Column::Agent, Column::Release];

    /// All cells, in such an order that a machine can play many of them: those after which it can
    /// play no other are last.
    pub fn all() -> Vec<Self> {
        let rows = PLANNED.iter().chain(&BROKEN).chain(&UNPLANNED);
        let mut cells: Vec<Self> = Vec::new();
        for row in rows {
            let columns = Self::COLUMNS.into_iter().filter(|column| row.has(*column));
            cells.extend(columns.map(|column| row.cell(column)));
        }
        cells.extend(WITH_BARE_PODS.map(|row| row.cell(Column::BarePods)));
        cells.sort_by_key(|cell| (cell.column, cell.graceful, cell.is_last_of_a_machine()));
        cells
    }

    /// Whether the machine is off afterwards, or rejects all pods: a kubelet whose own graceful
    /// shutdown has begun does not notice that logind forgot it. ([W13])
    pub fn is_last_of_a_machine(&self) -> bool {
        self.scenario.leaves_off() || (self.scenario == Scenario::Forgotten && self.graceful)
    }

    /// How it is played.
    pub fn case(&self) -> Case {
        let (agent, flags, jobs): (_, &[&str], _) = match self.column {
            Column::Today => (None, &[], JobController::Upstream),
            Column::Agent => (Some(Install::Host), &[], JobController::Upstream),
            Column::Release => (Some(Install::Chart), &[], JobController::Ours),
            Column::BarePods => (Some(Install::Host), &BARE_PODS, JobController::Upstream),
        };
        let (scenario, graceful) = (self.scenario, self.graceful);
        Case { scenario, kubelet: Kubelet::Usual, graceful, agent, flags, jobs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_machine_are_neighbours_and_those_that_spoil_it_are_last() {
        let cells = Cell::all();
        let machines = cells.chunk_by(|one, other| one.case().shares_machine(&other.case()));
        assert_eq!(machines.clone().count(), 7, "two of each column, and one with the flag");
        for cells in machines {
            assert!(cells.is_sorted_by_key(Cell::is_last_of_a_machine), "{cells:?}");
        }
    }

    #[test]
    fn no_cell_is_listed_twice() {
        let cells = Cell::all();
        for (at, cell) in cells.iter().enumerate() {
            assert!(!cells[..at].contains(cell), "{cell:?}");
        }
    }
}
