//! Which tests may start now: as many as the machine has cores for, the longest first. Pure.

use super::suites::{CORE_PARTS, Rule, Weight};

/// What one process runs: the tests of one program, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Index of the program.
    pub(super) program: usize,
    /// Index of the suite.
    pub(super) suite: usize,
    pub(super) tests: Vec<String>,
    pub(super) rule: Rule,
    /// Whether the process shares something among its tests, so that they stay together.
    pub(super) is_group: bool,
}

/// The units that wait, and the share of the machine that is free.
#[derive(Debug)]
pub(super) struct Schedule {
    /// In the order of their start, the last one first.
    waiting: Vec<Unit>,
    parts: u16,
    taken: u16,
    running: usize,
}

impl Schedule {
    /// Of these units on so many cores.
    pub(super) fn new(mut units: Vec<Unit>, cores: usize) -> Self {
        // What needs the whole machine comes last: everything else gives its answer sooner. Before
        // that the longest first, so that no long one is left over at the end.
        let rank = |unit: &Unit| (unit.rule.weight == Weight::Machine, unit.rule.limit);
        units.sort_by(|a, b| {
            let ((a_alone, a_limit), (b_alone, b_limit)) = (rank(a), rank(b));
            b_alone.cmp(&a_alone).then(a_limit.cmp(&b_limit))
        });
        let cores = u16::try_from(cores.max(1)).unwrap_or(u16::MAX);
        Self { waiting: units, parts: cores.saturating_mul(CORE_PARTS), taken: 0, running: 0 }
    }

    /// The next unit that fits; its share is taken until [`Schedule::end`].
    pub(super) fn start(&mut self) -> Option<Unit> {
        let fits = |unit: &Unit| {
            // On a small machine one unit runs, however heavy it is.
            self.running == 0 || self.taken + self.parts_of(unit.rule.weight) <= self.parts
        };
        let alone = self.waiting.last()?.rule.weight == Weight::Machine;
        let index = if alone {
            // Those that need the machine are alone at the end.
            (self.running == 0).then(|| self.waiting.len() - 1)?
        } else {
            self.waiting.iter().rposition(|it| it.rule.weight != Weight::Machine && fits(it))?
        };
        let unit = self.waiting.remove(index);
        self.taken += self.parts_of(unit.rule.weight);
        self.running += 1;
        Some(unit)
    }

    /// Gives the share of a unit back.
    pub(super) fn end(&mut self, unit: &Unit) {
        self.taken -= self.parts_of(unit.rule.weight);
        self.running -= 1;
    }

    /// Lets a unit start again, next of its kind.
    pub(super) fn put_back(&mut self, unit: Unit) {
        let behind = unit.rule.weight != Weight::Machine;
        self.waiting.insert(if behind { self.waiting.len() } else { self.first_alone() }, unit);
    }

    /// Where those begin that need the machine: the next of them is the last of these.
    fn first_alone(&self) -> usize {
        self.waiting.iter().take_while(|unit| unit.rule.weight == Weight::Machine).count()
    }

    fn parts_of(&self, weight: Weight) -> u16 {
        match weight {
            Weight::Parts(parts) => parts,
            Weight::Machine => self.parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn unit(name: &str, weight: Weight, limit: u64) -> Unit {
        let rule = Rule { weight, limit: Duration::from_secs(limit) };
        Unit { program: 0, suite: 0, tests: vec![name.to_owned()], rule, is_group: false }
    }

    fn started(schedule: &mut Schedule) -> Vec<Unit> {
        std::iter::from_fn(|| schedule.start()).collect()
    }

    fn names(units: &[Unit]) -> Vec<&str> {
        units.iter().map(|unit| unit.tests[0].as_str()).collect()
    }

    #[test]
    fn as_many_run_as_the_machine_has_cores_for() {
        let core = Weight::Parts(CORE_PARTS);
        let units = vec![unit("a", core, 9), unit("b", core, 8), unit("c", core, 7)];
        let mut schedule = Schedule::new(units, 2);
        let first = started(&mut schedule);
        assert_eq!(names(&first), ["a", "b"]);
        schedule.end(&first[1]);
        assert_eq!(names(&started(&mut schedule)), ["c"]);
    }

    #[test]
    fn what_fits_goes_before_what_has_to_wait() {
        let units = vec![
            unit("most", Weight::Parts(3), 9),
            unit("core", Weight::Parts(4), 8),
            unit("little", Weight::Parts(1), 1),
        ];
        let mut schedule = Schedule::new(units, 1);
        let first = started(&mut schedule);
        assert_eq!(names(&first), ["most", "little"]);
        for unit in &first {
            schedule.end(unit);
        }
        assert_eq!(names(&started(&mut schedule)), ["core"]);
    }

    #[test]
    fn what_needs_the_machine_is_alone_and_last() {
        let units = vec![
            unit("machine", Weight::Machine, 99),
            unit("a", Weight::Parts(1), 1),
            unit("second", Weight::Machine, 98),
        ];
        let mut schedule = Schedule::new(units, 2);
        for expected in ["a", "machine", "second"] {
            let running = started(&mut schedule);
            assert_eq!(names(&running), [expected]);
            schedule.end(&running[0]);
        }
        assert!(schedule.start().is_none());
    }
}
