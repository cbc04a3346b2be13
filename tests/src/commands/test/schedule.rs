//! Decides which tests may start now: as many as the machine has cores for, the longest first.
//! Pure.

use std::time::Duration;

use super::suites::{CORE_PARTS, Rule, Weight};

/// The content of one process: the tests of one program, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Index of the program.
    pub(super) program: usize,
    /// Index of the suite.
    pub(super) suite: usize,
    pub(super) tests: Vec<String>,
    pub(super) rule: Rule,
    /// Whether its tests share something in the process, so that they stay together.
    pub(super) is_group: bool,
}

/// Waiting units that may run alongside an emulated machine, which leaves a part of a core.
const ALONGSIDE_MAX: usize = 2;

/// The waiting units, and the free share of the machine.
#[derive(Debug)]
pub(super) struct Schedule {
    /// In the order of their start, the last one first.
    waiting: Vec<Unit>,
    /// Units that start when only emulated machines are left.
    alongside: Vec<Unit>,
    running_alongside: usize,
    parts: u16,
    taken: u16,
    running: usize,
    /// Whether a unit other than an emulated machine runs.
    exclusive: bool,
}

impl Schedule {
    /// A schedule of these units on this many cores.
    pub(super) fn new(mut units: Vec<Unit>, cores: usize) -> Self {
        // Units that need the whole machine come last: everything else reports sooner. Before them,
        // the longest come first, so that no long one is left over at the end.
        units.sort_by(|a, b| {
            let ((a_rank, a_limit), (b_rank, b_limit)) = (rank(a), rank(b));
            b_rank.cmp(&a_rank).then(a_limit.cmp(&b_limit))
        });
        let (alongside, waiting) =
            units.into_iter().partition(|unit| unit.rule.weight == Weight::Alongside);
        let cores = u16::try_from(cores.max(1)).unwrap_or(u16::MAX);
        let parts = cores.saturating_mul(CORE_PARTS);
        Self {
            waiting,
            alongside,
            running_alongside: 0,
            parts,
            taken: 0,
            running: 0,
            exclusive: false,
        }
    }

    /// The next unit that fits; its share is taken until [`Schedule::end`].
    pub(super) fn start(&mut self) -> Option<Unit> {
        self.start_in_turn().or_else(|| self.start_alongside())
    }

    /// A unit that mostly waits, once it can delay no other unit.
    fn start_alongside(&mut self) -> Option<Unit> {
        let emulated = |unit: &Unit| unit.rule.weight == Weight::Emulated;
        let free = self.waiting.iter().all(emulated) && !self.exclusive;
        if !free || self.running_alongside >= ALONGSIDE_MAX {
            return None;
        }
        let unit = self.alongside.pop()?;
        self.running_alongside += 1;
        Some(unit)
    }

    fn start_in_turn(&mut self) -> Option<Unit> {
        let fits = |unit: &Unit| {
            // On a small machine one unit runs, however heavy it is.
            self.running == 0 || self.taken + self.parts_of(unit.rule.weight) <= self.parts
        };
        let alone = rank(self.waiting.last()?).0 > 0;
        let index = if alone {
            // Units that need the machine are alone at the end.
            (self.running == 0).then(|| self.waiting.len() - 1)?
        } else {
            self.waiting.iter().rposition(|it| rank(it).0 == 0 && fits(it))?
        };
        let unit = self.waiting.remove(index);
        self.taken += self.parts_of(unit.rule.weight);
        self.running += 1;
        self.exclusive = unit.rule.weight != Weight::Emulated;
        Some(unit)
    }

    /// Whether such a unit has not started yet.
    pub(super) fn waits(&self, which: impl Fn(&Unit) -> bool) -> bool {
        self.waiting.iter().chain(&self.alongside).any(which)
    }

    /// Returns the share of a unit.
    pub(super) fn end(&mut self, unit: &Unit) {
        if unit.rule.weight == Weight::Alongside {
            self.running_alongside -= 1;
            return;
        }
        self.taken -= self.parts_of(unit.rule.weight);
        self.running -= 1;
        self.exclusive &= self.running > 0;
    }

    /// Lets a unit start again, next of its kind.
    pub(super) fn put_back(&mut self, unit: Unit) {
        if unit.rule.weight == Weight::Alongside {
            self.alongside.push(unit);
            return;
        }
        // The next of its kind is the last of these.
        let before = rank(&unit).0;
        let index = self.waiting.iter().take_while(|other| rank(other).0 >= before).count();
        self.waiting.insert(index, unit);
    }

    fn parts_of(&self, weight: Weight) -> u16 {
        match weight {
            Weight::Parts(parts) => parts,
            Weight::Machine | Weight::Emulated => self.parts,
            Weight::Alongside => 0,
        }
    }
}

/// Later units have the greater rank; of equals, the longest comes first.
fn rank(unit: &Unit) -> (u8, Duration) {
    let rank = match unit.rule.weight {
        Weight::Parts(_) => 0,
        Weight::Machine => 1,
        Weight::Alongside | Weight::Emulated => 2,
    };
    (rank, unit.rule.limit)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn tests_that_only_wait_run_alongside_emulated_machines_and_nothing_else() {
        let alongside = |name: &str, limit| unit(name, Weight::Alongside, limit);
        let units = vec![
            alongside("b1", 3),
            unit("emulated", Weight::Emulated, 99),
            alongside("b2", 2),
            alongside("b3", 1),
            unit("machine", Weight::Machine, 98),
            unit("a", Weight::Parts(1), 1),
            unit("emulated 2", Weight::Emulated, 97),
        ];
        let mut schedule = Schedule::new(units, 2);
        for expected in ["a", "machine"] {
            let running = started(&mut schedule);
            assert_eq!(names(&running), [expected]);
            schedule.end(&running[0]);
        }
        let running = started(&mut schedule);
        assert_eq!(names(&running), ["emulated", "b1", "b2"]);
        schedule.end(&running[1]);
        let third = started(&mut schedule);
        assert_eq!(names(&third), ["b3"]);
        schedule.end(&running[0]);
        assert_eq!(names(&started(&mut schedule)), ["emulated 2"]);
        // A unit that ended its process starts again.
        schedule.put_back(third[0].clone());
        schedule.end(&third[0]);
        assert_eq!(names(&started(&mut schedule)), ["b3"]);
    }
}
